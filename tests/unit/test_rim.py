"""Steps that are written once for threads and loops: in a thread they end without suspending."""

import threading

import pytest

from singleflight_app.engine.rim import Interruption, ThreadBell, ThreadRim, finish
from tests.held import begin
from tests.looped import a_turn


async def _none() -> None:
    """Do nothing."""


def test_what_steps_return_or_raise_is_their_callers() -> None:
    """As of a plain call."""

    async def answer() -> str:
        await _none()
        return "answer"

    async def fail() -> str:
        raise LookupError("lost")

    assert finish(answer()) == "answer"
    with pytest.raises(LookupError, match="lost"):
        finish(fail())


def test_steps_that_wait_on_a_loop_are_refused_and_closed() -> None:
    """A mistake of the engine's shows at once, and what the steps held is let go."""
    closed: list[bool] = []

    async def suspend() -> None:
        try:
            await a_turn()
        finally:
            closed.append(True)

    with pytest.raises(RuntimeError, match="waited on an event loop"):
        finish(suspend())
    assert closed == [True]


def test_a_ring_before_the_wait_counts_once() -> None:
    """No wake-up is lost between looking and waiting, and none is heard twice."""
    bell = ThreadBell()
    bell.ring()

    assert finish(bell.wait(0))
    assert not finish(bell.wait(0))


def test_a_ring_from_another_thread_wakes() -> None:
    """A caller without a time limit to speak of."""
    bell = ThreadBell()
    waiting = begin(lambda: finish(bell.wait(20)))

    bell.ring()

    assert waiting.result(20)


def test_a_negative_wait_is_over_at_once() -> None:
    """A deadline that has passed."""
    assert not finish(ThreadBell().wait(-1))


def test_a_call_is_interrupted_once_whenever_it_was_asked() -> None:
    """Before it is known how, and twice."""
    for is_asked_before in (True, False):
        interruption, cancelled = Interruption(), list[bool]()

        if is_asked_before:
            interruption.request()
        interruption.arm(lambda: cancelled.append(True), is_gone=lambda: False)  # noqa: B023  (called in this round)
        interruption.request()
        interruption.request()

        assert interruption.is_requested
        assert cancelled == [True]


@pytest.mark.parametrize("error", [None, ValueError("no"), KeyboardInterrupt()])
def test_a_threads_call_returns_before_its_place_is_given_back(error: BaseException | None) -> None:
    """Whatever it comes to."""
    events: list[str] = []

    async def steps() -> str:
        events.append("called")
        if error is not None:
            raise error
        return "value"

    def call() -> str:
        return finish(ThreadRim().call(steps, Interruption(), on_return=lambda: events.append("returned")))

    if error is None:
        assert call() == "value"
    else:
        with pytest.raises(type(error)):
            call()
    assert events == ["called", "returned"]


def test_work_of_a_thread_is_done_here_and_now() -> None:
    """Its result can't come too late, so nothing is undone."""
    undone: list[int] = []

    assert finish(ThreadRim().do(threading.get_ident, undo=undone.append)) == threading.get_ident()
    assert not undone
