"""Writing ends: each generation of this process once, fenced, and handed on once it is stored.

An end that can't be written keeps its lease and is tried again by the heartbeat; its callers have their answer by then.
"""

import logging
import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from singleflight_app.domain.exceptions import CoordinationUnavailable, seconds
from singleflight_app.domain.flight import NO_USAGE, Failure, Settled, Usage
from singleflight_app.domain.keys import FlightKey
from singleflight_app.domain.policy import StagePolicy
from singleflight_app.domain.records import FlightSnapshot, Hint, Ticket
from singleflight_app.domain.states import Layer, Role, Status
from singleflight_app.engine import threads
from singleflight_app.engine.call import Asked, Verdict
from singleflight_app.engine.calling import End
from singleflight_app.engine.failures import timed_out
from singleflight_app.engine.heartbeat import Heartbeat, Lease
from singleflight_app.engine.large import LargeResults
from singleflight_app.engine.local import Shared
from singleflight_app.engine.ports import FlightStore
from singleflight_app.engine.replaying import Replaying
from singleflight_app.engine.spreading import Spreading
from singleflight_app.telemetry.signals import announce, coordination_failed, flight_fenced, flight_lost, flight_settled

logger = logging.getLogger("singleflight_app")

R = TypeVar("R")

_UNSTORABLE = Failure("singleflight_app.ResultUnreadable", "its end could not be stored", retryable=False)
_DETACHED = Failure("singleflight_app.FlightCancelled", "its owner left before the call ended", retryable=True)


class Settling:
    """Settles and releases the generations of one process; holds the heartbeat that keeps their leases."""

    def __init__(
        self,
        store: FlightStore,
        replaying: Replaying,
        spreading: Spreading,
        large: LargeResults,
        *,
        owner: str,
        on_end: Callable[[FlightKey], object],
        limits: tuple[int, int],
        monotonic: Callable[[], float] = time.monotonic,
        start: threads.Start = threads.start,
    ) -> None:
        self._store, self._replaying, self._spreading, self._large = store, replaying, spreading, large
        self._owner, self._on_end, self._monotonic = owner, on_end, monotonic
        self.heartbeat = Heartbeat(
            store, owner=owner, settle_late=self._settle_late, limits=limits, monotonic=monotonic, start=start
        )

    async def put_out(self, asked: Asked[R], lease: Lease, end: End[R]) -> End[R]:
        """Put a large result out of its row, unless the settle will be refused anyway."""
        is_large = self._large.is_too_large(lease.policy, end.written)
        if not is_large or lease.is_over or lease.pid != os.getpid():
            return end
        put_out = partial(self._large.put_out, lease, end.written)
        return replace(end, written=await asked.rim.do_to_its_end(put_out, is_slow=True))

    def conclude(self, asked: Asked[R], lease: Lease, end: End[R], *, ticket: Ticket | None) -> Verdict:
        """Write the end, once, and hand on what was stored."""
        asked.mark()
        written, sent_at = end.written, self._monotonic()
        try:
            verdict = self._settle(lease, written)
        except BaseException:
            self.heartbeat.release(lease)  # interrupted: the lease runs out by itself
            raise
        if verdict.is_refused:
            _end_line(asked, lease, verdict.row)
            self.heartbeat.release(lease)
            self._large.discard(written)
            if verdict.row is None and not lease.was_ended:
                announce(flight_lost, **_facts(lease), reason="vanished")
            else:
                self._fence(lease, written)
        if verdict.is_stored:
            self.heartbeat.release(lease)
            self._announce_settled(lease, written, lease.seconds_run)
            self._tell(lease)
            if not verdict.is_forgotten:
                ttl = seconds(lease.policy.result_ttl)
                self._replaying.keep(asked.call, written, ticket=ticket, remaining=ttl, as_of=sent_at)
        return verdict

    def end_hung(self, lease: Lease, asked: Asked[Any]) -> None:
        """Settle a call that outlived `execution_timeout`; it may go on, but it holds no key any more."""
        flight = asked.flight
        asked.mark()
        end = Settled(lease.flight_id, lease.generation, Status.TIMED_OUT, failure=timed_out(lease.policy))
        verdict = self._settle(lease, end)
        if not verdict.is_refused:
            flight.publish(Shared(end, Role.OWNER, Layer.CALL))
        _end_line(asked, lease, verdict.row)
        if verdict.is_stored:
            self._announce_settled(lease, end, seconds(lease.policy.execution_timeout))
            self._tell(lease)

    def let_go(self, lease: Lease, usage: Usage, *, may_wait: bool) -> None:
        """Release a flight whose call was interrupted.

        `may_wait`: a thread may end its process next, so it writes the release itself; a loop may not wait for that.
        """
        if not may_wait or not self.release_now(lease, usage):
            self.give_up(lease, usage)

    def release_now(self, lease: Lease, usage: Usage) -> bool:
        """Write a release here and now; False: it could not be written. No beat may take it for a loss meanwhile."""
        if lease.pid != os.getpid():
            return True  # a forked child leaves its parent's call
        self.heartbeat.release(lease)
        if lease.late is None:
            if lease.is_over or lease.is_background:
                return True
            lease.late = _released(lease, usage)
        return self._settle_late(lease)

    def give_up(self, lease: Lease, usage: Usage) -> None:
        """Release a flight whose call did not end, so that a waiter takes it at once.

        The heartbeat writes it: who gives up may be on its way out of an event loop, or of the interpreter. A
        background flight keeps its arguments: its lease runs out, and the sweep queues it again.
        """
        if lease.pid != os.getpid():
            return  # a forked child leaves its parent's call
        end = _released(lease, usage)
        is_ours = not lease.is_over and not lease.is_background
        if not is_ours or not self.heartbeat.settle_later(lease, end, within=lease.policy.lease, at_once=True):
            self.heartbeat.release(lease)

    def release_all(self) -> None:
        """Let go of every lease at exit, so that others need not wait until it runs out."""
        for lease in self.heartbeat.held():
            self.release_now(lease, NO_USAGE)

    def _settle(self, lease: Lease, settled: Settled) -> Verdict:
        """Write the end; if the database can't be reached, keep the lease and let the heartbeat try again."""
        if lease.pid != os.getpid():
            return Verdict(is_detached=True)  # a forked child ran its parent's call to the end
        try:
            return self._try_settle(lease, settled)
        except CoordinationUnavailable as exc:
            within = seconds(lease.policy.result_ttl)
            if not self.heartbeat.settle_later(lease, settled, within=within):
                self.heartbeat.release(lease)
            announce(coordination_failed, component="settle", error=type(exc).__name__)
            return Verdict()
        except Exception as exc:
            # PostgreSQL refused the values: trying again would not help, and the answer goes out all the same.
            logger.exception("the end of %s could not be stored", lease.key)
            announce(coordination_failed, component="settle", error=type(exc).__name__)
            self.heartbeat.release(lease)
            self._settle_plainly(lease, settled.usage)
            return Verdict()

    def _settle_plainly(self, lease: Lease, usage: Usage) -> None:
        """Leave a failure of plain values in place of an end that the row can't hold, so that the key is free."""
        end = Settled(lease.flight_id, lease.generation, Status.FAILED, failure=_UNSTORABLE)
        try:
            if self._try_settle(lease, end).is_stored:
                self._announce_settled(lease, replace(end, usage=usage), lease.seconds_run)
        except Exception:
            logger.exception("the failure of %s could not be stored either; its lease runs out", lease.key)

    def _try_settle(self, lease: Lease, settled: Settled) -> Verdict:
        is_forgotten = self._store.settle(settled, owner=self._owner, ttl=ttl_of(settled, lease.policy))
        if is_forgotten is not None:
            return Verdict(is_stored=True, is_forgotten=is_forgotten)
        row = self._store.read(lease.flight_id)
        if row is not None and row.generation == lease.generation and _is_of(row, settled):
            return Verdict(is_stored=True, is_forgotten=row.forgotten)  # an earlier try's reply was lost
        return Verdict(is_refused=True, row=row)

    def _settle_late(self, lease: Lease) -> bool:
        """Try an end again that could not be written; True when the database said stored or fenced."""
        if lease.late is None:
            return True
        try:
            verdict = self._try_settle(lease, lease.late)
        except CoordinationUnavailable:
            return False
        if verdict.is_stored:
            self._announce_settled(lease, lease.late, lease.seconds_run)
            self._tell(lease)
        else:
            self._large.discard(lease.late)
            self._fence(lease, lease.late)
        return True

    def _fence(self, lease: Lease, settled: Settled) -> None:
        announce(flight_fenced, **_facts(lease), usage=settled.usage)
        try:
            self._store.record_fence(lease.flight_id, lease.generation, owner=self._owner)
        except CoordinationUnavailable as exc:
            announce(coordination_failed, component="settle", error=type(exc).__name__)

    def _tell(self, lease: Lease) -> None:
        """Wake who waits for the flight: here at once, elsewhere by a hint."""
        self._on_end(lease.key)
        self._spreading.hint(lease.key.stage, Hint(lease.key.digest, lease.generation))

    def _announce_settled(self, lease: Lease, settled: Settled, seconds_run: float | None) -> None:
        announce(
            flight_settled,
            **_facts(lease),
            status=settled.status,
            seconds=seconds_run,
            usage=settled.usage,
            is_call=lease.has_begun,
        )


