"""Waiting on an event loop: blocking work in threads, bells that any thread rings, calls that outlive their callers."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from singleflight_app.engine.looping import LoopBell, LoopRim, Workers
from singleflight_app.engine.rim import Interrupted, Interruption
from tests.held import PATIENCE, begin
from tests.looped import AsyncHeld, Loop, a_turn, loops
from tests.waiting import until


@asynccontextmanager
async def _nothing_around() -> AsyncIterator[None]:
    yield


@pytest.fixture
def workers() -> Iterator[Workers]:
    """Have two threads for blocking work."""
    made = Workers(2)
    yield made
    made.close()


@pytest.fixture
def loop() -> Iterator[Loop]:
    """Have a loop in a thread."""
    with loops(1) as (one,):
        yield one


def _rim(loop: Loop, workers: Workers) -> LoopRim:
    async def made() -> LoopRim:
        return LoopRim(workers, workers, _nothing_around)

    return loop.run(made())


class _Work:
    """Blocking work that ends when the test says so."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.begun, self.may_end, self._error = threading.Event(), threading.Event(), error

    def __call__(self) -> str:
        self.begun.set()
        assert self.may_end.wait(PATIENCE)
        if self._error is not None:
            raise self._error
        return "done"


def test_work_holds_no_loop_up(loop: Loop, workers: Workers) -> None:
    """R10: other tasks go on meanwhile; its result and its errors come back."""
    work, failing = _Work(), _Work(LookupError("lost"))
    working = loop.begin(_rim(loop, workers).do(work))
    failed = loop.begin(_rim(loop, workers).do(failing))

    assert loop.run(a_turn("free")) == "free"
    for each in (work, failing):
        each.may_end.set()

    assert working.result(20) == "done"
    with pytest.raises(LookupError, match="lost"):
        failed.result(20)


@pytest.mark.parametrize("error", [None, LookupError("lost")])
def test_work_whose_caller_is_gone_is_undone(loop: Loop, workers: Workers, error: Exception | None) -> None:
    """A lease that was granted too late goes back; there is nothing to undo of work that failed."""
    work, undone = _Work(error), list[str]()
    over = threading.Event()
    working = loop.begin(_rim(loop, workers).do(work, undo=undone.append))
    assert work.begun.wait(20)
    working.cancel()
    until(lambda: not loop.run(_others()), "the cancelled task to end")
    assert not undone

    work.may_end.set()
    workers.submit(over.set).result(20)

    until(lambda: undone == ([] if error else ["done"]), "the work to be undone")


async def _others() -> set[object]:
    return set(asyncio.all_tasks() - {asyncio.current_task()})


def test_work_is_undone_when_its_loop_is_closed(workers: Workers) -> None:
    """R11: in order, as `asyncio.run` does it."""
    work, undone = _Work(), list[str]()
    with loops(1) as (loop,):
        loop.begin(_rim(loop, workers).do(work, undo=undone.append))
        assert work.begun.wait(20)
        loop.end()
    work.may_end.set()

    until(lambda: undone == ["done"], "the work to be undone")


def test_a_bell_is_heard_from_any_thread(loop: Loop, workers: Workers) -> None:
    """Rung before the wait, during it, from the loop's own thread and from another one."""
    bell = _rim(loop, workers).bell()

    async def ring_here() -> None:
        bell.ring()

    bell.ring()
    assert loop.run(bell.wait(20))
    assert not loop.run(bell.wait(0))
    for ring in (bell.ring, lambda: loop.run(ring_here())):
        waiting = loop.begin(bell.wait(20))
        until(lambda: bell._future is not None, "the wait")
        ring()
        assert waiting.result(20)


def test_a_cancelled_wait_leaves_the_bell_as_it_was(loop: Loop, workers: Workers) -> None:
    """It may be waited for again, and its alarm is off."""
    bell = _rim(loop, workers).bell()
    waiting = loop.begin(bell.wait(20))
    until(lambda: bell._future is not None, "the wait")
    waiting.cancel()
    until(lambda: bell._future is None, "the wait to end")

    assert not loop.run(bell.wait(0))
    bell.ring()
    assert loop.run(bell.wait(20))


def test_a_bell_of_a_closed_loop_says_that_nobody_hears(workers: Workers) -> None:
    """Whoever hands something over gives it to the next then."""
    with loops(1) as (loop,):
        bell = _rim(loop, workers).bell()
        loop.begin(bell.wait(20))
        until(lambda: bell._future is not None, "the wait")
        loop.break_off()

        assert bell.is_deaf()
        assert not bell.ring()


def test_many_rings_while_waits_begin_and_end_lose_none(loop: Loop, workers: Workers) -> None:
    """Each wait that begins after a ring ends by it."""
    bell: LoopBell = _rim(loop, workers).bell()
    rounds = 300
    rung, heard = threading.Semaphore(0), threading.Semaphore(0)

    def ring() -> None:
        for _ in range(rounds):
            assert rung.acquire(timeout=PATIENCE)
            bell.ring()

    async def hear() -> int:
        count = 0
        for _ in range(rounds):
            rung.release()
            count += await bell.wait(PATIENCE)
            heard.release()
        return count

    ringing = begin(ring)

    assert loop.run(hear()) == rounds
    ringing.result(20)


def test_steps_apart_go_on_without_their_caller(loop: Loop, workers: Workers) -> None:
    """P5: it is told that its caller left; an error that nobody sees any more is no noise."""
    for call in (AsyncHeld("value"), AsyncHeld("never", error=LookupError("lost"))):
        left = threading.Event()
        rim = _rim(loop, workers)
        caller = loop.begin(_apart(rim, call, left))
        call.wait_until_begun()
        caller.cancel()
        assert left.wait(20)
        assert not call.over.is_set()

        call.let_go()

        assert call.over.wait(20)
        assert not call.cancelled.is_set()


async def _apart(rim: LoopRim, call: AsyncHeld[str], left: threading.Event) -> str:
    return await rim.apart(call(), left=left.set, unbegun=lambda: None)


def test_an_interrupted_call_says_so_and_has_really_ended(loop: Loop, workers: Workers) -> None:
    """R3, R4: asked from any thread; its place is given back when its task is over, not before."""
    call, interruption, returned = AsyncHeld("never", tidies_up=True), Interruption(), threading.Event()
    calling = loop.begin(_rim(loop, workers).call(call, interruption, on_return=returned.set))
    call.wait_until_begun()

    interruption.request()

    assert call.cancelled.wait(20)
    assert not returned.is_set()
    call.let_go()
    assert isinstance(calling.exception(20), Interrupted)
    assert returned.wait(20)


def test_a_call_that_cancels_itself_was_not_interrupted(loop: Loop, workers: Workers) -> None:
    """Nobody asked for it: the cancellation is its own end."""
    call = AsyncHeld("never", error=asyncio.CancelledError())
    call.let_go()

    calling = loop.begin(_rim(loop, workers).call(call, Interruption(), on_return=lambda: None))

    until(calling.done, "the end of the call")
    assert calling.cancelled()


def test_workers_end_when_they_are_closed_and_begin_anew_when_needed(workers: Workers) -> None:
    """R12: no thread before the first work; closing waits for nobody."""
    assert not any(thread.name.startswith("singleflight-work") for thread in _threads_of(workers))
    first: list[threading.Thread] = [workers.submit(threading.current_thread).result(20)]

    workers.close()

    until(lambda: not first[0].is_alive(), "the thread to end")
    assert workers.submit(lambda: "again").result(20) == "again"


def _threads_of(workers: Workers) -> set[threading.Thread]:
    return set() if workers._pool is None else set(workers._pool._threads)
