"""Where the protocol waits: in the caller's thread (here), or on its event loop (`looping`).

Each step that a caller takes is a coroutine, written once. On a loop it suspends where it waits. In a thread it never
suspends: what it awaits has happened when the await returns, so that `finish` runs it to its end like a plain call.
"""

import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, TypeVar

T = TypeVar("T")

Steps = Coroutine[Any, Any, T]


class Bell(Protocol):
    """What one caller waits for; any thread may ring it, and a ring before the wait counts."""

    def ring(self) -> bool:
        """Wake the caller; False: nobody can ever hear it, since its loop is closed."""

    def is_deaf(self) -> bool:
        """Tell whether its caller is gone with its loop, and will never do anything again."""

    async def wait(self, timeout: float) -> bool:
        """Wait to be woken; False when the time is over first."""


class Interruption:
    """Ends an async call from any thread; a sync one can't be ended, and takes no notice."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cancel: Callable[[], object] | None = None
        self.is_requested = False
        self.is_gone: Callable[[], bool] = lambda: False  #: the call's loop is closed, and it will never end

    def request(self) -> None:
        """Cancel the call, once; one that has not begun is cancelled before its first step."""
        with self._lock:
            asked_before, self.is_requested = self.is_requested, True
            cancel = None if asked_before else self._cancel
        if cancel is not None:
            cancel()

    def arm(self, cancel: Callable[[], object], *, is_gone: Callable[[], bool]) -> None:
        """Say how the call is cancelled, and how it shows that it is gone."""
        self.is_gone = is_gone
        with self._lock:
            self._cancel = cancel
        if self.is_requested:
            cancel()


class Interrupted(Exception):
    """An async call was cancelled by request, and has ended without a value."""


class Rim(Protocol):
    """One way of waiting."""

    is_on_loop: bool  #: the function may return something to await

    def bell(self) -> Bell:
        """Return a bell for one caller."""

    async def do(self, work: Callable[[], T], *, undo: Callable[[T], object] | None = None, is_slow: bool = False) -> T:
        """Do blocking work (a statement, a look at Redis); `undo` gets a result that came too late for its caller.

        `is_slow`: a storage may take a minute for it, and no statement may have to wait behind it.
        """

    async def do_to_its_end(self, work: Callable[[], T], *, is_slow: bool = False) -> T:
        """Do work on what is paid for, in the caller's context; who is cancelled meanwhile gets what it comes to."""

    async def apart(self, steps: Steps[T], *, left: Callable[[], object], unbegun: Callable[[], object]) -> T:
        """Take steps that go on when their caller is cancelled; `left` is called then.

        `unbegun` is called when the steps ended before their first one.
        """

    async def call(
        self, steps: Callable[[], Steps[T]], interruption: Interruption, *, on_return: Callable[[], object]
    ) -> T:
        """Run the user's function; `on_return` is called once it has really returned. Raises Interrupted."""

    async def sleep(self, seconds: float) -> None:
        """Pause between two tries."""

    def alarm(self, seconds: float, ring: Callable[[], object]) -> AbstractContextManager[None]:
        """Call `ring` from another thread if the block has not ended by then."""


class ThreadBell:
    """Wakes a thread. Most callers never wait, and need no event."""

    __slots__ = ("_event", "_is_rung")

    def __init__(self) -> None:
        self._is_rung = False
        self._event: threading.Event | None = None

    def ring(self) -> bool:
        """Wake the caller."""
        self._is_rung = True
        if self._event is not None:
            self._event.set()
        return True

    def is_deaf(self) -> bool:
        """Threads end what they are at."""
        return False

    async def wait(self, timeout: float) -> bool:
        """Wait to be woken; False when the time is over first."""
        if self._event is None:
            self._event = threading.Event()
        # A ring before the event was there left its mark.
        is_rung = self._is_rung or self._event.wait(max(0.0, timeout))
        self._is_rung = False
        self._event.clear()
        return is_rung


class ThreadRim:
    """Waits in the caller's own thread; none of these coroutines ever suspends."""

    is_on_loop = False

    def bell(self) -> ThreadBell:
        """Return a bell for this thread."""
        return ThreadBell()

    async def do(self, work: Callable[[], T], *, undo: Callable[[T], object] | None = None, is_slow: bool = False) -> T:
        """Do the work here and now."""
        return work()

    async def do_to_its_end(self, work: Callable[[], T], *, is_slow: bool = False) -> T:
        """Do the work here and now."""
        return work()

    async def apart(self, steps: Steps[T], *, left: Callable[[], object], unbegun: Callable[[], object]) -> T:
        """Take the steps here: a thread can't leave them."""
        return await steps

    async def call(
        self, steps: Callable[[], Steps[T]], interruption: Interruption, *, on_return: Callable[[], object]
    ) -> T:
        """Run the function in this thread, with its context, connections and transaction."""
        try:
            return await steps()
        finally:
            on_return()

    async def sleep(self, seconds: float) -> None:
        """Hold the thread."""
        time.sleep(seconds)  # noqa: ASYNC251  (no loop here: this is the caller's thread)

    def alarm(self, seconds: float, ring: Callable[[], object]) -> AbstractContextManager[None]:
        """Call `ring` from a timer's thread if the block has not ended by then."""
        return timer(seconds, ring)


@contextmanager
def timer(seconds: float, ring: Callable[[], object]) -> Iterator[None]:
    """Call `ring` in a thread of its own if the block has not ended after `seconds`."""
    alarm = threading.Timer(seconds, ring)
    alarm.daemon = True
    alarm.start()
    try:
        yield
    finally:
        alarm.cancel()


def finish(steps: Steps[T]) -> T:
    """Run steps that never suspend to their end, and return what they return."""
    try:
        steps.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    steps.close()
    raise RuntimeError("a step of a thread's caller waited on an event loop")
