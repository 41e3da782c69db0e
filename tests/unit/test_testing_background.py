"""Background flights in test mode: queued by `submit`, run when the test says so, in its own process."""

import asyncio
from collections.abc import Iterator

import pytest

from singleflight_app import InvalidRequest, Role, StillRunning, api
from singleflight_app.testing import Flights, flights_in_memory
from tests.played import aqueued, fail, queued


@pytest.fixture
def flights() -> Iterator[Flights]:
    """Test mode, in which nobody waits."""
    with flights_in_memory(wait_timeout=0) as flights:
        yield flights


def test_what_was_submitted_runs_when_the_test_says_so(flights: Flights) -> None:
    """Once, however often it was submitted."""
    handles = [queued.submit("a"), queued.submit("a"), queued.submit("b")]
    with pytest.raises(StillRunning):
        queued("a")
    flights.assert_not_called(queued)

    assert flights.run_pending() == 2

    assert [handle.wait().value for handle in handles] == ["a: 7 points", "a: 7 points", "b: 7 points"]
    assert flights.run_pending() == 0
    assert queued.outcome("a").role is Role.REPLAY


def test_what_a_background_call_submits_waits_for_the_next_time(flights: Flights) -> None:
    """So a test sees each step of a chain."""
    queued.submit("a", submits="b")

    assert flights.run_pending() == 1
    assert flights.run_pending() == 1

    flights.assert_called(queued, times=2)


def test_a_failure_is_stored_as_by_a_worker(flights: Flights) -> None:
    """The test that runs it does not stumble over it."""
    handle = fail.submit("a")

    assert flights.run_pending() == 1

    with pytest.raises(Exception, match="no points"):
        handle.wait()


def test_an_async_function_runs_on_a_loop_of_its_own_or_on_the_tests(flights: Flights) -> None:
    """From a thread, and from inside a loop."""

    async def main() -> str:
        handle = await aqueued.submit("b")
        assert await flights.arun_pending() == 1
        return (await handle.wait()).value

    asyncio.run(_submitted("a"))
    assert flights.run_pending() == 1
    assert asyncio.run(main()) == "b: 7 points"


async def _submitted(answer: str) -> None:
    await aqueued.submit(answer)


def test_a_flight_that_no_worker_came_for_is_run_by_whoever_asks(flights: Flights) -> None:
    """After `pending_timeout`; its message then finds nothing to do."""
    queued.submit("a")

    flights.advance(300)

    assert queued.outcome("a").role is Role.OWNER
    assert flights.run_pending() == 0


def test_a_lost_worker_and_a_lost_message_come_back_by_the_sweep(flights: Flights) -> None:
    """As in production: one lease after the lease is over."""
    queued.submit("a")
    flights.crashed(queued, "a")
    assert flights.run_pending() == 0

    flights.advance(60)
    swept = api.sweep()

    assert (swept.requeued, swept.lost) == (1, 0)
    assert flights.run_pending() == 1


def test_local_mode_refuses_what_only_a_worker_could_run() -> None:
    """A worker can't see the memory of this process."""
    with flights_in_memory(mode="local"), pytest.raises(InvalidRequest, match="this needs PostgreSQL"):
        queued.submit("a")


def test_on_a_running_loop_the_awaited_form_is_asked_for(flights: Flights) -> None:
    """And nothing of what was queued is lost by the mistake."""

    async def ask() -> int:
        await aqueued.submit("a")
        with pytest.raises(InvalidRequest, match=r"await flights.arun_pending\(\) instead"):
            flights.run_pending()
        return await flights.arun_pending()

    assert asyncio.run(ask()) == 1
