"""The leader's turn: claim, then call, replay or follow, until the key has an outcome.

A follower keeps the id and generation that it saw. It takes over an expired lease only here, in its own
thread and under its own wait budget; the threads that wake it decide nothing.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from singleflight_app.domain.exceptions import (
    CoordinationUnavailable,
    Overloaded,
    ResultUnreadable,
    seconds,
)
from singleflight_app.domain.flight import Settled
from singleflight_app.domain.policy import StagePolicy
from singleflight_app.domain.records import FlightSnapshot, Full, Kept, Looked
from singleflight_app.domain.states import Layer, Role, Status
from singleflight_app.engine.call import Asked, Call, CallerLeft, Ended, Follow, Found, Granted
from singleflight_app.engine.claiming import Claiming, Step
from singleflight_app.engine.following import Following, Watch
from singleflight_app.engine.guard import Breakers
from singleflight_app.engine.limits import Limits, Slot, free_slot
from singleflight_app.engine.owning import Owning
from singleflight_app.engine.ports import FlightStore, Memory, ReplayCache
from singleflight_app.engine.rim import Bell, Rim
from singleflight_app.engine.spreading import Spreading
from singleflight_app.telemetry.signals import announce, caller_refused, result_dropped

R = TypeVar("R")

_OUTAGE_PAUSE = 0.5  #: seconds until an unreachable database is asked again
_RIVAL_PAUSE = 0.05  #: seconds until a rival's claim, committed but not visible yet, is looked for again


class Leading:
    """Leads keys of one process to their outcome."""

    def __init__(
        self,
        store: FlightStore,
        cache: ReplayCache,
        memory: Memory,
        following: Following,
        *,
        claiming: Claiming,
        owning: Owning,
        spreading: Spreading,
        limits: Limits,
        breakers: Breakers,
        on_gone: Callable[[Asked[Any]], object],
        may_degrade: bool,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._cache, self._memory = store, cache, memory
        self._following, self._claiming, self._owning = following, claiming, owning
        self._spreading, self._limits, self._breakers = spreading, limits, breakers
        self._on_gone, self._may_degrade, self._monotonic = on_gone, may_degrade, monotonic

    async def lead(self, asked: Asked[R]) -> Ended[R]:
        """Return the key's outcome; an unreadable stored result is dropped and led anew, once."""
        call = asked.call
        asked_at = self._monotonic()
        asked.mark()
        looked = Looked()
        if call.policy.replay_cache and call.may_replay:
            looked = await asked.rim.do(partial(self._cache.look, call.key.digest))
        if looked.settled is not None and (copy := copy_of(call, looked.settled)) is not None:
            self._remember(call, looked.settled, asked_at, looked.remaining)
            return Ended(looked.settled, Role.REPLAY, Layer.REDIS, copy=copy)
        pending_timeout = seconds(call.policy.pending_timeout)
        gone = partial(self._on_gone, asked)
        with self._following.watch(call.key, asked.bell, pending_timeout=pending_timeout, on_gone=gone) as watch:
            for _ in range(2):
                ended = await self._until_end(asked, watch, looked)
                if ended.role is Role.OWNER or ended.settled.result is None:
                    return ended
                if (copy := copy_of(call, ended.settled)) is not None:
                    return Ended(ended.settled, ended.role, ended.layer, copy=copy, is_forgotten=ended.is_forgotten)
                await asked.rim.do(partial(self._drop, call, ended.settled))
        raise ResultUnreadable(f"{call.key}: two stored results in a row could not be read; look at its return type")

    async def first_end(
        self, flight_id: int, rim: Rim, bell: Bell, watch: Watch, deadline: float
    ) -> FlightSnapshot | None:
        """Wait, without ever taking over, until the row is settled; None: it is gone. TimeoutError at the deadline."""
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

    async def _until_end(self, asked: Asked[R], watch: Watch, looked: Looked) -> Ended[R]:
        has_followed = asked.flight.flight_id is not None  # by an earlier leader of this process
        with ExitStack() as line:
            while True:
                step = await self._claimed(asked, watch, looked, line, has_followed=has_followed)
                if isinstance(step, Ended):
                    return step
                if isinstance(step, Full):
                    await self._wait_for_room(asked, step, line)
                if isinstance(step, Follow):
                    has_followed = has_followed or step.row is not None
                    row = await self._follow(asked, step, watch)
                    if row is not None:
                        return Ended(row.settled(), Role.FOLLOWER, Layer.DATABASE, is_forgotten=row.forgotten)

    async def _claimed(
        self, asked: Asked[R], watch: Watch, looked: Looked, line: ExitStack, *, has_followed: bool
    ) -> Ended[R] | Full | Follow:
        """Claim, and come to an end by a call or a replay; or say what must be waited for."""
        if asked.has_left:
            raise CallerLeft
        slot, no_room = self._room_for(asked.call)
        try:
            step = await self._step(asked, no_room, has_followed=has_followed)
            if not isinstance(step, Full) and asked.wait_for is not None:
                line.close()  # it needs no room, or has it: the next in line is rung from now on
                asked.wait_for = None
                self._limits.stir(asked.call.key.stage)
            if isinstance(step, Granted):
                return await self._own(asked, step, slot, watch, looked)
            if step is None:
                return await self._degraded(asked, slot)
        finally:
            slot.end_unless_running()
        if isinstance(step, Found):
            self._keep(asked.call, step, looked)
            return Ended(step.settled, Role.REPLAY, Layer.DATABASE)
        return step

    def _room_for(self, call: Call[R]) -> tuple[Slot, Full | None]:
        """Return this process's room for one more call, or why there is none."""
        stage, policy = call.key.stage, call.policy
        room = self._limits.slot(stage, policy)
        if isinstance(room, Full):
            return free_slot(), room
        return room, self._breakers.refusal(stage, policy, room)

    async def _wait_for_room(self, asked: Asked[R], full: Full, line: ExitStack) -> None:
        """Wait until a call of the stage may have ended; Overloaded when the policy or the budget says no."""
        call, policy = asked.call, asked.call.policy
        # A worker comes for a flight that nobody else runs: it may wait as long as a caller.
        deadline = asked.deadline if call.pending is None else asked.started + policy.wait
        left = deadline - self._monotonic()
        is_rejected = policy.on_saturated == "reject" and not full.is_brief
        if full.is_final or is_rejected or left <= 0:
            announce(caller_refused, stage=call.key.stage, reason=full.limit)
            raise Overloaded(full.reason, full.retry_after)
        if asked.wait_for is None:
            # From now on it is rung; a place that came free just before has rung nobody, so it asks again at once.
            asked.wait_for = line.enter_context(self._limits.waiting(call.key.stage, asked.bell))
            line.enter_context(self._following.listening(call.key.stage))
            asked.wait_for(full.limit)
        else:
            asked.wait_for(full.limit)
            await asked.bell.wait(min(left, self._following.pause()))

    async def _step(self, asked: Asked[R], no_room: Full | None, *, has_followed: bool) -> Step | None:
        """Claim; None: the database is out of reach and hybrid mode may call without it."""
        call = asked.call
        asked_before = asked.flight.asked

        def release(step: Step) -> None:
            if isinstance(step, Granted):
                self._owning.release_unused(call.key, call.policy, step)

        asked.mark()
        try:
            step = await asked.rim.do(partial(self._claiming.claim, asked, no_room=no_room), undo=release)
        except CoordinationUnavailable as exc:
            if has_followed:
                return Follow(None)  # an owner may be running it: a call now could be the second one
            if self._may_degrade and exc.is_outage and call.pending is None:
                return no_room
            raise
        if call.is_fresh and (isinstance(step, Granted) or (isinstance(step, Follow) and _is_yet_to_begin(step))):
            # What comes begins after all who asked before this statement: it answers them too.
            asked.flight.mark(asked_before)
        return step

    async def _degraded(self, asked: Asked[R], slot: Slot) -> Ended[R]:
        """Answer without the database: with an end of this process that it could not take yet, or else a call."""
        unsettled = self._owning.heartbeat.unsettled(asked.call.key.digest)
        if unsettled is not None and unsettled.result is not None and not asked.call.is_fresh:
            ended: Ended[R] = Ended(unsettled, Role.REPLAY, Layer.PROCESS)
        else:
            asked_before = asked.flight.asked
            ended = await self._owning.run_degraded(asked, slot)
            if asked.call.is_fresh:
                asked.flight.mark(asked_before)
        asked.mark()
        return ended

    async def _follow(self, asked: Asked[R], follow: Follow, watch: Watch) -> FlightSnapshot | None:
        """Wait for the end of the generation that was seen; None: it is no answer, claim again."""
        row = follow.row
        if row is None:
            await self._pause(asked)
            return None
        asked.flight.flight_id, asked.flight.generation = row.flight_id, row.generation
        with self._following.following(watch, row.flight_id, row.generation, row.lease_remaining):
            while await asked.bell.wait(asked.deadline - self._monotonic()):
                if asked.has_left:
                    raise CallerLeft
                asked_before = asked.flight.asked
                asked.mark()
                try:
                    now = await asked.rim.do(partial(self._store.read, row.flight_id))
                except CoordinationUnavailable:
                    continue  # the next poll wakes again; the wait budget bounds an outage
                if now is None or now.generation != row.generation:
                    return None
                if asked.call.is_fresh and _is_yet_to_begin(replace(follow, row=now)):
                    asked.flight.mark(asked_before)
                if now.is_settled:
                    return None if follow.waits_out or _is_released(now) else now
                if _is_abandoned(now, asked.call.policy):
                    return None
        raise asked.still_running(self._monotonic())

    async def _pause(self, asked: Asked[R]) -> None:
        left = asked.deadline - self._monotonic()
        if left <= 0:
            raise asked.still_running(self._monotonic())
        await asked.bell.wait(min(_RIVAL_PAUSE, left))

    async def _own(self, asked: Asked[R], granted: Granted, slot: Slot, watch: Watch, looked: Looked) -> Ended[R]:
        async def follow_newer() -> Settled | None:
            deadline = self._monotonic() + asked.call.wait_timeout
            try:
                row = await self.first_end(granted.row.flight_id, asked.rim, asked.bell, watch, deadline)
            except (TimeoutError, CoordinationUnavailable):
                return None
            return None if row is None else row.settled()

        if asked.call.is_fresh and asked.call.policy.replay_cache:
            # It asked for no stored outcome, and is allowed to store its own, now that the floor is raised.
            looked = await asked.rim.do(
                partial(self._cache.look, asked.call.key.digest),
                undo=lambda _: self._owning.release_unused(asked.call.key, asked.call.policy, granted),
            )
        return await self._owning.own(asked, granted, slot, ticket=looked.ticket, follow_newer=follow_newer)

    def _keep(self, call: Call[R], found: Found, looked: Looked) -> None:
        """Put a replayed row nearer to the next caller."""
        if found.settled.status is not Status.SUCCEEDED:
            return
        self._remember(call, found.settled, found.read_at, found.remaining)
        if call.policy.replay_cache:
            kept = Kept(call.key.digest, found.settled, looked.ticket, found.remaining, found.read_at)
            self._spreading.keep(kept)

    def _remember(self, call: Call[R], settled: Settled, read_at: float, remaining: float) -> None:
        if call.policy.replay_memory:
            until = read_at + min(seconds(call.policy.replay_memory_ttl), remaining)
            self._memory.keep(call.key.digest, settled, until=until)

    def _drop(self, call: Call[R], settled: Settled) -> None:
        """Forget an unreadable result, this generation and no other."""
        # The next claim says if the database is out of reach; the grant over this row raises Redis's floor again.
        with suppress(CoordinationUnavailable):
            dropped = self._store.forget(flight_id=settled.flight_id, generation=settled.generation)
            if dropped is not None:
                self._memory.raise_floor(call.key.digest, dropped.generation)
                self._cache.raise_floor(call.key.digest, dropped.generation)
        announce(
            result_dropped,
            stage=call.key.stage,
            flight_id=settled.flight_id,
            generation=settled.generation,
            reason="unreadable",
        )


def copy_of(call: Call[R], settled: Settled) -> tuple[R] | None:
    """Return the decoded value in a tuple of one; None: it can't be read."""
    if settled.result is None:
        return None
    try:
        return (call.codec.decode(settled.result),)
    except ResultUnreadable:
        return None


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
