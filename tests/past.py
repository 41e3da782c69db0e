"""Time that has passed, by decree: rows are dated back in a commit of their own, as if the database had waited.

The ORM would write inside the test's transaction, where flights can't see it.
"""

from collections.abc import Collection

from singleflight_app.storage.pool import Database
from singleflight_app.wiring import runtime
from tests.nodes import Node

_LEASE_OVER = (
    b"update singleflight_flight set lease_expires_at = clock_timestamp() - interval '1 hour' "
    b"where generation = %(generation)s"
)
_EARLIER = b", ".join(
    column + b" = " + column + b" - make_interval(secs => %(by)s)"
    for column in (b"lease_expires_at", b"expires_at", b"retry_at", b"created_at", b"sent_at")
)


def pass_time(database: Database, by: float, *, stages: Collection[str]) -> None:
    """Let all flights of these stages be so many seconds older."""
    shift = b"update singleflight_flight set " + _EARLIER + b" where stage = any(%(stages)s::text[]) returning id"
    database.run(shift, {"by": by, "stages": list(stages)})


def purge_all(database: Database) -> None:
    """Let there be no flight and no audit, for tests that look at all there are."""
    for table in (b"singleflight_flight", b"singleflight_flightevent"):
        database.run(b"delete from " + table + b" returning id", {})


def end_outcome(generation: int | None) -> None:
    """Let the TTL of a settled generation be over."""
    _commit(
        b"update singleflight_flight set expires_at = clock_timestamp() where generation = %(generation)s",
        generation,
    )


def end_lease(generation: int | None) -> None:
    """Let the lease of a running generation have ended an hour ago."""
    _commit(_LEASE_OVER, generation)


def end_lease_just_now(generation: int | None) -> None:
    """Let the lease of a running generation end this moment."""
    _commit(
        b"update singleflight_flight set lease_expires_at = clock_timestamp() where generation = %(generation)s",
        generation,
    )


def end_leases(node: Node) -> None:
    """Let a node have died an hour ago: its leases are over, and nothing of it beats any more."""
    for lease in node.runtime.coordinator._settling.heartbeat.held():
        node.runtime.coordinator._settling.heartbeat.release(lease)
        _write(_LEASE_OVER, lease.generation)  # its row may have moved on meanwhile


def age_pending(generation: int | None) -> None:
    """Let a pending flight, and its last message, be an hour old."""
    _commit(
        b"update singleflight_flight set created_at = created_at - interval '1 hour', "
        b"sent_at = sent_at - interval '1 hour' where generation = %(generation)s",
        generation,
    )


def age_running(generation: int | None) -> None:
    """Let a running call have begun an hour ago; its lease stays as it is."""
    _commit(
        b"update singleflight_flight set created_at = created_at - interval '1 hour', "
        b"started_at = started_at - interval '1 hour' where generation = %(generation)s",
        generation,
    )


def delete(generation: int | None) -> None:
    """Let a flight be purged."""
    _commit(b"delete from singleflight_flight where generation = %(generation)s", generation)


def _commit(statement: bytes, generation: int | None) -> None:
    assert _write(statement, generation) == 1, f"generation {generation} has no row"


def _write(statement: bytes, generation: int | None) -> int:
    database = runtime().database
    assert database is not None
    return len(database.run(statement + b" returning id", {"generation": generation}))
