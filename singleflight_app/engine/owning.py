"""The owner's part: run the function under its lease, and give its end to who asked.

No connection and no transaction of the app is held while the function runs. Once it returned, its answer
reaches the callers whatever else breaks.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from singleflight_app.domain.exceptions import seconds
from singleflight_app.domain.flight import BY_HAND, NO_USAGE, Settled
from singleflight_app.domain.records import FlightSnapshot, Ticket
from singleflight_app.domain.states import Layer, Role, Status
from singleflight_app.engine.call import Asked, Call, Ended, Granted, Verdict
from singleflight_app.engine.calling import End, make_call
from singleflight_app.engine.context import FlightContext
from singleflight_app.engine.guard import Breakers
from singleflight_app.engine.heartbeat import Lease
from singleflight_app.engine.limits import Slot
from singleflight_app.engine.ports import Tracing
from singleflight_app.engine.replaying import copy_of
from singleflight_app.engine.rim import Steps
from singleflight_app.engine.settling import Settling, is_cancelled
from singleflight_app.telemetry.signals import announce, flight_degraded

R = TypeVar("R")


class Owning:
    """Runs the generations of one process."""

    def __init__(
        self,
        settling: Settling,
        *,
        breakers: Breakers,
        owner: str,
        on_gone: Callable[[Asked[Any]], object],
        tracing: Tracing,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settling, self._breakers, self._owner = settling, breakers, owner
        self._on_gone, self._tracing, self._monotonic = on_gone, tracing, monotonic

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
            self._settling.heartbeat.hold(lease)
            end = await _made(asked, context, lease, slot)
            end = await self._settling.put_out(asked, lease, end)
        except BaseException as exc:
            asked.span.end(exc)
            self._settling.let_go(lease, context.usage, may_wait=not asked.rim.is_on_loop)
            raise
        if not lease.is_over:  # else it hung, which is recorded, or the error tells nothing of the provider
            self._breakers.record(call.key.stage, call.policy, end.error)
        if end.is_interrupted and lease.is_timed_out:
            return Ended(end.shared, Role.OWNER, Layer.CALL, end.error)  # the heartbeat settled it
        lease.seconds_run = self._monotonic() - began
        verdict = await self._concluded(asked, lease, end, ticket)
        if verdict.is_refused:
            return await self._refused(call, lease, end, verdict.row, follow_newer)
        shared = replace(end.shared, superseded=True) if verdict.is_detached else end.shared
        return Ended(shared, Role.OWNER, Layer.CALL, end.error, end.copy, verdict.is_forgotten)

    async def _concluded(self, asked: Asked[R], lease: Lease, end: End[R], ticket: Ticket | None) -> Verdict:
        with self._tracing.settle(lease.key.stage) as span:
            span.tell(role=Role.OWNER, flight_id=lease.flight_id, generation=lease.generation)
            conclude = partial(self._settling.conclude, asked, lease, end, ticket=ticket)
            verdict = await asked.rim.do(conclude)
            span.tell(status=end.written.status if verdict.is_stored else verdict.refusal)
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
        with (
            self._tracing.call(call.key.stage) as span,
            asked.rim.alarm(seconds(call.policy.execution_timeout), end_hung),
        ):
            span.tell(role=Role.OWNER, layer=Layer.CALL)
            asked.flight.trace_parent = span.trace_parent
            end = await make_call(call, context, asked.rim, slot, span=span)
            span.tell(status=end.written.status)
            span.end(end.error)
        if not context.interruption.is_requested:
            self._breakers.record(call.key.stage, call.policy, end.error)
        return Ended(replace(end.shared, degraded=True), Role.OWNER, Layer.CALL, end.error, end.copy)

    def release_unused(self, call: Call[Any], granted: Granted) -> None:
        """Let go of a grant whose caller is gone before it could begin the call."""
        self._settling.give_up(_lease_of(call, granted), NO_USAGE)

    def _lease(self, asked: Asked[R], granted: Granted, slot: Slot) -> Lease:
        call, flight = asked.call, asked.flight

        def end_hung(lease: Lease) -> None:
            self._breakers.record(call.key.stage, call.policy, TimeoutError())
            self._settling.end_hung(lease, asked)

        def end_gone(lease: Lease) -> None:
            self._settling.give_up(lease, NO_USAGE)
            slot.end()
            self._on_gone(asked)

        lease = _lease_of(call, granted)
        flight.flight_id, flight.generation = lease.flight_id, lease.generation
        flight.trace_parent = asked.span.trace_parent
        lease.run_until = self._monotonic() + seconds(call.policy.execution_timeout)
        lease.on_timeout, lease.on_lost, lease.on_gone = end_hung, partial(_end_line, asked, lease), end_gone
        return lease

    async def _refused(
        self,
        call: Call[R],
        lease: Lease,
        end: End[R],
        row: FlightSnapshot | None,
        follow_newer: Callable[[], Steps[Settled | None]],
    ) -> Ended[R]:
        """Return what the callers of a fenced owner get (rule R3)."""
        own = Ended(end.shared, Role.OWNER, Layer.CALL, end.error, end.copy)
        if row is None and not lease.was_ended:
            return own
        if is_cancelled(row, lease):
            return replace(own, settled=_cancelled(lease), error=None, copy=None)
        if row is not None and not lease.is_timed_out and row.generation > lease.generation:
            newer = await follow_newer()
            copy = None if newer is None else copy_of(call, newer)
            if newer is not None and copy is not None:
                return Ended(newer, Role.FOLLOWER, Layer.DATABASE, copy=copy)
        return replace(own, settled=replace(end.shared, superseded=True))


async def _made(asked: Asked[R], context: FlightContext, lease: Lease, slot: Slot) -> End[R]:
    """Make the call, and end the span that it is."""
    lease.has_begun = True
    on_value = partial(_allow_storing, lease)
    end = await make_call(asked.call, context, asked.rim, slot, span=asked.span, on_value=on_value)
    asked.span.tell(status=Status.TIMED_OUT if lease.is_timed_out else end.written.status)
    asked.span.end(end.error)
    return end


def _end_line(asked: Asked[Any], lease: Lease, reason: str) -> None:
    """Tell those in line of a lost lease what to do: of a cancelled flight the end is known, else they ask again."""
    if reason == "cancelled":
        asked.flight.cancel(_cancelled(lease))
    else:
        asked.flight.retire()


def _cancelled(lease: Lease) -> Settled:
    return Settled(lease.flight_id, lease.generation, Status.CANCELLED, failure=BY_HAND)


def _allow_storing(lease: Lease) -> None:
    """Give a value as much time again to be packed and stored: it is paid for, and no call hangs any more."""
    lease.run_until += seconds(lease.policy.execution_timeout)


def _lease_of(call: Call[Any], granted: Granted) -> Lease:
    row = granted.row
    return Lease(call.key, call.policy, row.flight_id, row.generation, granted.sent_at, is_background=row.has_arguments)
