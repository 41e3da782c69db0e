"""Event loops in threads of their own, and async calls that go on until the test lets them go: no clock decides."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tests.held import PATIENCE

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")

Steps = Coroutine[Any, Any, T]


class Loop:
    """An event loop that runs in a thread of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def begin(self, steps: Steps[T]) -> "Future[T]":
        """Let a task begin; cancelling the future cancels the task."""
        return asyncio.run_coroutine_threadsafe(steps, self.loop)

    def run(self, steps: Steps[T]) -> T:
        """Run a task to its end."""
        return self.begin(steps).result(PATIENCE)

    def end(self) -> None:
        """Cancel all tasks, let them come to their end, and close, as `asyncio.run` does."""
        self.run(_cancel_others())
        self.break_off()

    def break_off(self) -> None:
        """Stop and close, whatever still runs, as a program does that knows no better."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE)
        self.loop.close()


async def a_turn(value: T | None = None) -> T | None:
    """Let the loop do whatever else is ready, and return `value`: a suspension, no time passes."""
    await asyncio.sleep(0)
    return value


@contextmanager
def loops(count: int) -> Iterator[list[Loop]]:
    """Have `count` event loops; those that still run at the end are ended in order."""
    found = [Loop() for _ in range(count)]
    try:
        yield found
    finally:
        for one in found:
            if not one.loop.is_closed():
                one.end()


class AsyncHeld(Generic[T]):
    """An expensive async call: it says that it began, and ends when the test says so, with what the test says.

    `tidies_up`: cancelled, it first waits for the test's leave.
    """

    def __init__(self, value: T, *, error: BaseException | None = None, tidies_up: bool = False) -> None:
        self.value, self.error, self.tidies_up = value, error, tidies_up
        self.begun, self.cancelled, self.over = threading.Event(), threading.Event(), threading.Event()
        self.count = self.running = self.most_running = 0
        self._lock = threading.Lock()
        self._is_let_go = False
        self._waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def __call__(self) -> T:
        with self._lock:
            self.count += 1
            self.running += 1
            self.most_running = max(self.most_running, self.running)
        self.begun.set()
        try:
            return await self._answer()
        finally:
            with self._lock:
                self.running -= 1
            self.over.set()

    async def _answer(self) -> T:
        try:
            await self._leave()
        except asyncio.CancelledError:
            self.cancelled.set()
            if self.tidies_up:
                await self._leave()
            raise
        if self.error is not None:
            raise self.error
        return self.value

    async def _leave(self) -> None:
        leave = asyncio.Event()
        with self._lock:
            if self._is_let_go:
                return
            self._waiting.append((asyncio.get_running_loop(), leave))
        await leave.wait()

    def wait_until_begun(self) -> None:
        """Return once a call runs."""
        assert self.begun.wait(PATIENCE), "the call never began"

    def let_go(self) -> None:
        """Let the running call, and each later one, end."""
        with self._lock:
            self._is_let_go = True
            for loop, leave in self._waiting:
                if not loop.is_closed():
                    loop.call_soon_threadsafe(leave.set)


class AsyncCounted(Generic[T]):
    """An async call that returns at once, each time the next of its values, the last one for ever."""

    def __init__(self, *values: T) -> None:
        self._values, self._lock = list(values), threading.Lock()
        self.count = 0

    async def __call__(self) -> T:
        with self._lock:
            self.count += 1
            return self._values.pop(0) if len(self._values) > 1 else self._values[0]


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class Watched(Coroutine[Any, Any, T]):
    """The same steps; each time that they suspend, and before anybody goes on, a function is called."""

    def __init__(self, steps: Steps[T], on_suspension: Callable[[], object]) -> None:
        self._steps, self._on_suspension = steps, on_suspension

    def send(self, value: object) -> object:
        waited_for = self._steps.send(value)
        self._on_suspension()
        return waited_for

    def throw(self, *error: Any) -> object:  # noqa: ANN401  (as a coroutine takes it)
        waited_for = self._steps.throw(*error)
        self._on_suspension()
        return waited_for

    def close(self) -> None:
        self._steps.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return self._steps.__await__()
