"""The leader's turn: claim, then call, replay or follow, until the key has an outcome.

A follower keeps the id and generation that it saw. It takes over an expired lease only here, in its own
thread and under its own wait budget; the threads that wake it decide nothing.
The whole loop is here, so that each way out of it can be seen at once.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from singleflight_app.domain.exceptions import CoordinationUnavailable, ResultUnreadable, UnknownEnvelope, seconds
from singleflight_app.domain.flight import NO_RESULT, Settled
from singleflight_app.domain.policy import StagePolicy
from singleflight_app.domain.records import FlightSnapshot, Full, Ticket
from singleflight_app.domain.spans import NO_SPAN
from singleflight_app.domain.states import Layer, Role, Status
from singleflight_app.engine.call import Asked, CallerLeft, Ended, Follow, Found, Granted
from singleflight_app.engine.claiming import Claiming, Step
from singleflight_app.engine.following import Following, Watch
from singleflight_app.engine.large import LargeResults
from singleflight_app.engine.limits import Slot
from singleflight_app.engine.owning import Owning
from singleflight_app.engine.ports import FlightStore, Tracing
from singleflight_app.engine.replaying import Replaying, opened
from singleflight_app.engine.rim import Bell, Rim
from singleflight_app.engine.room import Room
from singleflight_app.engine.settling import Settling
from singleflight_app.engine.tracing import tell_claim, tell_followed

R = TypeVar("R")

_OUTAGE_PAUSE = 0.5  #: seconds until an unreachable database is asked again
_RIVAL_PAUSE = 0.05  #: seconds until a rival's claim, committed but not visible yet, is looked for again


class Leading:
    """Leads keys of one process to their outcome."""

    def __init__(
        self,
        store: FlightStore,
        replaying: Replaying,
        following: Following,
        *,
        room: Room,
        claiming: Claiming,
        owning: Owning,
        settling: Settling,
        large: LargeResults,
        on_gone: Callable[[Asked[Any]], object],
        may_degrade: bool,
        tracing: Tracing,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._replaying, self._following = store, replaying, following
        self._room, self._claiming, self._owning, self._settling = room, claiming, owning, settling
        self._large, self._tracing = large, tracing
        self._on_gone, self._may_degrade, self._monotonic = on_gone, may_degrade, monotonic

    async def lead(self, asked: Asked[R]) -> Ended[R]:
        """Return the key's outcome; an unreadable stored result is dropped and led anew, once.

        One that this process can't open is passed over, and so is the next one, until the wait budget is over.
        """
        call = asked.call
        asked.mark()
        near = await self._replaying.from_cache(asked, self._monotonic())
        if isinstance(near, Ended):
            return near
        pending_timeout = seconds(call.policy.pending_timeout)
        gone = partial(self._on_gone, asked)
        with self._following.watch(call.key, asked.bell, pending_timeout=pending_timeout, on_gone=gone) as watch:
            has_dropped = has_passed = False
            while True:
                ended = await self._until_end(asked, watch, near)
                if ended.role is Role.OWNER or ended.settled.result is None:
                    return ended
                try:
                    settled = await self._large.fetched(asked.rim, ended.settled, within=self._left(asked))
                    copy = (opened(call, settled.result or NO_RESULT),)
                except UnknownEnvelope:
                    if call.pending is not None or (has_passed and asked.deadline <= self._monotonic()):
                        raise
                    has_passed = True
                    self._replaying.pass_over(asked, ended.settled)
                except ResultUnreadable as exc:
                    if call.pending is not None:
                        raise  # the flight that the worker came for has ended, and asks for nothing more
                    if has_dropped:
                        problem = "two stored results in a row could not be read; look at its return type"
                        raise ResultUnreadable(f"{call.key}: {problem}") from exc
                    has_dropped = True
                    await asked.rim.do(partial(self._replaying.drop, call, ended.settled))
                else:
                    return replace(ended, settled=settled, copy=copy)

    async def first_end(
        self, flight_id: int, rim: Rim, bell: Bell, watch: Watch, deadline: float
    ) -> FlightSnapshot | None:
        """Wait, without ever taking over, until the row is settled; None: it is gone. TimeoutError at the deadline."""
        with self._tracing.wait(watch.key.stage) as span:
            row = await self._first_end(flight_id, rim, bell, watch, deadline)
            if row is not None:
                tell_followed(span, row)
                span.tell(status=row.status)
            return row

    async def _first_end(
        self, flight_id: int, rim: Rim, bell: Bell, watch: Watch, deadline: float
    ) -> FlightSnapshot | None:
        while True:
            try:
                row = await rim.do(partial(self._store.read, flight_id))
            except CoordinationUnavailable:
                if deadline <= self._monotonic():
                    raise
                await bell.wait(min(_OUTAGE_PAUSE, deadline - self._monotonic()))
                continue
            if row is None or row.is_settled:
                return row
            with self._following.following(watch, flight_id, row.generation, row.lease_remaining):
                if not await bell.wait(deadline - self._monotonic()):
                    raise TimeoutError

    async def _until_end(self, asked: Asked[R], watch: Watch, ticket: Ticket | None) -> Ended[R]:
        has_followed = asked.flight.flight_id is not None  # by an earlier leader of this process
        with ExitStack() as line:
            while True:
                step = await self._claimed(asked, watch, ticket, line, has_followed=has_followed)
                if isinstance(step, Ended):
                    return step
                if isinstance(step, Full):
                    await self._room.wait(asked, step, line)
                if isinstance(step, Follow):
                    has_followed = has_followed or step.row is not None
                    row = await self._followed(asked, step, watch)
                    if row is not None:
                        return Ended(row.settled(), Role.FOLLOWER, Layer.DATABASE, is_forgotten=row.forgotten)

    async def _claimed(
        self, asked: Asked[R], watch: Watch, ticket: Ticket | None, line: ExitStack, *, has_followed: bool
    ) -> Ended[R] | Full | Follow:
        """Claim, and come to an end by a call or a replay; or say what must be waited for."""
        if asked.has_left:
            raise CallerLeft
        slot, no_room = self._room.slot(asked.call)
        try:
            step = await self._step(asked, no_room, has_followed=has_followed)
            if not isinstance(step, Full):
                self._room.leave(asked, line)
            if isinstance(step, Granted):
                return await self._own(asked, step, slot, watch, ticket)
            if step is None:
                return await self._degraded(asked, slot)
        finally:
            slot.end_unless_running()
            asked.span.end()
        if isinstance(step, Found):
            with suppress(UnknownEnvelope):  # it is met again where it is to be opened
                step = replace(
                    step, settled=await self._large.fetched(asked.rim, step.settled, within=self._left(asked))
                )
            facts = {"remaining": step.remaining, "as_of": step.read_at}
            self._replaying.keep(asked.call, step.settled, ticket=ticket, **facts)
            return Ended(step.settled, Role.REPLAY, Layer.DATABASE)
        return step

    async def _sent(self, asked: Asked[R], no_room: Full | None, *, undo: Callable[[Step], object]) -> Step:
        """Send the claim, in a span that goes on as the call's if it is granted: the row tells it to followers."""
        span = asked.span = self._tracing.claim(asked.call.key.stage)
        asked.mark()
        try:
            step = await asked.rim.do(partial(self._claiming.claim, asked, no_room=no_room), undo=undo)
        except BaseException as exc:
            span.end(exc)
            raise
        if span is not NO_SPAN:
            tell_claim(span, step)
        return step

    async def _step(self, asked: Asked[R], no_room: Full | None, *, has_followed: bool) -> Step | None:
        """Claim; None: the database is out of reach, hybrid mode may call without it, and there is room for that."""
        call = asked.call
        asked_before = asked.flight.asked

        def release(step: Step) -> None:
            if isinstance(step, Granted):
                self._owning.release_unused(call, step)

        try:
            step = await self._sent(asked, no_room, undo=release)
        except CoordinationUnavailable as exc:
            if has_followed:
                return Follow(None)  # an owner may be running it: a call now could be the second one
            if self._may_degrade and exc.is_outage and call.pending is None:
                return no_room
            raise
        if asked.is_fresh and (isinstance(step, Granted) or (isinstance(step, Follow) and _is_yet_to_begin(step))):
            # What comes begins after all who asked before this statement: it answers them too.
            asked.flight.mark(asked_before)
        return step

    async def _degraded(self, asked: Asked[R], slot: Slot) -> Ended[R]:
        """Answer without the database: with an end of this process that it could not take yet, or else a call."""
        unsettled = self._settling.heartbeat.unsettled(asked.call.key.digest)
        if unsettled is not None and unsettled.result is not None and not asked.is_fresh:
            ended: Ended[R] = Ended(unsettled, Role.REPLAY, Layer.PROCESS)
        else:
            asked_before = asked.flight.asked
            ended = await self._owning.run_degraded(asked, slot)
            if asked.is_fresh:
                asked.flight.mark(asked_before)
        asked.mark()
        return ended

    async def _followed(self, asked: Asked[R], follow: Follow, watch: Watch) -> FlightSnapshot | None:
        """Wait as `_follow` does, in a span that points to the call."""
        if follow.row is None:
            return await self._follow(asked, follow, watch)
        with self._tracing.wait(asked.call.key.stage) as span:
            tell_followed(span, follow.row)
            row = await self._follow(asked, follow, watch)
            if row is not None:
                span.tell(status=row.status)
            return row

    async def _follow(self, asked: Asked[R], follow: Follow, watch: Watch) -> FlightSnapshot | None:
        """Wait for the end of the generation that was seen; None: it is no answer, claim again."""
        row = follow.row
        if row is None:
            await self._pause(asked)
            return None
        asked.flight.flight_id, asked.flight.generation = row.flight_id, row.generation
        asked.flight.trace_parent = row.trace_parent
        with self._following.following(watch, row.flight_id, row.generation, row.lease_remaining):
            while await asked.bell.wait(asked.deadline - self._monotonic()):
                if asked.has_left:
                    raise CallerLeft
                by, asked_before = watch.take_waker(), asked.flight.asked
                asked.mark()
                try:
                    now = await asked.rim.do(partial(self._store.read, row.flight_id))
                except CoordinationUnavailable:
                    continue  # the next poll wakes again; the wait budget bounds an outage
                if now is None or now.generation != row.generation:
                    return None
                if asked.is_fresh and _is_yet_to_begin(replace(follow, row=now)):
                    asked.flight.mark(asked_before)
                if now.is_settled:
                    self._following.announce_end(watch, by)
                    return None if follow.waits_out or _is_released(now) else now
                if _is_abandoned(now, asked.call.policy):
                    return None
        raise asked.still_running(self._monotonic())

    def _left(self, asked: Asked[R]) -> float:
        return asked.deadline - self._monotonic()

    async def _pause(self, asked: Asked[R]) -> None:
        left = self._left(asked)
        if left <= 0:
            raise asked.still_running(self._monotonic())
        await asked.bell.wait(min(_RIVAL_PAUSE, left))

    async def _own(
        self, asked: Asked[R], granted: Granted, slot: Slot, watch: Watch, ticket: Ticket | None
    ) -> Ended[R]:
        async def follow_newer() -> Settled | None:
            deadline = self._monotonic() + asked.call.wait_timeout
            try:
                row = await self.first_end(granted.row.flight_id, asked.rim, asked.bell, watch, deadline)
                within = deadline - self._monotonic()
                return None if row is None else await self._large.fetched(asked.rim, row.settled(), within=within)
            except (TimeoutError, CoordinationUnavailable, UnknownEnvelope):
                return None

        if asked.is_fresh:
            ticket = await asked.rim.do(
                partial(self._replaying.ticket, asked.call),
                undo=lambda _: self._owning.release_unused(asked.call, granted),
            )
        return await self._owning.own(asked, granted, slot, ticket=ticket, follow_newer=follow_newer)


def _is_yet_to_begin(follow: Follow) -> bool:
    """Tell a fresh caller that the row shows nothing yet that could answer it."""
    return follow.waits_out or (follow.row is not None and follow.row.pending_age is not None)


def _is_abandoned(row: FlightSnapshot, policy: StagePolicy) -> bool:
    """Its owner's lease is over, or no worker came for it in time."""
    if row.pending_age is not None:
        return row.pending_age >= seconds(policy.pending_timeout)
    return row.lease_remaining is not None and row.lease_remaining <= 0


def _is_released(row: FlightSnapshot) -> bool:
    """Its owner left without an end: whoever waits takes it at once."""
    return row.status == Status.CANCELLED and row.retryable
