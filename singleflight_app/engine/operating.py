"""What an operator does to a flight by hand: each move is one commit, with an audit row that names its actor.

The row is read first, so that a move which is sent again because its reply was lost still counts as this one.
"""

from collections.abc import Callable

from singleflight_app.domain.exceptions import CoordinationUnavailable
from singleflight_app.domain.policy import StagePolicy
from singleflight_app.domain.records import FlightSnapshot, Forgotten
from singleflight_app.domain.states import Status
from singleflight_app.engine.claiming import TRIES
from singleflight_app.engine.ports import FlightQueue
from singleflight_app.telemetry.signals import announce, flight_lost

CANCELLED_FOR = 60.0  #: seconds; nobody replays a cancelled flight, and a purge waits for its followers besides

Send = Callable[[int], bool]


def cancel(queue: FlightQueue, flight_id: int, *, actor: str, generation: int | None) -> Forgotten | None:
    """End a pending or running flight, whichever generation it has or just this one; None: there is none to end."""
    for _ in range(TRIES):
        row = _row(queue, flight_id, generation)
        if row is None or row.is_settled:
            return None
        cancelled = queue.cancel(flight_id, row.generation, actor=actor, ttl=CANCELLED_FOR)
        if cancelled is not None:
            if row.status == Status.RUNNING and not cancelled.already:
                _announce_lost(cancelled.stage, row, "cancelled")
            return cancelled
    raise CoordinationUnavailable(
        f"flight {flight_id} moved {TRIES} times while it was cancelled; cancel it again", is_outage=False
    )


def expire(queue: FlightQueue, flight_id: int, *, actor: str, generation: int | None) -> Forgotten | None:
    """End a running flight's lease, of the generation it has just now or of this one; None: it is not running.

    Whoever took the flight meanwhile is spared: nobody had that lease in mind.
    """
    row = _row(queue, flight_id, generation)
    if row is None or row.status != Status.RUNNING:
        return None
    return queue.expire_lease(flight_id, row.generation, actor=actor)


def retry(
    queue: FlightQueue,
    policy_of: Callable[[str], StagePolicy],
    send: Send,
    flight_id: int,
    *,
    actor: str,
    generation: int | None,
) -> bool:
    """Let a failure be called again now, send a pending flight's message, or queue again what lost its worker."""
    row = _row(queue, flight_id, generation)
    if row is None:
        return False
    status = Status(row.status)
    if status.is_failure:
        return not _is_due(row) and queue.allow_retry(flight_id, row.generation, actor=actor) is not None
    if status is Status.PENDING:
        is_marked = queue.send_again(flight_id, row.generation, actor=actor)
    else:
        is_marked = status is Status.RUNNING and _is_queued_again(queue, policy_of, row, actor)
    if is_marked and not send(flight_id):
        problem = f"flight {flight_id} waits in its queue, but no broker took its message"
        raise CoordinationUnavailable(f"{problem}; the sweep sends it again", is_outage=False)
    return is_marked


def _row(queue: FlightQueue, flight_id: int, generation: int | None) -> FlightSnapshot | None:
    row = queue.read(flight_id)
    return None if row is None or generation not in {None, row.generation} else row


def _is_due(row: FlightSnapshot) -> bool:
    return row.retryable and row.retry_remaining is not None and row.retry_remaining <= 0


def _is_queued_again(
    queue: FlightQueue, policy_of: Callable[[str], StagePolicy], row: FlightSnapshot, actor: str
) -> bool:
    """Do what the sweep would do a lease later, by the same limits."""
    if row.lease_remaining is None or row.lease_remaining > 0:
        return False
    stored = queue.arguments(row.flight_id)
    if stored is None:
        return False
    policy = policy_of(stored.stage)
    if not policy.takeover or row.takeovers >= policy.max_takeovers:
        return False
    if row.server_age < policy.lease or not queue.may_take_over(policy.lease):
        return False  # rule R18: after an outage a healthy owner's beat may be under way
    if queue.queue(row, kind="requeued", policy=policy, actor=actor) is not None:
        _announce_lost(stored.stage, row, "requeued")
        return True
    now = queue.read(row.flight_id)  # a try whose reply was lost, or a sweep, has done it
    return now is not None and now.status == Status.PENDING and now.generation > row.generation


def _announce_lost(stage: str, row: FlightSnapshot, reason: str) -> None:
    announce(flight_lost, stage=stage, flight_id=row.flight_id, generation=row.generation, reason=reason)
