"""What a test can play: a process that crashes, one that runs a call, one that takes it over, a database away."""

import asyncio
from collections.abc import Iterator

import pytest
from django.test import override_settings

from singleflight_app import (
    FlightFailed,
    InvalidRequest,
    LeaseLost,
    Overloaded,
    OwnerLost,
    ResultUnreadable,
    Role,
    StillRunning,
    current_flight,
)
from singleflight_app.testing import Flights, flights_in_memory
from tests.held import begin
from tests.played import ascore, attempt, fail, queued, score
from tests.waiting import until


@pytest.fixture
def flights() -> Iterator[Flights]:
    """Test mode, in which nobody waits: these tests have one thread."""
    with flights_in_memory(wait_timeout=0) as flights:
        yield flights


def test_a_crash_leaves_a_lease_and_then_the_next_caller_takes_over(flights: Flights) -> None:
    """It is the second attempt, and counted."""
    flights.crashed(attempt, "a")
    with pytest.raises(StillRunning):
        attempt("a")

    flights.advance(30)
    outcome = attempt.outcome("a")

    assert (outcome.value, outcome.role) == (2, Role.OWNER)
    assert flights.takeovers(attempt) == 1
    assert flights.takeovers(score) == 0
    flights.assert_called_once(attempt)


def test_a_request_that_kills_its_owners_stops(flights: Flights) -> None:
    """After `max_takeovers`; another process then can't begin it either."""
    for _ in range(4):
        flights.crashed(score, "a")
        flights.advance(30)

    with pytest.raises(InvalidRequest, match="died too often"):
        flights.crashed(score, "a")
    with pytest.raises(OwnerLost):
        score("a")
    flights.assert_not_called(score)


def test_a_process_elsewhere_answers_those_who_follow_it(flights: Flights) -> None:
    """In threads, and as a replay for those who come later."""
    flights.wait_timeout = None

    with flights.running(score, "a") as other:
        follower = begin(score.outcome, "a")
        until(lambda: flights._world.clock._sleepers, "a caller that waits")
        other.succeed("seven")

    outcome = follower.result(20)
    assert (outcome.value, outcome.role, outcome.generation) == ("seven", Role.FOLLOWER, other.generation)
    assert score("a") == "seven"
    flights.assert_not_called(score)


def test_a_process_elsewhere_answers_tasks_of_a_loop(flights: Flights) -> None:
    """The same, awaited."""
    flights.wait_timeout = None

    async def main() -> str:
        with flights.running(ascore, "a") as other:
            following = asyncio.create_task(ascore("a"))
            await asyncio.sleep(0)
            other.succeed("seven")
            return await following

    assert asyncio.run(main()) == "seven"


def test_a_failure_elsewhere_is_everybodys(flights: Flights) -> None:
    """Retryable or not, as the policy says."""
    with flights.running(score, "a") as other:
        other.fail(ValueError("no points"))

    with pytest.raises(FlightFailed, match="no points"):
        score("a")


def test_a_process_that_leaves_lets_the_next_one_call_at_once(flights: Flights) -> None:
    """The end of the block is an exit in order."""
    with flights.running(score, "a"):
        pass

    assert score.outcome("a").role is Role.OWNER


def test_a_late_end_from_elsewhere_is_refused(flights: Flights) -> None:
    """After a takeover; without one it stands."""
    late, later = flights.running(score, "a"), flights.running(score, "b")
    late.die()
    later.die()
    flights.advance(30)
    score("a")

    with pytest.raises(LeaseLost):
        late.succeed("late")
    later.succeed("later")

    assert (score("a"), score("b")) == ("a: 7 points", "later")


def test_what_comes_from_elsewhere_must_fit_the_return_type(flights: Flights) -> None:
    """A test that gives something else would test nothing."""
    with flights.running(score, "a") as other, pytest.raises(ResultUnreadable):
        other.succeed(7)  # type: ignore[arg-type]


def test_a_taken_over_call_gets_the_newer_answer(flights: Flights) -> None:
    """R3: its own value is refused, and nobody sees it."""
    outcome = score.outcome("a", lambda: flights.take_over(score, "a").succeed("newer"))

    assert (outcome.value, outcome.role, outcome.superseded) == ("newer", Role.FOLLOWER, False)
    assert score("a") == "newer"


