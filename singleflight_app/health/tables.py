"""The app's tables: migrations, dead rows, autovacuum, and what keeps the vacuum from its work."""

from collections.abc import Iterator
from typing import Any

from django.db.migrations.loader import MigrationLoader
from psycopg import errors
from psycopg.rows import namedtuple_row

from singleflight_app.health.finding import Finding, error, note, ok, warning
from singleflight_app.storage.pool import BoundedConnection

LABEL = "singleflight"
OLD_TRANSACTION = 300.0  #: seconds
DEAD_MOST = 0.5  #: dead rows for each live one
FEW = 10_000  #: dead rows that nobody needs to know of
HOT_LEAST, UPDATES_LEAST = 0.5, 10_000

_TABLE = """
select t.n_live_tup as live, t.n_dead_tup as dead, t.n_tup_upd as updates, t.n_tup_hot_upd as hot,
    extract(epoch from clock_timestamp() - greatest(t.last_autovacuum, t.last_vacuum))::float8 as vacuumed_ago,
    coalesce(array_to_string(c.reloptions, ','), '') as options, current_setting('autovacuum') as autovacuum,
    pg_total_relation_size(c.oid) as bytes
from pg_stat_user_tables t join pg_class c on c.oid = t.relid
where t.relid = 'singleflight_flight'::regclass
"""
# What holds the horizon back: an open transaction with a snapshot or an id, or one that was prepared and left.
_OLDEST = """
select * from (
    select pid, coalesce(state, '') as state, coalesce(application_name, '') as name, coalesce(usename, '') as role,
        extract(epoch from clock_timestamp() - xact_start)::float8 as age
    from pg_stat_activity
    where xact_start is not null and pid <> pg_backend_pid() and datname = current_database()
        and backend_type = 'client backend'
    union all
    select null, 'prepared', gid, owner, extract(epoch from clock_timestamp() - prepared)::float8
    from pg_prepared_xacts where database = current_database()
) open order by age desc limit 1
"""


def check(connection: BoundedConnection) -> Iterator[Finding]:
    """Yield what is found about migrations, the flight table and the oldest transaction."""
    yield from _migrations(connection)
    yield from _oldest_transaction(connection)
    try:
        row = _one(connection, _TABLE)
    except errors.UndefinedTable:
        return  # the migrations have said so
    if row is not None:
        yield from _table(row)


def _one(connection: BoundedConnection, statement: str) -> Any:  # noqa: ANN401  (a row with names)
    with connection.cursor(row_factory=namedtuple_row) as cursor:
        return cursor.execute(statement.encode()).fetchone()


def _migrations(connection: BoundedConnection) -> Iterator[Finding]:
    # Without a connection: it reads the files alone.
    known = {name for label, name in MigrationLoader(None).disk_migrations if label == LABEL}
    try:
        rows = connection.execute("select name from django_migrations where app = %s", [LABEL]).fetchall()
    except errors.UndefinedTable:
        rows = []
    applied = {name for (name,) in rows}
    if missing := sorted(known - applied):
        text = f"{len(missing)} migrations are not applied: {', '.join(missing)}"
        yield error("database.migrations", text, "Run `manage.py migrate`.", missing=missing)
    elif newer := sorted(applied - known):
        text = f"the database has migrations that this release does not know: {', '.join(newer)}"
        yield note("database.migrations", text, "Fine in a rolling deploy; else deploy the release that they are of.")
    else:
        yield ok("database.migrations", f"all {len(known)} migrations are applied")


def _oldest_transaction(connection: BoundedConnection) -> Iterator[Finding]:
    row = _one(connection, _OLDEST)
    facts = {} if row is None else {"age_s": round(row.age), "pid": row.pid, "state": row.state}
    if row is None or row.age < OLD_TRANSACTION:
        yield ok("database.oldest_transaction", "no transaction is open for long", **facts)
        return
    what = f"process {row.pid} ({row.name or row.role}, {row.state})" if row.pid else f"prepared, {row.name!r}"
    end = f"SELECT pg_terminate_backend({row.pid})" if row.pid else f"ROLLBACK PREPARED '{row.name}'"
    text = (
        f"a transaction is open for {row.age:.0f} s: {what}; until it ends, dead rows stay, and beats are no cheap "
        "updates any more"
    )
    repair = f"End it ({end}), and set idle_in_transaction_session_timeout for the role that left it open."
    yield warning("database.oldest_transaction", text, repair, **facts)


def _table(row: Any) -> Iterator[Finding]:  # noqa: ANN401
    vacuumed = "never" if row.vacuumed_ago is None else f"{row.vacuumed_ago / 3600:.1f} h ago"
    facts = {
        "live": row.live,
        "dead": row.dead,
        "bytes": row.bytes,
        "vacuumed_ago_s": None if row.vacuumed_ago is None else round(row.vacuumed_ago),
        "hot_ratio": round(row.hot / row.updates, 3) if row.updates else None,
    }
    size = f"about {row.live} flights and {row.dead} dead rows, vacuumed {vacuumed}"
    if row.autovacuum == "off" or "autovacuum_enabled=false" in row.options:
        repair = "Set autovacuum = on, and ALTER TABLE singleflight_flight RESET (autovacuum_enabled)."
        yield warning("database.vacuum", f"autovacuum is off: {size}", repair, **facts)
    elif row.dead > max(FEW, DEAD_MOST * row.live):
        repair = (
            "Look for an old transaction first; else VACUUM singleflight_flight, and lower its "
            "autovacuum_vacuum_scale_factor."
        )
        yield warning("database.vacuum", f"many dead rows: {size}", repair, **facts)
    else:
        yield ok("database.vacuum", size, **facts)
    if row.updates > UPDATES_LEAST and row.hot < HOT_LEAST * row.updates:
        text = f"only {row.hot / row.updates:.0%} of the updates were heap-only (HOT): beats touch the indexes too"
        repair = "Look for an index on a column that beats change, for another fillfactor, and for old transactions."
        yield note("database.hot", text, repair)
