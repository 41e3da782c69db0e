"""The PostgreSQL server of DATABASE: version, durability, clock, proxy, connections; asked over one connection."""

import os
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import psycopg
from django.conf import settings as django_settings
from django.db import connections
from psycopg.rows import namedtuple_row

from singleflight_app.conf import Settings
from singleflight_app.health import flights, tables
from singleflight_app.health.finding import Finding, error, note, ok, warning
from singleflight_app.storage.pool import BoundedConnection, dial

LEAST_VERSION = 140000
CLOCK_MOST = 5.0  #: seconds between two clocks that nobody needs to know of
FULL = 0.8  #: of max_connections

_SERVER = """
select current_setting('server_version_num')::int as number, current_setting('server_version') as version,
    pg_backend_pid() as pid, pg_is_in_recovery() as is_replica,
    current_setting('default_transaction_read_only') as read_only,
    current_setting('fsync') as fsync, current_setting('full_page_writes') as full_page_writes,
    current_setting('synchronous_commit') as synchronous_commit,
    current_setting('default_transaction_isolation') as isolation,
    (select setting::int from pg_settings where name = 'statement_timeout') as statement_timeout,
    current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int as room,
    (select count(*) from pg_stat_activity where datid is not null) as used,
    extract(epoch from clock_timestamp())::float8 as now,
    extract(epoch from clock_timestamp() - pg_postmaster_start_time())::float8 as up
"""


class Server(NamedTuple):
    """What one look at the server brought, and the wall clock of this machine in the middle of it."""

    row: Any
    answer_ms: float
    here: float


def check(settings: Settings) -> Iterator[Finding]:
    """Yield all that is found about the server, the app's tables and the flights in them."""
    yield from _asked(settings, is_glance=False)


def glance(settings: Settings) -> Iterator[Finding]:
    """Yield what a dashboard shows: whether it answers, the oldest lease, what waits."""
    yield from _asked(settings, is_glance=True)


def _asked(settings: Settings, *, is_glance: bool) -> Iterator[Finding]:
    try:
        connection = dial(settings)
    except psycopg.Error as exc:
        yield _no_answer(settings, exc)
        return
    with connection:
        try:
            server = _look(connection)
            yield _answer(server)
            if not is_glance:
                yield from _server(settings, server, connection)
                yield from tables.check(connection)
            yield from flights.check(connection, settings, is_glance=is_glance)
        except psycopg.OperationalError as exc:
            yield _no_answer(settings, exc)


def _no_answer(settings: Settings, exc: psycopg.Error) -> Finding:
    reason = (str(exc).strip() or type(exc).__name__).splitlines()[0]
    return error(
        "database.answer",
        f"PostgreSQL ({settings.database!r}) gives no answer: {reason}",
        f"Start it, or correct DATABASES[{settings.database!r}]; until then no flight is coordinated.",
    )


def _look(connection: BoundedConnection) -> Server:
    with connection.cursor(row_factory=namedtuple_row) as cursor:
        began, here = time.perf_counter(), time.time()
        row: Any = cursor.execute(_SERVER).fetchone()
        took = time.perf_counter() - began
    return Server(row, took * 1000, here + took / 2)


def _answer(server: Server) -> Finding:
    facts = {"version": server.row.version, "answer_ms": round(server.answer_ms, 2), "up_s": round(server.row.up)}
    return ok("database.answer", f"PostgreSQL {server.row.version} answers in {server.answer_ms:.1f} ms", **facts)


def _server(settings: Settings, server: Server, connection: BoundedConnection) -> Iterator[Finding]:
    yield from _version(server.row)
    yield from _role(server.row)
    yield from _durability(server.row)
    yield from _isolation(server.row)
    yield from _statement_timeout(settings, server.row)
    yield _clock(server)
    is_pooled = server.row.pid != connection.info.backend_pid
    yield from _pooler(settings, is_pooled=is_pooled)
    yield from _connections(settings, server.row, is_pooled=is_pooled)


def _version(row: Any) -> Iterator[Finding]:  # noqa: ANN401
    if row.number < LEAST_VERSION:
        text = f"PostgreSQL {row.version} is older than what the app's statements need"
        yield error("database.version", text, "Upgrade to PostgreSQL 14 or newer.")


def _role(row: Any) -> Iterator[Finding]:  # noqa: ANN401
    if row.is_replica:
        text = "DATABASE is a replica: it takes no write, so no flight can be granted"
        yield error("database.replica", text, "Point DATABASE at the primary (target_session_attrs=read-write).")
    elif row.read_only == "on":
        text = "transactions of this role are read-only, so no flight can be granted"
        yield error("database.replica", text, "Set default_transaction_read_only to off for the role and the database.")


