"""The owner's part: run the function under its lease, write its end once, and hand it on.

No connection and no transaction of the app is held while the function runs. Once it returned, its answer
reaches the callers whatever else breaks.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from singleflight_app.domain.exceptions import CoordinationUnavailable, seconds
from singleflight_app.domain.flight import NO_USAGE, Failure, Settled, Usage
from singleflight_app.domain.keys import FlightKey
from singleflight_app.domain.policy import StagePolicy
from singleflight_app.domain.records import FlightSnapshot, Hint, Kept, Ticket
from singleflight_app.domain.states import Layer, Role, Status
from singleflight_app.engine.call import Asked, Call, Ended, Granted, Verdict
from singleflight_app.engine.calling import End, make_call
from singleflight_app.engine.context import FlightContext
from singleflight_app.engine.failures import timed_out
from singleflight_app.engine.guard import Breakers
from singleflight_app.engine.heartbeat import Heartbeat, Lease
from singleflight_app.engine.limits import Slot
from singleflight_app.engine.local import Shared
from singleflight_app.engine.ports import FlightStore, Memory
from singleflight_app.engine.rim import Steps
from singleflight_app.engine.spreading import Spreading
from singleflight_app.telemetry.signals import (
    announce,
    coordination_failed,
    flight_degraded,
    flight_fenced,
    flight_settled,
)

logger = logging.getLogger("singleflight_app")

R = TypeVar("R")

_UNSTORABLE = Failure("singleflight_app.ResultUnreadable", "its end could not be stored", retryable=False)
_DETACHED = Failure("singleflight_app.FlightCancelled", "its owner left before the call ended", retryable=True)


class Owning:
    """Runs and settles the generations of one process."""

    def __init__(
        self,
        store: FlightStore,
        memory: Memory,
        spreading: Spreading,
        *,
        breakers: Breakers,
        owner: str,
        on_end: Callable[[FlightKey], object],
        on_gone: Callable[[Asked[Any]], object],
        limits: tuple[int, int],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._memory, self._spreading = store, memory, spreading
        self._breakers, self._owner, self._monotonic = breakers, owner, monotonic
        self._on_end, self._on_gone = on_end, on_gone
        self.heartbeat = Heartbeat(
            store, owner=owner, settle_late=self._settle_late, limits=limits, monotonic=monotonic
        )

    async def own(
        self,
        asked: Asked[R],
        granted: Granted,
        slot: Slot,
        *,
        ticket: Ticket | None,
        follow_newer: Callable[[], Steps[Settled | None]],
    ) -> Ended[R]:
        """Run the call under its lease and settle it; a BaseException releases the flight and goes on up.

        `follow_newer` waits for the outcome of whoever fenced this owner out; None: none came.
        """
        call, lease = asked.call, self._lease(asked, granted, slot)
        context = FlightContext(
            call.key,
            owner=self._owner,
            lease=lease,
            attempt=granted.row.attempts,
            is_in_doubt=lambda: lease.is_in_doubt(self._monotonic()),
        )
        began = self._monotonic()
        try:
            self.heartbeat.hold(lease)
            end = await make_call(call, context, asked.rim, slot)
        except BaseException:
            # A thread may end its process next, so it writes the release itself; a loop may not wait for it.
            if asked.rim.is_on_loop or not self._release_now(lease, context.usage):
                self._give_up(lease, context.usage)
            raise
        if not lease.is_over:  # else it hung, which is recorded, or the error tells nothing of the provider
            self._breakers.record(call.key.stage, call.policy, end.error)
        if end.is_interrupted and lease.is_timed_out:
            return Ended(end.shared, Role.OWNER, Layer.CALL, end.error)  # the heartbeat settled it
        ran = self._monotonic() - began
        verdict = await asked.rim.do(partial(self._conclude, asked, lease, end, ticket=ticket, seconds_run=ran))
        if verdict.is_refused:
            return await self._refused(lease, end, verdict.row, follow_newer)
        shared = replace(end.shared, superseded=True) if verdict.is_detached else end.shared
        return Ended(shared, Role.OWNER, Layer.CALL, end.error, end.copy, verdict.is_forgotten)

    def _conclude(
        self, asked: Asked[R], lease: Lease, end: End[R], *, ticket: Ticket | None, seconds_run: float
    ) -> Verdict:
        """Write the end, once, and hand on what was stored."""
        asked.mark()
        sent_at = self._monotonic()
        try:
            verdict = self._settle(lease, end.written)
        except BaseException:
            self.heartbeat.release(lease)  # interrupted: the lease runs out by itself
            raise
        if verdict.is_refused:
            asked.flight.retire()
            self.heartbeat.release(lease)
            if verdict.row is not None:
                self._fence(lease, end.written)
        if verdict.is_stored:
            self.heartbeat.release(lease)
            self._announce_settled(lease, end.written, seconds_run)
            self._spread(asked.call, end.written, ticket, verdict, sent_at)
        return verdict

    async def run_degraded(self, asked: Asked[R], slot: Slot) -> Ended[R]:
        """Run the call without a generation, for hybrid mode with the database out of reach."""
        call = asked.call
        announce(flight_degraded, stage=call.key.stage)
        context = FlightContext(call.key, owner=self._owner, lease=None, attempt=1)

        def end_hung() -> None:
            self._breakers.record(call.key.stage, call.policy, TimeoutError())
            asked.flight.retire()
            context.interruption.request()

        # Without a lease there is no heartbeat to notice that the call hangs.
        alarm = threading.Timer(seconds(call.policy.execution_timeout), end_hung)
        alarm.daemon = True
        alarm.start()
        try:
            end = await make_call(call, context, asked.rim, slot)
        finally:
            alarm.cancel()
        if not context.interruption.is_requested:
            self._breakers.record(call.key.stage, call.policy, end.error)
        return Ended(replace(end.shared, degraded=True), Role.OWNER, Layer.CALL, end.error, end.copy)

    def release_unused(self, key: FlightKey, policy: StagePolicy, granted: Granted) -> None:
        """Let go of a grant whose caller is gone before it could begin the call."""
        lease = Lease(
            key=key,
            policy=policy,
            flight_id=granted.row.flight_id,
            generation=granted.row.generation,
            pid=os.getpid(),
            sent_at=granted.sent_at,
            run_until=float("inf"),
            on_timeout=lambda _: None,
            on_lost=lambda: None,
            on_gone=lambda _: None,
            is_background=granted.row.has_arguments,
        )
        self._give_up(lease, NO_USAGE)

    def release_all(self) -> None:
        """Let go of every lease at exit, so that others need not wait until it runs out."""
        for lease in self.heartbeat.held():
            self._release_now(lease, NO_USAGE)

    def _release_now(self, lease: Lease, usage: Usage) -> bool:
        """Write a release here and now; False: it could not be written. No beat may take it for a loss meanwhile."""
        if lease.pid != os.getpid():
            return True  # a forked child leaves its parent's call
        self.heartbeat.release(lease)
        if lease.late is None:
            if lease.is_over or lease.is_background:
                return True
            lease.late = _released(lease, usage)
        return self._settle_late(lease)

    def _lease(self, asked: Asked[R], granted: Granted, slot: Slot) -> Lease:
        call, flight = asked.call, asked.flight

        def end_hung(lease: Lease) -> None:
            self._breakers.record(call.key.stage, call.policy, TimeoutError())
            self._end_hung(lease, asked)

        def end_gone(lease: Lease) -> None:
            self._give_up(lease, NO_USAGE)
            slot.end()
            self._on_gone(asked)

        flight.flight_id, flight.generation = granted.row.flight_id, granted.row.generation
        return Lease(
            key=call.key,
            policy=call.policy,
            flight_id=granted.row.flight_id,
            generation=granted.row.generation,
            pid=os.getpid(),
            sent_at=granted.sent_at,
            run_until=self._monotonic() + seconds(call.policy.execution_timeout),
            on_timeout=end_hung,
            on_lost=flight.retire,
            on_gone=end_gone,
            is_background=granted.row.has_arguments,
        )

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
            self._settle_plainly(lease)
            return Verdict()

    def _settle_plainly(self, lease: Lease) -> None:
        """Leave a failure of plain values in place of an end that the row can't hold, so that the key is free."""
        end = Settled(lease.flight_id, lease.generation, Status.FAILED, failure=_UNSTORABLE)
        try:
            self._try_settle(lease, end)
        except Exception:
            logger.exception("the failure of %s could not be stored either; its lease runs out", lease.key)

    def _try_settle(self, lease: Lease, settled: Settled) -> Verdict:
        is_forgotten = self._store.settle(settled, owner=self._owner, ttl=_ttl(settled, lease.policy))
        if is_forgotten is not None:
            return Verdict(is_stored=True, is_forgotten=is_forgotten)
        row = self._store.read(lease.flight_id)
        if row is not None and row.generation == lease.generation and row.status == settled.status:
            return Verdict(is_stored=True, is_forgotten=row.forgotten)  # an earlier try's reply was lost
        return Verdict(is_refused=True, row=row)

    async def _refused(
        self,
        lease: Lease,
        end: End[R],
        row: FlightSnapshot | None,
        follow_newer: Callable[[], Steps[Settled | None]],
    ) -> Ended[R]:
        """Return what the callers of a fenced owner get (rule R3)."""
        own = Ended(end.shared, Role.OWNER, Layer.CALL, end.error, end.copy)
        if row is None:
            return own
        if row.generation == lease.generation and row.status == Status.CANCELLED:
            return replace(own, settled=row.settled(), error=None, copy=None)
        if not lease.is_timed_out and row.generation > lease.generation:
            newer = await follow_newer()
            if newer is not None and newer.status is Status.SUCCEEDED:
                return Ended(newer, Role.FOLLOWER, Layer.DATABASE)
        return replace(own, settled=replace(end.shared, superseded=True))

    def _fence(self, lease: Lease, settled: Settled) -> None:
        facts = {"stage": lease.key.stage, "flight_id": lease.flight_id, "generation": lease.generation}
        announce(flight_fenced, **facts, usage=settled.usage)
        try:
            self._store.record_fence(lease.flight_id, lease.generation, owner=self._owner)
        except CoordinationUnavailable as exc:
            announce(coordination_failed, component="settle", error=type(exc).__name__)

    def _settle_late(self, lease: Lease) -> bool:
        """Try an end again that could not be written; True when the database said stored or fenced."""
        if lease.late is None:
            return True
        try:
            verdict = self._try_settle(lease, lease.late)
        except CoordinationUnavailable:
            return False
        if verdict.is_stored:
            self._announce_settled(lease, lease.late, None)
            self._tell(lease.key, lease.generation)
        else:
            self._fence(lease, lease.late)
        return True

    def _end_hung(self, lease: Lease, asked: Asked[Any]) -> None:
        """Settle a call that outlived `execution_timeout`; it may go on, but it holds no key any more."""
        flight = asked.flight
        asked.mark()
        end = Settled(lease.flight_id, lease.generation, Status.TIMED_OUT, failure=timed_out(lease.policy))
        verdict = self._settle(lease, end)
        if not verdict.is_refused:
            flight.publish(Shared(end, Role.OWNER, Layer.CALL))
        flight.retire()
        if verdict.is_stored:
            self._announce_settled(lease, end, seconds(lease.policy.execution_timeout))
            self._tell(lease.key, lease.generation)

    def _give_up(self, lease: Lease, usage: Usage) -> None:
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

    def _spread(self, call: Call[R], settled: Settled, ticket: Ticket | None, verdict: Verdict, sent_at: float) -> None:
        """Hand a stored end on: replay memory now, hint and replay cache in their own thread."""
        digest, policy = call.key.digest, call.policy
        ttl = seconds(policy.result_ttl)
        self._tell(call.key, settled.generation or 0)
        if settled.result is None or verdict.is_forgotten:
            return
        if policy.replay_memory:
            self._memory.keep(digest, settled, until=sent_at + min(seconds(policy.replay_memory_ttl), ttl))
        if policy.replay_cache:
            self._spreading.keep(Kept(digest, settled, ticket, ttl, sent_at))

    def _tell(self, key: FlightKey, generation: int) -> None:
        """Wake who waits for the flight: here at once, elsewhere by a hint."""
        self._on_end(key)
        self._spreading.hint(key.stage, Hint(key.digest, generation))

    def _announce_settled(self, lease: Lease, settled: Settled, seconds_run: float | None) -> None:
        announce(
            flight_settled,
            stage=lease.key.stage,
            flight_id=lease.flight_id,
            generation=lease.generation,
            status=settled.status,
            seconds=seconds_run,
            usage=settled.usage,
        )


def _ttl(settled: Settled, policy: StagePolicy) -> float:
    """Return for how long an end is replayed: a failure also until the provider wants to be asked again."""
    if settled.result is not None:
        return seconds(policy.result_ttl)
    return seconds(policy.failure_ttl) + (0.0 if settled.failure is None else settled.failure.retry_after)


def _released(lease: Lease, usage: Usage) -> Settled:
    """Return the end of a flight whose call did not end."""
    return Settled(lease.flight_id, lease.generation, Status.CANCELLED, failure=_DETACHED, usage=usage)
