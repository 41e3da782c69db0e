"""Work on flights that no caller asks for any more.

`purge` deletes settled rows whose outcome has expired. It goes in short batches, each committed by
itself and passing over locked rows, so that it can run beside everything else, be stopped anywhere and
be run by two at once.

`sweep` gives up on owners that died with nobody waiting: a background flight goes back to its queue, any
other is settled as lost.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import chain, takewhile
from typing import Protocol

from singleflight_app.domain.exceptions import seconds
from singleflight_app.domain.policy import StagePolicy
from singleflight_app.domain.purging import NOTHING, Purged, PurgedBatch, PurgePlan
from singleflight_app.domain.records import ExpiredFlight
from singleflight_app.engine.erasing import EraseStore, Floors, erase
from singleflight_app.engine.failures import LOST_MESSAGE
from singleflight_app.engine.large import LargeResults
from singleflight_app.engine.ports import FlightQueue
from singleflight_app.telemetry.signals import announce, flight_lost

RESEND_AFTER = 30.0  #: seconds between two messages for one pending flight
logger = logging.getLogger("singleflight_app")

DeleteBatch = Callable[[PurgePlan, datetime | None], PurgedBatch]


class PurgeStore(EraseStore, Protocol):
    """Deletes one batch in one commit, oldest first, from `since` on, passing over locked rows."""

    def purge_flights(self, plan: PurgePlan, since: datetime | None, /) -> PurgedBatch:
        """Delete up to `plan.batch_size` flights."""

    def purge_events(self, plan: PurgePlan, since: datetime | None, /) -> PurgedBatch:
        """Delete up to `plan.batch_size` audit rows."""


def purge(
    store: PurgeStore,
    large: LargeResults,
    plan: PurgePlan,
    *,
    floors: Floors,
    monotonic: Callable[[], float] = time.monotonic,
) -> Iterator[Purged]:
    """Delete what `plan` names, and files that no flight needs; yields the sum so far, first before any batch.

    CoordinationUnavailable: a server gave no answer; what was yielded before stays deleted.
    """
    ends_at = float("inf") if plan.max_seconds is None else monotonic() + plan.max_seconds
    steps = chain(
        erase(store, floors, large, plan) if plan.walks else _flights(store, large, plan),
        _events(store, plan) if plan.scope is None else (),
        (NOTHING._replace(blobs=count) for count in large.remove_orphans(plan.batch_size)),
    )
    total = NOTHING
    yield total
    for step in steps:
        total = total.plus(step)
        yield total
        if monotonic() >= ends_at:
            return
    yield total._replace(is_complete=True)


def _events(store: PurgeStore, plan: PurgePlan) -> Iterator[Purged]:
    """Delete old audit rows; those of one scope can't be told from others, for they don't hold it."""
    return (NOTHING._replace(events=batch.deleted) for batch in _batches(store.purge_events, plan))


def _flights(store: PurgeStore, large: LargeResults, plan: PurgePlan) -> Iterator[Purged]:
    """Delete rows, and then the files that held their results."""
    for batch in _batches(store.purge_flights, plan):
        yield NOTHING._replace(flights=batch.deleted, blobs=large.remove(batch.locations))


def _batches(delete: DeleteBatch, plan: PurgePlan) -> Iterator[PurgedBatch]:
    since: datetime | None = None
    while True:
        # From where the last batch ended: the index entries before it are dead, but still there to be walked.
        batch = delete(plan, since)
        yield batch
        if batch.deleted < plan.batch_size:
            return
        since = batch.until


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep did: flights made pending again, settled as lost, messages sent again, rows that failed."""

    requeued: int
    lost: int
    resent: int
    failed: int


def sweep(
    queue: FlightQueue,
    policy_of: Callable[[str], StagePolicy],
    send: Callable[[int], bool],
    *,
    limit: int = 1000,
) -> Swept:
    """Deal with flights that nobody took over one lease after theirs ended, and with lost messages.

    A row that fails is logged and left for the next sweep; the others go on.
    """
    counts = Counter(_swept_one(queue, expired, policy_of(expired.stage), send) for expired in queue.expired(limit))
    unsent = queue.unsent(spacing=RESEND_AFTER, limit=limit)
    # A broker that is away takes none of them now; the rows come again.
    resent = sum(1 for _ in takewhile(send, unsent))
    return Swept(counts["requeued"], counts["lost"], resent, counts["failed"])


def _swept_one(queue: FlightQueue, expired: ExpiredFlight, policy: StagePolicy, send: Callable[[int], bool]) -> str:
    try:
        return _sweep_one(queue, expired, policy, send)
    except Exception:
        logger.exception("sweeping flight %s of stage %s failed", expired.flight_id, expired.stage)
        return "failed"


def _sweep_one(queue: FlightQueue, expired: ExpiredFlight, policy: StagePolicy, send: Callable[[int], bool]) -> str:
    lease = policy.lease
    if expired.expired_for < lease or expired.server_age < lease or not queue.may_take_over(lease):
        return "waiting"  # a waiter goes first, and a healthy owner's beat may come through after an outage
    row = queue.read(expired.flight_id)
    if row is None or row.generation != expired.generation:
        return "moved"
    if expired.has_arguments and policy.takeover and expired.takeovers < policy.max_takeovers:
        queued = queue.queue(row, kind="requeued", policy=policy, grace=lease)
        if queued is None:
            return "moved"
        _announce_lost(expired, "requeued")
        send(queued.flight_id)
        return "requeued"
    message = LOST_MESSAGE.format(count=expired.takeovers + 1)
    ttl = seconds(policy.failure_ttl)
    if not queue.lose(expired.flight_id, expired.generation, ttl=ttl, message=message, grace=lease):
        return "moved"
    _announce_lost(expired, "gave_up")
    return "lost"


def _announce_lost(expired: ExpiredFlight, reason: str) -> None:
    facts = {"stage": expired.stage, "flight_id": expired.flight_id, "generation": expired.generation}
    announce(flight_lost, **facts, reason=reason)