def _durability(row: Any) -> Iterator[Finding]:  # noqa: ANN401
    if row.synchronous_commit == "off":
        text = (
            "synchronous_commit is off: a grant or an answer that was acknowledged may be lost in a crash, "
            "and a generation be given twice"
        )
        yield error(
            "database.synchronous_commit",
            text,
            "Set it to on for this role and database: ALTER ROLE ... SET synchronous_commit = on, "
            "or give the app an alias of its own.",
        )
    for name in ("fsync", "full_page_writes"):
        if getattr(row, name) == "off":
            text = f"{name} is off: a crash of the machine may leave the database unreadable, flights included"
            yield error(f"database.{name}", text, f"Set {name} = on in postgresql.conf and reload.")


def _isolation(row: Any) -> Iterator[Finding]:  # noqa: ANN401
    if row.isolation != "read committed":
        text = f"the default isolation level of this role is {row.isolation}: claims that race fail and are sent again"
        repair = "Leave default_transaction_isolation at read committed for the role that the app uses."
        yield error("database.isolation", text, repair)


def _statement_timeout(settings: Settings, row: Any) -> Iterator[Finding]:  # noqa: ANN401
    needed = settings.statement_timeout
    if 0 < row.statement_timeout < needed * 1000:
        text = (
            f"the role's statement_timeout is {row.statement_timeout} ms, and the app gives a statement {needed:g} s: "
            "a busy moment ends beats and settles too early"
        )
        yield warning(
            "database.statement_timeout", text, f"Set it to at least {needed:g} s for the app's role, or to 0."
        )


def _clock(server: Server) -> Finding:
    ahead = server.row.now - server.here
    text = f"this machine's clock and the database's are {abs(ahead):.1f} s apart"
    facts = {"ahead_s": round(ahead, 3)}
    if abs(ahead) > CLOCK_MOST:
        text += "; leases go by the database's alone, but times in logs mislead"
        return warning("database.clock", text, "Let NTP (chrony, systemd-timesyncd) set both clocks.", **facts)
    return ok("database.clock", text, **facts)


def _pooler(settings: Settings, *, is_pooled: bool) -> Iterator[Finding]:
    if not is_pooled:
        yield ok("database.pooler", "no pooler in front: sessions are the app's own", pooled=False)
        return
    text = "a pooler such as pgbouncer hands out sessions; transaction mode is fine, the app keeps no session state"
    if settings.prepare_statements:
        repair = (
            "PREPARE_STATEMENTS is True: pgbouncer must be 1.21 or newer with max_prepared_statements above 0; "
            "else leave the option out."
        )
        yield warning("database.pooler", text, repair, pooled=True)
    else:
        repair = "Set server_login_retry = 1 in pgbouncer: its default makes each outage up to 15 s longer."
        yield note("database.pooler", text, repair, pooled=True)
    alias = connections.settings[settings.database]
    if not alias.get("DISABLE_SERVER_SIDE_CURSORS"):
        yield note(
            "database.cursors",
            "Django's own server-side cursors do not survive a pooler in transaction mode",
            f'Set DISABLE_SERVER_SIDE_CURSORS to True in DATABASES["{settings.database}"].',
        )


def _connections(settings: Settings, row: Any, *, is_pooled: bool) -> Iterator[Finding]:  # noqa: ANN401
    each = settings.pool_size + 1  # and Django's own
    known = _processes()
    facts = {"used": row.used, "room": row.room, "pool_size": settings.pool_size, "processes": known}
    if row.used > FULL * row.room:
        text = f"{row.used} of {row.room} connections of the server are in use"
        yield warning("database.connections", text, "Raise max_connections, or put a pooler in front.", **facts)
    elif known and not is_pooled and known * each > row.room:
        text = f"{known} processes may open {known * each} connections, and the server has room for {row.room}"
        repair = "Lower POOL_SIZE or the number of processes, raise max_connections, or put a pooler in front."
        yield warning("database.connections", text, repair, **facts)
    else:
        fits = "" if is_pooled else f"; room for {row.room // each} processes with POOL_SIZE {settings.pool_size}"
        yield ok("database.connections", f"{row.used} of {row.room} connections are in use{fits}", **facts)


def _processes() -> int:
    """Return how many processes the environment and the settings tell of; 0: neither tells."""
    told = (os.environ.get("WEB_CONCURRENCY"), getattr(django_settings, "CELERY_WORKER_CONCURRENCY", None))
    return sum(int(number) for number in map(str, told) if number.isdigit())
