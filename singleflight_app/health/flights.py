"""The flights themselves: leases that are over, background flights that wait, rows that no purge took."""

from collections.abc import Iterator
from typing import Any

from psycopg import errors
from psycopg.rows import namedtuple_row

from singleflight_app.conf import Settings
from singleflight_app.domain.exceptions import seconds
from singleflight_app.health.finding import Finding, ok, warning
from singleflight_app.storage.pool import BoundedConnection

HOUR = 3600.0
COUNTED = 10_000  #: rows that are counted, no further
OVERDUE = 1000  #: expired rows that say that no purge runs

_LIVE = """
select count(*) filter (where status = 'running') as running,
    count(*) filter (where status = 'running' and lease_expires_at <= clock_timestamp()) as stuck,
    extract(epoch from max(clock_timestamp() - lease_expires_at) filter (where status = 'running'))::float8 as over,
    count(*) filter (where status = 'pending') as pending,
    extract(epoch from max(clock_timestamp() - created_at) filter (where status = 'pending'))::float8 as waiting,
    count(*) = %(counted)s as is_cut
from (
    select status, lease_expires_at, created_at from singleflight_flight
    where status in ('pending', 'running') limit %(counted)s
) live
"""
_OVERDUE = """
select count(*) as rows from (
    select from singleflight_flight
    where expires_at <= (select clock_timestamp() - make_interval(secs => %(keep)s)) limit %(counted)s
) expired
"""


def check(connection: BoundedConnection, settings: Settings, *, is_glance: bool = False) -> Iterator[Finding]:
    """Yield what is found about live flights and, if there is time, about expired ones."""
    try:
        row = _one(connection, _LIVE, {"counted": COUNTED})
        yield _leases(row, settings)
        yield _pending(row, settings)
        if not is_glance:
            yield _purge(connection, settings)
    except errors.UndefinedTable:
        return  # the migrations have said so, or the server's answer


def _one(connection: BoundedConnection, statement: str, values: dict[str, Any]) -> Any:  # noqa: ANN401
    with connection.cursor(row_factory=namedtuple_row) as cursor:
        return cursor.execute(statement.encode(), values).fetchone()


def _leases(row: Any, settings: Settings) -> Finding:  # noqa: ANN401
    over = max(0.0, row.over or 0.0)
    facts = {"running": row.running, "stuck": row.stuck, "oldest_expired_s": round(over, 1), "cut": row.is_cut}
    longest = max(policy.lease for policy in settings.policies)
    # A waiter or the sweep has one more lease to come.
    if row.stuck and over > 2 * longest:
        text = f"{row.stuck} running flights have no lease any more, one of them for {over:.0f} s: nobody sweeps"
        repair = "Run `manage.py singleflight_sweep`, and schedule it every few seconds (beat: singleflight.sweep)."
        return warning("flights.lease", text, repair, **facts)
    more = "at least " if row.is_cut else ""
    return ok("flights.lease", f"{more}{row.running} running flights, {row.stuck} of them with the lease over", **facts)


def _pending(row: Any, settings: Settings) -> Finding:  # noqa: ANN401
    waiting = row.waiting or 0.0
    facts = {"pending": row.pending, "oldest_s": round(waiting, 1), "cut": row.is_cut}
    longest = max(seconds(policy.pending_timeout) for policy in settings.policies)
    if row.pending and waiting > longest:
        text = f"{row.pending} background flights wait for a worker, one of them for {waiting:.0f} s"
        repair = "Start more workers, on the queue of singleflight.run_flight; `manage.py flights --stuck` lists them."
        return warning("flights.pending", text, repair, **facts)
    return ok("flights.pending", f"{row.pending} background flights wait for a worker", **facts)


def _purge(connection: BoundedConnection, settings: Settings) -> Finding:
    keep = settings.wait_timeout_max + HOUR
    overdue = _one(connection, _OVERDUE, {"keep": keep, "counted": COUNTED}).rows
    if overdue < OVERDUE:
        return ok("flights.purge", f"{overdue} flights are expired for an hour or longer", overdue=overdue)
    more = "or more " if overdue == COUNTED else ""
    text = f"{overdue} {more}flights are expired for an hour or longer: no purge seems to run"
    repair = "Schedule `manage.py purge_flights` every few minutes (beat: singleflight.purge)."
    return warning("flights.purge", text, repair, overdue=overdue)
