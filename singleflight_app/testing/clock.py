"""The clock of a test, and rims whose waits end by it.

Leases and outcomes know only the seconds that the test lets pass. A wait counts real seconds too, so that it ends.
"""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

from singleflight_app.engine.looping import Around, LoopBell, LoopRim, Workers
from singleflight_app.engine.rim import ThreadBell, ThreadRim

T = TypeVar("T")


class _Rung:
    """A bell that remembers whether it was rung, or only woken to look at the clock."""

    was_rung = False


class Clock:
    """Seconds since the test began, as far as it let them pass."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = 0.0
        self._sleepers: list[Callable[[], object]] = []
        self._alarms: list[tuple[float, Callable[[], object]]] = []

    def now(self) -> float:
        """Return the time of leases, outcomes and beats."""
        return self._now

    def waiting(self) -> float:
        """Return the time of wait budgets."""
        return self._now + time.monotonic()

    def move_to(self, then: float) -> None:
        """Let time pass; alarms that are due ring, and whoever waits looks whether its time is over."""
        with self._lock:
            self._now = then
            due = [ring for at, ring in self._alarms if at <= then]
            self._alarms = [(at, ring) for at, ring in self._alarms if at > then]
            due += self._sleepers
        for ring in due:
            ring()

    @contextmanager
    def alarm(self, seconds: float, ring: Callable[[], object]) -> Iterator[None]:
        """Call `ring` if the block has not ended when that much time has passed."""
        entry = (self._now + seconds, ring)
        with self._lock:
            self._alarms.append(entry)
        try:
            yield
        finally:
            with self._lock:
                self._alarms = [held for held in self._alarms if held is not entry]

    @contextmanager
    def waking(self, wake: Callable[[], object]) -> Iterator[None]:
        """Call `wake` whenever time passes, until the block ends."""
        with self._lock:
            self._sleepers.append(wake)
        try:
            yield
        finally:
            with self._lock:
                self._sleepers.remove(wake)

    async def wait(
        self, timeout: float, wait: Callable[[float], Awaitable[bool]], wake: Callable[[], object], bell: _Rung
    ) -> bool:
        """Wait by `wait`, which `wake` interrupts, until the bell was rung (True) or the time is over by this clock."""
        ends_at = self.waiting() + timeout
        with self.waking(wake):
            while not bell.was_rung and (left := ends_at - self.waiting()) > 0:
                await wait(left)
        was_rung, bell.was_rung = bell.was_rung, False
        return was_rung


class _ThreadBell(ThreadBell, _Rung):
    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def ring(self) -> bool:
        self.was_rung = True
        return super().ring()

    async def wait(self, timeout: float) -> bool:
        return await self._clock.wait(timeout, super().wait, super().ring, self)


class _LoopBell(LoopBell, _Rung):
    def __init__(self, clock: Clock) -> None:
        super().__init__(asyncio.get_running_loop(), threading.get_ident())
        self._clock = clock

    def ring(self) -> bool:
        self.was_rung = True
        return super().ring()

    async def wait(self, timeout: float) -> bool:
        return await self._clock.wait(timeout, super().wait, super().ring, self)


class ClockedThreadRim(ThreadRim):
    """Waits in the caller's own thread, by the test's clock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def bell(self) -> ThreadBell:
        """Return a bell for this thread."""
        return _ThreadBell(self._clock)

    async def sleep(self, seconds: float) -> None:
        """Try again at once."""

    def alarm(self, seconds: float, ring: Callable[[], object]) -> AbstractContextManager[None]:
        """Call `ring` when the test has let that much time pass."""
        return self._clock.alarm(seconds, ring)


class ClockedLoopRim(LoopRim):
    """Waits on the running loop, by the test's clock; it needs no thread, since memory answers at once."""

    def __init__(self, workers: Workers, around: Around, clock: Clock) -> None:
        super().__init__(workers, workers, around)
        self._clock = clock

    def bell(self) -> LoopBell:
        """Return a bell for a task of this loop."""
        return _LoopBell(self._clock)

    async def do(self, work: Callable[[], T], *, undo: Callable[[T], object] | None = None, is_slow: bool = False) -> T:
        """Do the work here and now."""
        return work()

    async def do_to_its_end(self, work: Callable[[], T], *, is_slow: bool = False) -> T:
        """Do the work here and now."""
        return work()

    async def sleep(self, seconds: float) -> None:
        """Try again once the others had their turn."""
        await asyncio.sleep(0)

    def alarm(self, seconds: float, ring: Callable[[], object]) -> AbstractContextManager[None]:
        """Call `ring` when the test has let that much time pass."""
        return self._clock.alarm(seconds, ring)
