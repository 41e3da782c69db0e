"""Where the database and Redis are: what DATABASE_URL and REDIS_URL say, else the embedded servers.

A URL that can't work is refused here, in one sentence with the repair. No sentence repeats a URL: it may
hold a password.
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import dj_database_url
from django.core.exceptions import ImproperlyConfigured

from config.servers import places

POSTGRES_SCHEMES = ("postgres", "postgresql", "pgsql")
REDIS_SCHEMES = ("redis", "rediss", "unix")
NO_SCHEME = "has no scheme"

DATABASE_REPAIR = (
    "Write postgresql://USER:PASSWORD@HOST:PORT/NAME with special characters percent-encoded, "
    "or unset DATABASE_URL to use the embedded PostgreSQL."
)
REDIS_REPAIR = (
    "Write redis://HOST:PORT/0, rediss://HOST:PORT/0 or unix:///PATH/TO/SOCKET?db=0, "
    "or unset REDIS_URL to use the embedded Valkey."
)


def database_from(environ: Mapping[str, str]) -> dict[str, Any]:
    """The default entry of DATABASES."""
    url = environ.get("DATABASE_URL", "")
    if not url:
        return embedded_database()
    scheme = _scheme(url)
    if scheme not in POSTGRES_SCHEMES:
        raise _bad_database(f"has the scheme {scheme!r}, but flights need PostgreSQL" if scheme else NO_SCHEME)
    try:
        database: dict[str, Any] = dict(dj_database_url.parse(url))
    except (dj_database_url.ParseError, ValueError):
        # Not chained: the parser's own message may quote the URL.
        raise _bad_database("is not a valid URL") from None
    # libpq's way to name a socket folder, ?host=/run/postgresql.
    database["HOST"] = database["HOST"] or database.get("OPTIONS", {}).pop("host", "")
    for part, meaning in {"HOST": "host", "NAME": "database"}.items():
        if not database[part]:
            raise _bad_database(f"names no {meaning}")
    return database


def embedded_database() -> dict[str, Any]:
    """The same whether or not the server runs: asking for it starts nothing."""
    return {
        "ENGINE": "django.db.backends.postgresql",
        "HOST": str(places.postgres_sockets()),
        "PORT": places.POSTGRES_PORT,
        "USER": places.POSTGRES_USER,
        "PASSWORD": "",
        "NAME": places.DATABASE_NAME,
    }


def redis_url_from(environ: Mapping[str, str]) -> str:
    """The location of the default cache."""
    url = environ.get("REDIS_URL", "")
    if not url:
        return f"unix://{places.valkey_socket()}?db=0"
    scheme = _scheme(url)
    if scheme not in REDIS_SCHEMES:
        raise _bad_redis(f"has the scheme {scheme!r}, but the cache needs Redis" if scheme else NO_SCHEME)
    try:
        parts = urlsplit(url)
        host, _port = parts.hostname, parts.port
    except ValueError:
        raise _bad_redis("is not a valid URL") from None
    if scheme == "unix":
        if not parts.path:
            raise _bad_redis("names no socket")
        return url
    if not host:
        raise _bad_redis("names no host")
    if (number := parts.path.strip("/")) and not number.isdecimal():
        raise _bad_redis("names a database that is not a number")
    return url


def _scheme(url: str) -> str:
    return url.partition(":")[0].lower() if "://" in url else ""


def _bad_database(what: str) -> ImproperlyConfigured:
    return ImproperlyConfigured(f"DATABASE_URL {what}. {DATABASE_REPAIR}")


def _bad_redis(what: str) -> ImproperlyConfigured:
    return ImproperlyConfigured(f"REDIS_URL {what}. {REDIS_REPAIR}")