def test_a_taken_over_call_keeps_its_own_value_when_no_newer_comes(flights: Flights) -> None:
    """Marked, and stored nowhere."""
    outcome = score.outcome("a", lambda: flights.take_over(score, "a"))

    assert (outcome.value, outcome.superseded) == ("a: 7 points", True)
    with pytest.raises(StillRunning):
        score("a")


def test_a_taken_over_call_learns_of_it_by_its_next_beat(flights: Flights) -> None:
    """So code that asks can stop."""
    seen = []

    def work() -> None:
        flights.take_over(score, "a")
        seen.append(current_flight().lease_lost)
        flights.advance(5)
        seen.append(current_flight().lease_lost)
        current_flight().raise_if_lost()

    with pytest.raises(LeaseLost):
        score("a", work)

    assert seen == [False, True]


def test_only_a_running_call_is_taken_over(flights: Flights) -> None:
    """What runs already is not begun elsewhere, and what is answered is neither."""
    with pytest.raises(InvalidRequest, match="no running call of these arguments"):
        flights.take_over(score, "a")
    with flights.running(score, "a"), pytest.raises(InvalidRequest, match=r"take_over\(\)"):
        flights.running(score, "a")
    score("a")
    with pytest.raises(InvalidRequest, match=r"a stored value would answer it; forget\(\) it first"):
        flights.running(score, "a")
    score.forget("a")
    with flights.running(score, "a") as other:
        other.fail(ValueError("no"))
    with pytest.raises(InvalidRequest, match="a stored failure would answer it"):
        flights.crashed(score, "a")


def test_an_outage_degrades_and_ends(flights: Flights) -> None:
    """Nothing is stored; afterwards each answer is everybody's again."""
    with flights.outage():
        outcome = score.outcome("a")
        assert (outcome.degraded, outcome.generation) == (True, None)

    assert score.outcome("a").role is Role.OWNER
    flights.assert_called(score, times=2)


def test_an_outage_that_begins_inside_a_call_loses_no_paid_answer(flights: Flights) -> None:
    """P8: it is stored by a beat once the database is back, and nobody calls again."""
    away = flights.outage()

    assert score.outcome("a", away.__enter__).role is Role.OWNER
    away.__exit__(None, None, None)
    with pytest.raises(StillRunning):
        score.options(fresh=True)("a")
    flights.advance(5)

    assert score.outcome("a").role is Role.REPLAY
    flights.assert_called_once(score)


def test_after_an_outage_nothing_is_taken_over_for_one_lease(flights: Flights) -> None:
    """R18: every healthy flight would look dead."""
    flights.crashed(score, "a")
    with flights.outage():
        flights.advance(30)

    with pytest.raises(StillRunning):
        score("a")
    flights.advance(30)

    assert score.outcome("a").role is Role.OWNER


def test_a_worker_that_crashed_left_its_flight_to_the_sweep(flights: Flights) -> None:
    """A pending flight is begun elsewhere as by a worker."""
    queued.submit("a")
    flights.crashed(queued, "a")

    assert flights.run_pending() == 0
    flights.advance(30)

    assert queued.outcome("a").role is Role.OWNER


def test_a_full_stage_is_full_for_other_processes_too(flights: Flights) -> None:
    """Overload is played by filling the stage."""
    full = {"NAMESPACE": "test", "STAGES": {"played": {"max_concurrency": 1, "on_saturated": "reject"}}}
    with override_settings(SINGLEFLIGHT=full), flights.running(score, "a"):
        with pytest.raises(Overloaded):
            score("b")
        with pytest.raises(InvalidRequest, match="has no room"):
            flights.running(score, "b")


def test_a_failing_call_is_retried_as_the_policy_says(flights: Flights) -> None:
    """A retryable failure from elsewhere is not replayed."""
    with flights.running(fail, "a") as other:
        other.fail(TimeoutError("slow"))

    with pytest.raises(TimeoutError, match="no points"):
        fail("a")