def _end_line(asked: Asked[Any], lease: Lease, row: FlightSnapshot | None) -> None:
    """Let those in line ask again, unless the row tells that what they wait for was cancelled."""
    if row is not None and is_cancelled(row, lease):
        asked.flight.cancel(row.settled())
    asked.flight.retire()


def is_cancelled(row: FlightSnapshot | None, lease: Lease) -> bool:
    """Tell whether the lease's own generation was cancelled; the row may be purged since, and the lease remember it."""
    if row is None:
        return lease.lost_by == "cancelled"
    return row.generation == lease.generation and row.status == Status.CANCELLED


def _is_of(row: FlightSnapshot, settled: Settled) -> bool:
    """Tell whether a row has this end of its generation, and not one by hand or by the sweep.

    A release is retryable, and what is cancelled by hand is not; of a failure an operator may have changed that.
    """
    failure = settled.failure
    if row.status != settled.status or row.error_type != ("" if failure is None else failure.error_type):
        return False
    return settled.status is not Status.CANCELLED or row.retryable == (failure is not None and failure.retryable)


def ttl_of(settled: Settled, policy: StagePolicy) -> float:
    """Return for how long an end is replayed: a failure also until the provider wants to be asked again."""
    if settled.result is not None:
        return seconds(policy.result_ttl)
    return seconds(policy.failure_ttl) + (0.0 if settled.failure is None else settled.failure.retry_after)


def _facts(lease: Lease) -> dict[str, Any]:
    return {"stage": lease.key.stage, "flight_id": lease.flight_id, "generation": lease.generation}


def _released(lease: Lease, usage: Usage) -> Settled:
    """Return the end of a flight whose call did not end."""
    return Settled(lease.flight_id, lease.generation, Status.CANCELLED, failure=_DETACHED, usage=usage)
