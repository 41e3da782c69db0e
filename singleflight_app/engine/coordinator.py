"""One caller's way through the layers, first answer wins: replay memory, this process, replay cache, the row.

Callers of one process that share a key share one claim and one wait (`local`); the one that leads claims
(`claiming`), calls (`owning`) or follows another process's owner (`leading`).
Long, since the sync and the async entry stand side by side: they differ in where they wait, and a reader compares them.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

from singleflight_app.domain.exceptions import (
    InvalidRequest,
    Overloaded,
    ResultUnreadable,
    wait_budget,
)
from singleflight_app.domain.flight import Outcome
from singleflight_app.domain.keys import FlightKey
from singleflight_app.domain.records import Forgotten
from singleflight_app.domain.spans import NO_TRACING
from singleflight_app.domain.states import Layer, Role, Status
from singleflight_app.engine import threads
from singleflight_app.engine.answering import ended_by, outcome_of
from singleflight_app.engine.call import Asked, Call, Ended
from singleflight_app.engine.claiming import Claiming
from singleflight_app.engine.context import refuse_reentry
from singleflight_app.engine.following import Following
from singleflight_app.engine.guard import Breakers
from singleflight_app.engine.handles import AsyncFlightHandle, FlightHandle
from singleflight_app.engine.large import LargeResults
from singleflight_app.engine.leading import Leading
from singleflight_app.engine.limits import Limits
from singleflight_app.engine.local import LocalFlight, LocalFlights, Shared, Turn
from singleflight_app.engine.looping import Around, LoopRim, Workers
from singleflight_app.engine.owning import Owning
from singleflight_app.engine.ports import FlightStore, Memory, Notifier, ReplayCache, Tracing
from singleflight_app.engine.replaying import Replaying
from singleflight_app.engine.rim import Rim, ThreadRim, finish
from singleflight_app.engine.room import Room
from singleflight_app.engine.settling import Settling
from singleflight_app.engine.spreading import Spreading
from singleflight_app.engine.tracing import tell_shared
from singleflight_app.telemetry.signals import announce, caller_refused, request_answered

R = TypeVar("R")

_SLOW_WORKERS = 16  #: threads in which async callers wait for the storage of large results


class Coordinator:
    """Folds the calls of one process into flights.

    Leases and stored outcomes count by `monotonic`, wait budgets by `waiting`: one clock, but in test mode.
    """

    def __init__(
        self,
        store: FlightStore,
        cache: ReplayCache,
        memory: Memory,
        notifier: Notifier,
        large: LargeResults,
        *,
        owner: str,
        may_degrade: bool,
        poll_interval: float,
        late_limits: tuple[int, int],
        workers: int,
        around: Around,
        tidy: Callable[[], object] = lambda: None,
        tracing: Tracing = NO_TRACING,
        monotonic: Callable[[], float] = time.monotonic,
        waiting: Callable[[], float] = time.monotonic,
        start: threads.Start = threads.start,
    ) -> None:
        self._around, self._large, self._tracing, self._monotonic = around, large, tracing, waiting
        self._local, self._limits = LocalFlights(), Limits()
        self._workers, self._slow = Workers(workers, tidy), Workers(_SLOW_WORKERS, tidy)
        self._breakers = Breakers()
        self._following = Following(
            store,
            notifier,
            poll_interval=poll_interval,
            on_hint=self._limits.stir,
            on_floor=memory.raise_floor,
            monotonic=waiting,
            start=start,
        )
        floor_seconds = memory.floor_seconds
        self._spreading = Spreading(cache, notifier, floor_seconds=floor_seconds, monotonic=monotonic, start=start)
        on_remembered = self._following.hear_floors
        self.replaying = Replaying(store, cache, memory, self._spreading, on_remembered=on_remembered)
        self._settling = self._settled(store, owner=owner, limits=late_limits, monotonic=monotonic, start=start)
        self._leading = self._led(store, owner=owner, may_degrade=may_degrade, monotonic=monotonic)

    def _settled(
        self,
        store: FlightStore,
        *,
        owner: str,
        limits: tuple[int, int],
        monotonic: Callable[[], float],
        start: threads.Start,
    ) -> Settling:
        return Settling(
            store,
            self.replaying,
            self._spreading,
            self._large,
            owner=owner,
            on_end=self._wake,
            limits=limits,
            monotonic=monotonic,
            start=start,
        )

    def _led(self, store: FlightStore, *, owner: str, may_degrade: bool, monotonic: Callable[[], float]) -> Leading:
        breakers, on_gone, on_replaced = self._breakers, self._forsake, self.replaying.replaced
        return Leading(
            store,
            self.replaying,
            self._following,
            room=Room(self._limits, breakers, self._following, monotonic=self._monotonic),
            claiming=Claiming(store, owner=owner, running=self.running, on_replaced=on_replaced, monotonic=monotonic),
            owning=Owning(
                self._settling,
                breakers=breakers,
                owner=owner,
                on_gone=on_gone,
                tracing=self._tracing,
                monotonic=monotonic,
            ),
            settling=self._settling,
            large=self._large,
            on_gone=on_gone,
            may_degrade=may_degrade,
            tracing=self._tracing,
            monotonic=self._monotonic,
        )

    def run(self, call: Call[R]) -> Outcome[R]:
        """Return the outcome of the call's key: called, shared or replayed. docs/protocol.md tells the whole way."""
        started = self._monotonic()
        refuse_reentry(call.key)
        ended = self.replaying.from_memory(call)
        if ended is None:
            ended = finish(self._asked(call, self.thread_rim(), started, partial(self.handle, call)))
        return self._answer(call, ended, started)

    async def arun(self, call: Call[R]) -> Outcome[R]:
        """Do what `run` does for a caller on an event loop, which it never holds up."""
        started = self._monotonic()
        refuse_reentry(call.key)
        ended = self.replaying.from_memory(call)
        if ended is None:
            ended = await self._asked(call, self.loop_rim(), started, partial(self.ahandle, call))
        return self._answer(call, ended, started)

    def thread_rim(self) -> ThreadRim:
        """Return the rim of a caller in a thread."""
        return ThreadRim()

    def loop_rim(self) -> LoopRim:
        """Return the rim of the running event loop."""
        return LoopRim(self._workers, self._slow, self._around)

    def handle(self, call: Call[R], flight_id: int | None, generation: int | None) -> FlightHandle[R]:
        """Return the way back to a flight of this call's key."""

        def wait(handle: FlightHandle[R], timeout: float | None) -> Outcome[R]:
            return outcome_of(call, *finish(self._wait_for(call, handle, timeout, self.thread_rim())))

        return FlightHandle(call.key.stage, flight_id, generation, wait)

    def ahandle(self, call: Call[R], flight_id: int | None, generation: int | None) -> AsyncFlightHandle[R]:
        """Return the way back to a flight of this call's key, for a caller on an event loop."""

        async def wait(handle: AsyncFlightHandle[R], timeout: float | None) -> Outcome[R]:
            return outcome_of(call, *await self._wait_for(call, handle, timeout, self.loop_rim()))

        return AsyncFlightHandle(call.key.stage, flight_id, generation, wait)

    def drain(self, timeout: float) -> None:
        """Return once hints and cache entries of what has ended are sent, or after `timeout` seconds."""
        self._spreading.drain(timeout)

    def running(self) -> set[int]:
        """Return the generations that this process runs or has yet to settle."""
        return self._settling.heartbeat.generations()

    def cancelled(self, moved: Forgotten) -> None:
        """Let those of this process know at once that a flight was cancelled by hand: its owner, and who waits."""
        self._settling.heartbeat.cancelled(moved.generation)
        self._following.wake(moved.digest)
        self._limits.stir(moved.stage)

    def after_fork(self) -> None:
        """Let a forked child come back from its parent's call: no lock that it meets may be held by a lost thread."""
        self._local.after_fork()
        self._following.after_fork()
        self._limits.after_fork()

    def close(self) -> None:
        """Release every lease and end the threads."""
        self._settling.release_all()
        self._settling.heartbeat.close()
        self._spreading.close()
        self._following.close()
        self._workers.close()
        self._slow.close()

    def _wake(self, key: FlightKey) -> None:
        """Let those of this process look who wait for the end of a flight, or for the room that it leaves."""
        self._following.wake(key.digest)
        self._limits.stir(key.stage)

    async def _asked(
        self, call: Call[R], rim: Rim, started: float, handle: Callable[[int | None, int | None], object]
    ) -> Ended[R]:
        ended = None
        while ended is None:
            with self._joined(call) as flight:
                ended = await self._take_turn(Asked(call, flight, rim, started, handle))
        return ended

    @contextmanager
    def _joined(self, call: Call[Any]) -> Iterator[LocalFlight]:
        digest, policy = call.key.digest, call.policy
        if call.pending is not None:
            yield LocalFlight()  # a worker must not stand in line behind those who wait for it
            return
        try:
            flight = self._local.join(
                digest, is_fresh=call.is_fresh, max_waiters=policy.max_waiters, retry_after=policy.heartbeat
            )
        except Overloaded:
            announce(caller_refused, stage=call.key.stage, reason="max_waiters")
            raise
        try:
            yield flight
        finally:
            self._local.leave(digest, flight, is_fresh=call.is_fresh)

    async def _take_turn(self, asked: Asked[R]) -> Ended[R] | None:
        """Lead the key, or wait behind this process's leader; None: ask again."""
        flight = asked.flight
        try:
            if flight.is_led and self._tracing.is_on:
                turn = await self._traced_turn(asked)
            else:
                turn = await flight.wait_turn(asked.bell, asked.deadline - self._monotonic())
        except TimeoutError:
            raise asked.still_running(self._monotonic()) from None
        if turn is Turn.LEAD:
            return await asked.rim.apart(self._lead(asked), left=asked.leave, unbegun=partial(self._hand_over, asked))
        return ended_by(asked.call, flight.shared) if turn is Turn.SHARE else None

    async def _traced_turn(self, asked: Asked[R]) -> Turn:
        with self._tracing.wait(asked.call.key.stage) as span:
            try:
                return await asked.flight.wait_turn(asked.bell, asked.deadline - self._monotonic())
            finally:
                tell_shared(span, asked.flight)

    async def _lead(self, asked: Asked[R]) -> Ended[R]:
        """Take the leader's turn, and tell the others; it ends when its call does, even if its caller is gone."""
        try:
            ended = await self._leading.lead(asked)
            asked.flight.publish(Shared(ended.settled, ended.role, ended.layer), to_nobody=ended.is_forgotten)
        finally:
            self._hand_over(asked)
        return ended

    def _forsake(self, asked: Asked[Any]) -> None:
        """Go on without a leader whose loop was closed under it, and which will never end its turn."""
        self._following.drop_deaf()
        digest, is_fresh = asked.call.key.digest, asked.call.is_fresh
        self._local.forsake(digest, asked.flight, is_fresh=is_fresh, has_left=asked.has_left)

    def _hand_over(self, asked: Asked[Any]) -> None:
        asked.flight.hand_over()
        self._local.drop_if_over(asked.call.key.digest, asked.flight, is_fresh=asked.call.is_fresh)

    def _answer(self, call: Call[R], ended: Ended[R], started: float) -> Outcome[R]:
        """Announce the end to the listeners, and give it to its caller."""
        settled, waited = ended.settled, self._monotonic() - started
        announce(
            request_answered,
            stage=call.key.stage,
            role=ended.role,
            layer=ended.layer,
            waited=waited,
            flight_id=settled.flight_id,
            generation=settled.generation,
            usage=settled.usage,
            failed=settled.status is not Status.SUCCEEDED,
        )
        return outcome_of(call, ended, waited)

    async def _wait_for(
        self,
        call: Call[R],
        handle: FlightHandle[R] | AsyncFlightHandle[R],
        timeout: float | None,
        rim: Rim,
    ) -> tuple[Ended[R], float]:
        if handle.flight_id is None:
            problem = "this handle knows no flight, since the wait ended before the claim was answered"
            raise InvalidRequest(f"{problem}; call the function again")
        started = self._monotonic()
        asked = Asked(call, LocalFlight(), rim, started, lambda *_: handle)
        deadline = started + (call.wait_timeout if timeout is None else wait_budget(timeout))
        with self._following.watch(call.key, asked.bell) as watch:
            try:
                row = await self._leading.first_end(handle.flight_id, rim, asked.bell, watch, deadline)
            except TimeoutError:
                raise asked.still_running(self._monotonic()) from None
        if row is None:
            raise ResultUnreadable(f"{handle} is gone, since it was purged; call the function again")
        # Not announced: the request was counted when it was made, and a handle may be asked any number of times.
        settled = await self._large.fetched(rim, row.settled(), within=deadline - self._monotonic())
        return Ended(settled, Role.FOLLOWER, Layer.DATABASE), self._monotonic() - started
