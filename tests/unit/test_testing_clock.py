"""The clock of test mode: nothing runs out by itself, and everything does when the test lets time pass."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.test import override_settings

from singleflight_app import (
    ExecutionTimedOut,
    FlightFailed,
    InvalidRequest,
    Layer,
    Overloaded,
    Role,
    StillRunning,
    current_flight,
)
from singleflight_app.testing import Flights, flights_in_memory
from tests.held import Held, begin, results
from tests.played import ascore, attempt, fail, score
from tests.waiting import until

LONG_PAUSES = {"attempts": 3, "wait": 500, "max_wait": 500}  #: no test lasts as long


@pytest.fixture
def flights() -> Iterator[Flights]:
    """Test mode, as the plugin gives it."""
    with flights_in_memory() as flights:
        yield flights


def until_waiting(flights: Flights, count: int = 1) -> None:
    """Return once so many callers wait."""
    until(lambda: len(flights._world.clock._sleepers) == count, f"{count} callers that wait")


def test_an_outcome_is_replayed_until_its_time_is_over(flights: Flights) -> None:
    """From memory for 5 s, from the row for 60; then there is a new call."""
    assert score.outcome("a").layer is Layer.CALL

    layers = []
    for seconds in (4.9, 0.2, timedelta(seconds=54.8), 0.2):
        flights.advance(seconds)
        layers.append(score.outcome("a").layer)

    assert layers == [Layer.MEMORY, Layer.DATABASE, Layer.DATABASE, Layer.CALL]


def test_a_failure_may_be_retried_after_its_time(flights: Flights) -> None:
    """A retryable one at once; each attempt is counted."""
    with pytest.raises(TimeoutError):
        fail("a")
    with pytest.raises(TimeoutError):
        fail("a")

    flights.assert_called(fail, times=2)


def test_a_running_call_keeps_its_lease_however_long_it_takes(flights: Flights) -> None:
    """It would have beaten; so would a healthy process elsewhere."""

    def long_after() -> None:
        flights.advance(500)
        assert not current_flight().lease_lost

    with flights.running(score, "b") as other:
        score("a", long_after)
        with pytest.raises(StillRunning):
            score.options(wait_timeout=0)("b")
        other.succeed("seven")

    assert score.outcome("a").role is Role.REPLAY
    assert score("b") == "seven"


def test_a_call_past_its_execution_timeout_is_ended(flights: Flights) -> None:
    """Its own caller gets the late value, marked; the others the failure."""
    outcome = score.outcome("a", lambda: flights.advance(600))

    assert outcome.superseded
    assert outcome.value == "a: 7 points"


def test_whoever_waits_for_a_hung_call_is_told(flights: Flights) -> None:
    """As soon as its time is over."""
    held = Held(None)
    running = begin(score, "a", held)
    held.wait_until_begun()
    follower = begin(score.options(wait_timeout=1000), "a")
    until_waiting(flights)

    flights.advance(600)

    with pytest.raises(ExecutionTimedOut):
        follower.result(20)
    held.let_go()
    assert running.result(20) == "a: 7 points"


def test_a_hung_call_of_an_outage_holds_its_key_no_longer(flights: Flights) -> None:
    """There is no beat to end it, but the same clock: whoever asks next makes a call of its own."""
    held = Held(None)

    with flights.outage():
        hung = begin(score, "a", held)
        held.wait_until_begun()
        flights.advance(600)
        assert score.outcome("a").role is Role.OWNER

    held.let_go()
    results([hung])


@pytest.mark.parametrize("seconds", [90, 500])
def test_a_wait_budget_ends_by_the_clock(flights: Flights, seconds: float) -> None:
    """At once, whoever it is that the caller waits for: another process, or a caller of its own."""
    held = Held(None)
    running = begin(score, "a", held)
    held.wait_until_begun()

    with flights.running(score, "b"):
        followers = [begin(score, "a"), begin(score, "b")]
        until_waiting(flights, 2)
        flights.advance(89)
        assert not any(follower.done() for follower in followers)
        flights.advance(seconds - 89)
        for follower in followers:
            with pytest.raises(StillRunning):
                follower.result(20)

    held.let_go()
    results([running])


def test_a_caller_without_patience_waits_for_nothing(flights: Flights) -> None:
    """For tests of one thread: whoever would wait is told at once, by a call or by a handle."""
    flights.wait_timeout = 0

    with flights.running(score, "a") as other:
        with pytest.raises(StillRunning) as still:
            score("a")
        with pytest.raises(StillRunning):
            still.value.handle.wait(30)
        other.succeed("seven")

    assert still.value.handle.wait().value == "seven"
    assert flights.wait_timeout == 0


def test_a_follower_takes_over_when_the_lease_runs_out(flights: Flights) -> None:
    """It waits in a thread of its own, and looks again as the clock moves."""
    flights.crashed(attempt, "a")
    follower = begin(attempt.outcome, "a")
    until_waiting(flights)

    flights.advance(29)
    assert not follower.done()
    flights.advance(1)

    assert follower.result(20).value == 2


def test_tasks_of_a_loop_follow_the_same_clock(flights: Flights) -> None:
    """A budget that ends, and a lease that runs out."""

    async def main() -> list[object]:
        flights.crashed(ascore, "a")
        with flights.running(ascore, "b"):
            tasks = [asyncio.create_task(ascore(answer)) for answer in ("a", "b")]
            for _ in range(5):
                await asyncio.sleep(0)
            assert not any(task.done() for task in tasks)
            flights.advance(30)
            taken_over = await tasks[0]
            flights.advance(60)
            return [taken_over, *await asyncio.gather(tasks[1], return_exceptions=True)]

    taken_over, left = asyncio.run(main())

    assert taken_over == "a: 7 points"
    assert isinstance(left, StillRunning)


@override_settings(SINGLEFLIGHT={"STAGES": {"played-failing": {"breaker": {"failures": 1, "pause": 30}}}})
def test_a_breaker_closes_after_its_pause(flights: Flights) -> None:
    """And opens again when the provider still fails."""
    for _ in range(2):
        with pytest.raises(TimeoutError):
            fail("a")
        with pytest.raises(Overloaded):
            fail("b")
        flights.advance(30)

    flights.assert_called(fail, times=2)


@override_settings(SINGLEFLIGHT={"STAGES": {"played-failing": {"retry": LONG_PAUSES, "wait_timeout": 2000}}})
def test_a_pause_between_two_tries_is_skipped(flights: Flights) -> None:
    """Each try is a call: it costs as much."""
    with pytest.raises(TimeoutError):
        fail("a")

    flights.assert_called(fail, times=3)


@override_settings(SINGLEFLIGHT={"STAGES": {"played-failing": {"retry_on": []}}})
def test_a_lasting_failure_is_replayed_for_its_time(flights: Flights) -> None:
    """10 s by default."""
    with pytest.raises(TimeoutError):
        fail("a")
    flights.advance(9)
    with pytest.raises(FlightFailed):
        fail("a")
    flights.advance(1)
    with pytest.raises(TimeoutError):
        fail("a")


def test_time_passes_in_one_direction(flights: Flights) -> None:
    """A number that is no duration is refused in a sentence."""
    with pytest.raises(InvalidRequest, match="give seconds from 0 on"):
        flights.advance(-1)
