"""What takes the servers' place in a test: memory that can be out of reach, one clock, and no thread.

Every request goes the real engine's whole way; only what it waits for and what it writes to is another.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeVar, cast

from singleflight_app.conf import Settings, get_settings
from singleflight_app.domain.exceptions import CoordinationUnavailable, wait_budget
from singleflight_app.domain.flight import Outcome
from singleflight_app.domain.records import Forgotten
from singleflight_app.engine.call import Call, Ended
from singleflight_app.engine.coordinator import Coordinator
from singleflight_app.engine.handles import AsyncFlightHandle, FlightHandle
from singleflight_app.engine.looping import LoopRim
from singleflight_app.engine.rim import Rim, ThreadRim
from singleflight_app.notify.null import NullNotifier
from singleflight_app.outcomes.blobs import NoBlobs
from singleflight_app.outcomes.null import NoReplayCache
from singleflight_app.storage.memory import MemoryFlights
from singleflight_app.testing.clock import Clock, ClockedLoopRim, ClockedThreadRim
from singleflight_app.testing.record import Record
from singleflight_app.wiring import Runtime

R = TypeVar("R")

_LEAST_STEP = 0.01  #: seconds of the clock; whatever is due comes nearer with each


class Beating(Protocol):
    """Another process, which keeps its lease."""

    next_beat: float

    def beat(self) -> None:
        """Renew the lease, if that is due."""


class World:
    """All that one test has."""

    def __init__(self, *, mode: str | None, wait_timeout: float | None) -> None:
        self._mode, self.wait_timeout = mode, wait_timeout
        self._runtime: PlayedRuntime | None = None
        self.clock, self.record = Clock(), Record()
        self.sent: list[int] = []  #: background flights whose message was sent
        self.elsewhere: list[Beating] = []  #: healthy processes that are played
        settings = get_settings()
        self.flights = MemoryFlights(
            entries=settings.memory_entries, size=settings.memory_bytes, monotonic=self.clock.now
        )
        self.reach = Reach(self.flights, self.clock)

    def make(self) -> "PlayedRuntime":
        """Return a runtime of this world, by the settings as they are now."""
        settings = get_settings()
        # Without a server of its own a project is tested as if it had one: so outages and workers can be played.
        mode = self._mode or ("hybrid" if settings.mode == "local" else settings.mode)
        self._runtime = PlayedRuntime(replace(settings, mode=mode), self)
        return self._runtime

    def wake(self, digest: bytes) -> None:
        """Let all who wait for a key look at its row."""
        if self._runtime is not None:
            self._runtime.coordinator.wake(digest)

    def watched(self, call: Call[R]) -> Call[R]:
        """Return a call that is recorded when it begins, and whose caller waits no longer than the test allows."""

        def function() -> Any:  # noqa: ANN401  (the user's value, or what to await for it)
            self.record.calls.append(call.key)
            return call.function()

        return replace(call, function=function, wait_timeout=self.bounded(call.wait_timeout))

    def bounded(self, budget: float) -> float:
        """Return a wait budget, shortened to what the test allows."""
        return budget if self.wait_timeout is None else min(budget, self.wait_timeout)


class Reach:
    """The store as this process reaches it, or not."""

    def __init__(self, flights: MemoryFlights, clock: Clock) -> None:
        self._flights, self._clock = flights, clock
        self._outages, self._back_at = 0, float("-inf")

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  (each method of the store)
        method = getattr(self._flights, name)

        def asked(*args: object, **kwargs: object) -> object:
            if self._outages:
                raise CoordinationUnavailable("the database is out of reach, as this test plays it")
            return method(*args, **kwargs)

        return asked

    def may_take_over(self, lease: float) -> bool:
        """Tell whether an outage is one lease ago (rule R18)."""
        return self._clock.now() - self._back_at >= lease

    def close(self) -> None:
        """Keep the flights: the next runtime of the test finds them."""

    @contextmanager
    def outage(self) -> Iterator[None]:
        """Be out of reach until the block ends."""
        self._outages += 1
        try:
            yield
        finally:
            self._outages -= 1
            self._back_at = self._clock.now()


class PlayedRuntime(Runtime):
    """A runtime of a test's world."""

    coordinator: "PlayedCoordinator"

    def __init__(self, settings: Settings, world: World) -> None:
        self.world = world
        super().__init__(settings)

    def hint(self, moved: Forgotten) -> None:
        """Let the followers of a flight look, which was moved by hand."""
        self.coordinator.wake(moved.digest)

    def send(self, flight_id: int) -> bool:
        """Leave the message with the test, which runs it when it likes."""
        self.world.sent.append(flight_id)
        return True

    def _connect(self) -> None:
        self.store = reach = cast("MemoryFlights", self.world.reach)
        self._queue = None if self.settings.mode == "local" else reach
        self.cache, self.notifier, self._blobs = NoReplayCache(), NullNotifier(), NoBlobs()

    def _coordinated(self, *_: Any, **__: Any) -> Coordinator:  # noqa: ANN401  (the world has its own)
        # The call of an async function keeps to the test's thread, and so to its transaction.
        kind = partial(PlayedCoordinator, world=self.world)
        return super()._coordinated(kind, around=nullcontext, monotonic=self.world.clock.now)


class PlayedCoordinator(Coordinator):
    """The engine on a clock that is moved by hand: what its threads would do is done when the clock moves."""

    def __init__(self, *args: Any, world: World, **given: Any) -> None:  # noqa: ANN401  (as the engine takes it)
        super().__init__(*args, waiting=world.clock.waiting, start=lambda *_: False, **given)
        self._world, self._advancing = world, threading.RLock()

    def run(self, call: Call[R]) -> Outcome[R]:
        """Return the outcome of a call that is recorded."""
        return super().run(self._world.watched(call))

    async def arun(self, call: Call[R]) -> Outcome[R]:
        """Return the outcome of a call that is recorded."""
        return await super().arun(self._world.watched(call))

    def thread_rim(self) -> ThreadRim:
        """Return the rim of a caller in a thread."""
        return ClockedThreadRim(self._world.clock)

    def loop_rim(self) -> LoopRim:
        """Return the rim of the running event loop."""
        return ClockedLoopRim(self._workers, self._around, self._world.clock)

    async def _wait_for(
        self,
        call: Call[R],
        handle: FlightHandle[R] | AsyncFlightHandle[R],
        timeout: float | None,
        rim: Rim,
    ) -> tuple[Ended[R], float]:
        budget = call.wait_timeout if timeout is None else wait_budget(timeout)
        return await super()._wait_for(call, handle, self._world.bounded(budget), rim)

    def wake(self, digest: bytes) -> None:
        """Let all who wait for a key look at its row."""
        self._following.wake(digest)
        self._limits.stir()

    def advance(self, seconds: float) -> None:
        """Let time pass from beat to beat, so that no healthy call loses its lease; then all who wait look."""
        clock = self._world.clock
        with self._advancing:
            self._breakers.age(seconds)
            ends_at = clock.now() + seconds
            while clock.now() < ends_at:
                clock.move_to(min(ends_at, max(self._next_due(), clock.now() + _LEAST_STEP)))
                for process in list(self._world.elsewhere):
                    process.beat()
                self._settling.heartbeat.beat()
            self._following.poll()
            self._limits.stir()

    def _next_due(self) -> float:
        beats = (process.next_beat for process in self._world.elsewhere)
        return min(self._settling.heartbeat.next_due(), *beats, float("inf"))
