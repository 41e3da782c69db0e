"""Where the embedded servers keep their data, logs and sockets.

Pure functions of the checkout's path, so that settings name the sockets of servers that don't run yet.
SINGLEFLIGHT_SERVERS_DIR moves the data, and with it the sockets, elsewhere.
"""

import hashlib
import os
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]

DATABASE_NAME = "singleflight"
POSTGRES_USER = "postgres"
#: PostgreSQL names its socket file after a port even when it listens on none.
POSTGRES_PORT = "5432"


def servers_folder() -> Path:
    """Data, logs and locks of this checkout's servers; in .gitignore, kept between runs."""
    return (CHECKOUT / (os.environ.get("SINGLEFLIGHT_SERVERS_DIR", "") or ".servers")).resolve()


def sockets_folder() -> Path:
    """A short path, whatever the checkout's: a socket's path has to stay under 108 bytes (104 on macOS).

    TMPDIR is not asked, as two processes of one checkout may disagree on it.
    """
    digest = hashlib.sha256(os.fsencode(servers_folder())).hexdigest()
    return Path("/tmp", f"singleflight-{digest[:12]}")  # noqa: S108 (made with mode 0700, and its owner is checked)


def postgres_data() -> Path:
    return servers_folder() / "postgres"


def postgres_sockets() -> Path:
    """A folder of its own: as root, PostgreSQL's may have to belong to another user."""
    return sockets_folder() / "postgres"


def valkey_socket() -> Path:
    return sockets_folder() / "valkey.sock"


def broker_folder() -> Path:
    """Messages of Celery's filesystem transport."""
    return servers_folder() / "broker"


def broker_messages() -> Path:
    """Where each message is a file until a worker takes it; `start_servers` makes the folder."""
    return broker_folder() / "messages"
