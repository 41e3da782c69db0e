"""The leader's turn: claim, then call, replay or follow, until the key has an outcome.

A follower keeps the id and generation that it saw. It takes over an expired lease only here, in its own
thread and under its own wait budget; the threads that wake it decide nothing.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

from singleflight_app.domain.exceptions import (
    CoordinationUnavailable,
    ResultUnreadable,
    StillRunning,
    seconds,
)
from singleflight_app.domain.flight import Settled
from singleflight_app.domain.policy import StagePolicy
from singleflight_app.domain.records import FlightSnapshot, Kept, Looked
from singleflight_app.domain.states import Layer, Role, Status
from singleflight_app.engine.call import Call, Ended, Follow, Found, Granted
from singleflight_app.engine.claiming import Claiming, Step
from singleflight_app.engine.following import Following, Watch
from singleflight_app.engine.handles import FlightHandle
from singleflight_app.engine.local import LocalFlight
from singleflight_app.engine.owning import Owning
from singleflight_app.engine.ports import FlightStore, Memory, ReplayCache
from singleflight_app.engine.spreading import Spreading
from singleflight_app.telemetry.signals import announce, result_dropped, wait_timed_out

R = TypeVar("R")

_OUTAGE_PAUSE = 0.5  #: seconds until an unreachable database is asked again
_RIVAL_PAUSE = 0.05  #: seconds until a rival's claim, committed but not visible yet, is looked for again


@dataclass(frozen=True, slots=True)
class Asked(Generic[R]):
    """What one caller asked for: its call, its process's flight, and its wait budget (monotonic)."""

    call: Call[R]
    flight: LocalFlight
    started: float
    handle: Callable[[int | None, int | None], FlightHandle[R]]

    @property
    def deadline(self) -> float:
        """When the caller's wait budget ends."""
        return self.started + self.call.wait_timeout

    def still_running(self, now: float) -> StillRunning:
        """Return the exception for a caller whose budget ended."""
        announce(wait_timed_out, stage=self.call.key.stage, waited=now - self.started)
        return StillRunning(self.handle(self.flight.flight_id, self.flight.generation), now - self.started)


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
        may_degrade: bool,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._cache, self._memory = store, cache, memory
        self._following, self._claiming, self._owning = following, claiming, owning
        self._spreading = spreading
        self._may_degrade, self._monotonic = may_degrade, monotonic

    def lead(self, asked: Asked[R]) -> Ended[R]:
        """Return the key's outcome; an unreadable stored result is dropped and led anew, once."""
        call = asked.call
        asked_at = self._monotonic()
        asked.flight.mark()
        looked = self._cache.look(call.key.digest) if call.may_replay_cache else Looked()
        if looked.settled is not None and (copy := copy_of(call, looked.settled)) is not None:
            self._remember(call, looked.settled, asked_at, looked.remaining)
            return Ended(looked.settled, Role.REPLAY, Layer.REDIS, copy=copy)
        with self._following.watch(call.key, pending_timeout=seconds(call.policy.pending_timeout)) as watch:
            for _ in range(2):
                ended = self._until_end(asked, watch, looked)
                if ended.role is Role.OWNER or ended.settled.result is None:
                    return ended
                if (copy := copy_of(call, ended.settled)) is not None:
                    return Ended(ended.settled, ended.role, ended.layer, copy=copy, is_forgotten=ended.is_forgotten)
                self._drop(call, ended.settled)
        raise ResultUnreadable(f"{call.key}: two stored results in a row could not be read; look at its return type")

    def first_end(self, flight_id: int, watch: Watch, deadline: float) -> FlightSnapshot | None:
        """Wait, without ever taking over, until the row is settled; None: it is gone. TimeoutError at the deadline."""
        while True:
            try:
                row = self._store.read(flight_id)
            except CoordinationUnavailable:
                if deadline <= self._monotonic():
                    raise
                watch.wait(min(_OUTAGE_PAUSE, deadline - self._monotonic()))
                continue
            if row is None or row.is_settled:
                return row
            with self._following.following(watch, flight_id, row.generation, row.lease_remaining):
                if not watch.wait(deadline - self._monotonic()):
                    raise TimeoutError

    def _until_end(self, asked: Asked[R], watch: Watch, looked: Looked) -> Ended[R]:
        call = asked.call
        has_followed = asked.flight.flight_id is not None  # by an earlier leader of this process
        while True:
            asked.flight.mark()
            step = self._step(call, has_followed=has_followed)
            if step is None:
                return self._degraded(asked)
            if isinstance(step, Granted):
                return self._own(asked, step, watch, looked)
            if isinstance(step, Found):
                self._keep(call, step, looked)
                return Ended(step.settled, Role.REPLAY, Layer.DATABASE)
            if step.row is None:
                self._pause(asked, watch)
                continue
            has_followed = True
            row = self._follow(asked, step.row, watch)
            if row is not None:
                return Ended(row.settled(), Role.FOLLOWER, Layer.DATABASE, is_forgotten=row.forgotten)

    def _step(self, call: Call[R], *, has_followed: bool) -> Step | None:
        """Claim; None: the database is out of reach and hybrid mode may call without it."""
        try:
            return self._claiming.claim(call)
        except CoordinationUnavailable as exc:
            if has_followed:
                return Follow(None)  # an owner may be running it: a call now could be the second one
            if self._may_degrade and exc.is_outage and call.pending is None:
                return None
            raise

    def _degraded(self, asked: Asked[R]) -> Ended[R]:
        """Answer without the database: with an end of this process that it could not take yet, or else a call."""
        unsettled = self._owning.heartbeat.unsettled(asked.call.key.digest)
        if unsettled is not None and unsettled.result is not None:
            ended: Ended[R] = Ended(unsettled, Role.REPLAY, Layer.PROCESS)
        else:
            ended = self._owning.run_degraded(asked.call, asked.flight)
        asked.flight.mark()
        return ended

    def _follow(self, asked: Asked[R], row: FlightSnapshot, watch: Watch) -> FlightSnapshot | None:
        """Wait for the end of the generation in `row`; None: it is no answer, claim again."""
        asked.flight.flight_id, asked.flight.generation = row.flight_id, row.generation
        with self._following.following(watch, row.flight_id, row.generation, row.lease_remaining):
            while watch.wait(asked.deadline - self._monotonic()):
                asked.flight.mark()
                try:
                    now = self._store.read(row.flight_id)
                except CoordinationUnavailable:
                    continue  # the next poll wakes again; the wait budget bounds an outage
                if now is None or now.generation != row.generation:
                    return None
                if now.is_settled:
                    return None if row.forgotten or _is_released(now) else now
                if _is_abandoned(now, asked.call.policy):
                    return None
        raise asked.still_running(self._monotonic())

    def _pause(self, asked: Asked[R], watch: Watch) -> None:
        left = asked.deadline - self._monotonic()
        if left <= 0:
            raise asked.still_running(self._monotonic())
        watch.wait(min(_RIVAL_PAUSE, left))

    def _own(self, asked: Asked[R], granted: Granted, watch: Watch, looked: Looked) -> Ended[R]:
        def follow_newer() -> Settled | None:
            deadline = self._monotonic() + asked.call.wait_timeout
            try:
                row = self.first_end(granted.row.flight_id, watch, deadline)
            except (TimeoutError, CoordinationUnavailable):
                return None
            return None if row is None else row.settled()

        return self._owning.own(asked.call, granted, asked.flight, ticket=looked.ticket, follow_newer=follow_newer)

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


def _is_abandoned(row: FlightSnapshot, policy: StagePolicy) -> bool:
    """Its owner's lease is over, or no worker came for it in time."""
    if row.pending_age is not None:
        return row.pending_age >= seconds(policy.pending_timeout)
    return row.lease_remaining is not None and row.lease_remaining <= 0


def _is_released(row: FlightSnapshot) -> bool:
    """Its owner left without an end: whoever waits takes it at once."""
    return row.status == Status.CANCELLED and row.retryable
