"""The rim of async callers: they wait on futures of their loop, and blocking work is done in a few threads of the app.

A leader's turn and the call itself run in tasks of their own, so that a caller who is cancelled, at whichever await,
takes nothing with it. When the loop ends, its tasks are cancelled, and give up what they hold.
"""

import asyncio
import inspect
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AbstractContextManager, suppress
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar, cast

from singleflight_app.engine.rim import Interrupted, Interruption, Steps, timer

T = TypeVar("T")

Around = Callable[[], AbstractAsyncContextManager[object]]

#: A loop keeps only weak references to its tasks. One that is closed without cancelling them leaves them here, since
#: collecting them would run their ends where nothing can be awaited; the heartbeat gives up what they held.
_tasks: set[asyncio.Task[Any]] = set()


class Workers:
    """The threads of this process that do blocking work for async callers; started on first use."""

    def __init__(self, count: int, tidy: Callable[[], object] = lambda: None) -> None:
        self._count, self._lock = count, threading.Lock()
        self.tidy = tidy  #: called in the thread after work that ran the project's own code
        self._pool: ThreadPoolExecutor | None = None

    def submit(self, work: Callable[[], T]) -> "Future[T]":
        """Do the work in a thread."""
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._count, "singleflight-work")
            return self._pool.submit(work)

    def close(self) -> None:
        """Let the threads end once they have done what they were given."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False)


def _tidied(work: Callable[[], T], tidy: Callable[[], object]) -> T:
    try:
        return work()
    finally:
        tidy()


class LoopBell:
    """Wakes a task of one loop."""

    __slots__ = ("_future", "_is_rung", "_loop", "_thread")

    def __init__(self, loop: asyncio.AbstractEventLoop, thread: int) -> None:
        self._loop, self._thread, self._is_rung = loop, thread, False
        self._future: asyncio.Future[bool] | None = None  # most callers never wait, and need none

    def ring(self) -> bool:
        """Wake the caller; False when its loop is closed."""
        self._is_rung = True
        future = self._future
        if future is None:
            return True
        if threading.get_ident() != self._thread:
            return _tell(self._loop, _resolve, future, True)  # noqa: FBT003  (the future's value)
        # The loop's own thread needs no detour over its wake-up socket, which ten thousand followers would feel.
        try:
            _resolve(future, True)  # noqa: FBT003
        except RuntimeError:  # the loop is closed
            return False
        return True

    def is_deaf(self) -> bool:
        """Tell whether the loop is closed."""
        return self._loop.is_closed()

    async def wait(self, timeout: float) -> bool:
        """Wait to be woken; False when the time is over first."""
        future = self._future = self._loop.create_future()
        # A ring before the future was there left its mark.
        if self._is_rung:
            future.set_result(True)
        alarm = self._loop.call_later(max(0.0, timeout), _resolve, future, False)  # noqa: FBT003
        try:
            is_rung: bool = await future
        finally:
            alarm.cancel()
            self._future, self._is_rung = None, False
        return is_rung


class LoopRim:
    """Waits on the running loop; `around` surrounds each call (its own context for Django's sync code)."""

    is_on_loop = True

    def __init__(self, workers: Workers, slow: Workers, around: Around) -> None:
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._workers, self._slow, self._around = workers, slow, around

    def bell(self) -> LoopBell:
        """Return a bell for a task of this loop."""
        return LoopBell(self._loop, self._thread)

    async def do(self, work: Callable[[], T], *, undo: Callable[[T], object] | None = None, is_slow: bool = False) -> T:
        """Do the work in a thread; it is never cancelled, since a statement that was sent can't be called back."""
        done: asyncio.Future[T] = self._loop.create_future()
        doing = (self._slow if is_slow else self._workers).submit(work)
        doing.add_done_callback(partial(_deliver, self._loop, done))
        try:
            return await done
        except BaseException:
            if undo is not None:
                doing.add_done_callback(partial(_undo, undo))
            raise

    async def do_to_its_end(self, work: Callable[[], T], *, is_slow: bool = False) -> T:
        """Do the work in a thread; cancelled as the loop ends, wait for it all the same, once."""
        done: asyncio.Future[T] = self._loop.create_future()
        workers = self._slow if is_slow else self._workers
        doing = workers.submit(partial(copy_context().run, _tidied, work, workers.tidy))
        doing.add_done_callback(partial(_deliver, self._loop, done))
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            return await done

    async def apart(self, steps: Steps[T], *, left: Callable[[], object], unbegun: Callable[[], object]) -> T:
        """Take the steps in a task of their own."""
        task = self._begin(_captured(steps))

        def ended(_: object) -> None:
            # Cancelled before its first step, it has no `finally` to hand the lead over.
            if inspect.getcoroutinestate(steps) == inspect.CORO_CREATED:
                steps.close()
                unbegun()

        task.add_done_callback(ended)
        try:
            value, error = await asyncio.shield(task)
        except BaseException:
            left()
            raise
        if error is not None:
            raise error
        return cast("T", value)

    async def call(
        self, steps: Callable[[], Steps[T]], interruption: Interruption, *, on_return: Callable[[], object]
    ) -> T:
        """Run the function in a task of its own; this one may be cancelled without it, and cancels it then."""
        task = self._begin(_surrounded(steps, self._around))
        task.add_done_callback(lambda _: on_return())
        interruption.arm(partial(_tell, self._loop, task.cancel), is_gone=self._loop.is_closed)
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            # The loop ends. Until the function has really ended nobody else may call; a value that it has brought is
            # paid for, and kept.
            if not task.cancelling():  # a second cancel would disturb what it tidies up
                task.cancel()
            await asyncio.wait([task])
            if task.cancelled():
                raise
        except BaseException:
            if task.done() and not task.cancelled():
                task.exception()  # looked at: it is no news to the loop's exception handler
            with suppress(RuntimeError):  # the loop is closed
                task.cancel()
            raise
        if task.cancelled() and interruption.is_requested:
            raise Interrupted
        return task.result()

    async def sleep(self, seconds: float) -> None:
        """Let the loop do other things."""
        await asyncio.sleep(seconds)

    def alarm(self, seconds: float, ring: Callable[[], object]) -> AbstractContextManager[None]:
        """Call `ring` from a timer's thread: the call may hold the loop."""
        return timer(seconds, ring)

    def _begin(self, steps: Steps[T]) -> "asyncio.Task[T]":
        task = self._loop.create_task(steps)
        _tasks.add(task)
        task.add_done_callback(_tasks.discard)
        return task


async def _captured(steps: Steps[T]) -> tuple[T | None, Exception | None]:
    """Return the error instead of raising it: nobody may be left to look at the task."""
    try:
        return await steps, None
    except Exception as exc:  # noqa: BLE001  (raised again at the caller, if it is still there)
        return None, exc


async def _surrounded(steps: Callable[[], Steps[T]], around: Around) -> T:
    async with around():
        return await steps()


def _deliver(loop: asyncio.AbstractEventLoop, done: "asyncio.Future[T]", doing: "Future[T]") -> None:
    error = doing.exception()
    if error is None:
        _tell(loop, _resolve, done, doing.result())
    else:
        _tell(loop, _refuse, done, error)


def _undo(undo: Callable[[T], object], doing: "Future[T]") -> None:
    if doing.exception() is None:
        undo(doing.result())


def _resolve(future: "asyncio.Future[T]", value: T) -> None:
    if not future.done():
        future.set_result(value)


def _refuse(future: "asyncio.Future[Any]", error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


def _tell(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *args: object) -> bool:
    """Call a function on a loop, from any thread; False when the loop is closed, and nobody waits there any more."""
    try:
        loop.call_soon_threadsafe(function, *args)
    except RuntimeError:
        return False
    return True
