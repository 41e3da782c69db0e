"""C26: test mode is entered and left in each of its forms, needs no server, and leaves nothing behind."""

import asyncio
import threading
import unittest
from collections.abc import Iterator
from typing import Any

import pytest
from django.dispatch import Signal
from django.test import SimpleTestCase, override_settings

from singleflight_app import CoordinationUnavailable, InvalidRequest, Layer, Overloaded, Role, run, wiring
from singleflight_app.telemetry import signals
from singleflight_app.testing import Flights, flights_in_memory
from tests.played import ascore, fail, queued, score, untyped

LOCAL = {"MODE": "local", "CACHE": None}


@pytest.fixture(autouse=True)
def own_runtime() -> Iterator[None]:
    """Begin and end without a runtime, as a process that has made no call yet."""
    wiring.close()
    yield
    wiring.close()


def receivers() -> list[int]:
    """Return how many listen to each signal."""
    return [len(signal.receivers) for signal in vars(signals).values() if isinstance(signal, Signal)]


def outcome_of(case: type[unittest.TestCase]) -> unittest.TestResult:
    """Run the tests of a class as a test runner does."""
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
    return result


def test_a_test_case_enters_it_in_its_set_up() -> None:
    """And each of its tests begins without flights."""

    class ScoreTest(SimpleTestCase):
        def setUp(self) -> None:
            self.flights = self.enterContext(flights_in_memory())

        def test_one(self) -> None:
            assert score("a") == score("a")
            self.flights.assert_called_once(score)

        def test_two(self) -> None:
            assert score.outcome("a").role is Role.OWNER

    result = outcome_of(ScoreTest)

    assert result.testsRun == 2
    assert result.wasSuccessful(), result.errors + result.failures


def test_a_decorated_test_case_has_its_flights() -> None:
    """Sync and async tests alike, and before its own setUp."""

    @flights_in_memory()
    class ScoreTest(SimpleTestCase):
        flights: Flights

        def setUp(self) -> None:
            self.flights.assert_not_called(score)

        def test_in_a_thread(self) -> None:
            score("a")
            self.flights.assert_called_once(score)

        async def test_on_a_loop(self) -> None:
            await ascore("a")
            self.flights.assert_called_once(ascore)

    result = outcome_of(ScoreTest)

    assert result.testsRun == 2
    assert result.wasSuccessful(), result.errors + result.failures


def test_a_decorated_function_runs_in_it() -> None:
    """It gets the flights under the name that it gives."""

    @flights_in_memory(kwarg_name="flights")
    def in_a_thread(*, flights: Flights) -> int:
        score("a")
        return flights.calls(score)

    @flights_in_memory(kwarg_name="flights")
    async def on_a_loop(*, flights: Flights) -> int:
        await ascore("a")
        return flights.calls(ascore)

    untold: Any = in_a_thread
    awaited: Any = on_a_loop

    assert [untold(), untold(), asyncio.run(awaited())] == [1, 1, 1]


def test_what_the_process_had_before_is_back_afterwards() -> None:
    """The runtime itself, with whatever it holds."""
    with override_settings(SINGLEFLIGHT=LOCAL):
        before = wiring.runtime()
        score("kept")

        with flights_in_memory() as flights:
            score("kept")
            flights.assert_called_once(score)

        assert wiring.runtime() is before
        assert score.outcome("kept").role is Role.REPLAY


def test_nothing_is_left_behind() -> None:
    """No thread, no receiver of a signal, no runtime where there was none."""
    threads, listening = set(threading.enumerate()), receivers()

    with flights_in_memory() as flights:
        score("a")
        asyncio.run(ascore("a"))
        with flights.outage():
            score("b")
        queued.submit("c")
        flights.run_pending()
        assert set(threading.enumerate()) <= threads  # those of an earlier test may end meanwhile
        assert receivers() != listening

    assert set(threading.enumerate()) <= threads
    assert receivers() == listening
    assert wiring._runtime is None


def test_it_leaves_an_error_as_it_is() -> None:
    """And is left all the same, even when its values would have been refused."""

    def work() -> None:
        with flights_in_memory():
            untyped("a")
            raise LookupError("the test's own")

    with pytest.raises(LookupError, match="the test's own"):
        work()

    assert wiring._runtime is None


def test_the_ledger_counts_nothing_of_a_test() -> None:
    """It would write to the database, which a test has not asked for."""
    wiring.runtime()  # of the settings, with a database: its ledger listens
    listening = len(signals.flight_settled.receivers)

    with flights_in_memory():
        score("a")
        assert len(signals.flight_settled.receivers) == listening - 1

    assert len(signals.flight_settled.receivers) == listening


def test_one_inside_another_has_flights_of_its_own() -> None:
    """The outer one goes on where it was."""
    with flights_in_memory() as outer:
        score("a")
        with flights_in_memory() as inner:
            score("a")
            inner.assert_called_once(score)
            with pytest.raises(InvalidRequest, match="another one has begun inside it"):
                outer.advance(1)

        assert score.outcome("a").role is Role.REPLAY
        outer.advance(1)


def test_flights_that_are_over_say_so() -> None:
    """Whoever keeps them learns it in a sentence."""
    with flights_in_memory() as flights:
        score("a")

    flights.assert_called_once(score)
    with override_settings(SINGLEFLIGHT=LOCAL), pytest.raises(InvalidRequest, match="this test mode is over"):
        flights.crashed(score, "b")


def test_the_settings_of_the_stages_apply_as_they_are_at_the_call() -> None:
    """Also those that change within a test; the flights stay."""
    policy = {"max_concurrency": 1, "on_saturated": "reject"}
    changed = {"NAMESPACE": "test", "STAGES": {"played": policy}}

    with flights_in_memory() as flights:
        score("a")
        with override_settings(SINGLEFLIGHT=changed):
            assert score.outcome("a").role is Role.REPLAY
            with flights.running(score, "b"), pytest.raises(Overloaded, match="in the cluster"):
                score("c")


def test_settings_that_change_back_after_it_leave_no_stale_runtime() -> None:
    """Whatever the order in which a test's contexts end."""
    changed = override_settings(SINGLEFLIGHT={**LOCAL, "NAMESPACE": "changed"})
    changed.enable()
    wiring.runtime()
    mode = flights_in_memory()

    mode.enable()
    changed.disable()
    mode.disable()

    assert wiring.runtime().settings.namespace == "test"


def test_an_outage_is_an_error_or_a_call_of_its_own_by_mode() -> None:
    """The mode of the settings, where none is given; a project without a server is tested as if it had one."""
    distributed = override_settings(SINGLEFLIGHT={"MODE": "distributed"})
    refused = pytest.raises(CoordinationUnavailable, match="out of reach")

    with flights_in_memory(mode="distributed") as flights:
        with flights.outage(), refused:
            score("a")
        flights.assert_not_called(score)
    with distributed, flights_in_memory() as flights, flights.outage(), refused:
        score("a")
    with override_settings(SINGLEFLIGHT=LOCAL), flights_in_memory() as flights, flights.outage():
        assert score.outcome("a").degraded


def test_a_mode_that_there_is_not_is_refused() -> None:
    """At once, with those that there are."""
    with pytest.raises(ValueError, match="'offline'; use one of local, distributed, hybrid"):
        flights_in_memory(mode="offline")


def test_a_value_that_changed_on_its_way_fails_the_test() -> None:
    """The stage is named, and the repair."""
    refused = pytest.raises(AssertionError, match=r"stage played-tuple: .*annotate the exact return type")

    with refused, flights_in_memory():
        assert untyped("a") == ["a", 7]
    with flights_in_memory(strict=False):
        assert untyped("a") == ["a", 7]


def test_a_failure_tells_what_was_called_and_who_got_what() -> None:
    """With the keys: two calls that were meant to be one mostly differ there."""
    with flights_in_memory() as flights:
        score("a")
        score("b")
        score("b")
        with pytest.raises(AssertionError) as failure:
            flights.assert_called_once(score)

    told = str(failure.value).splitlines()
    assert told[0] == "stage 'played' was to be called once, and was called 2 times:"
    assert '"request":{"key":"a"}' in told[1]
    assert '"request":{"key":"b"}' in told[2]
    assert told[3].startswith("  request 1: owner: a value from call, generation ")
    assert told[5].startswith("  request 3: replay: a value from memory, generation ")


def test_each_form_of_the_assertion_says_what_was_wanted() -> None:
    """By function or by stage; without a number, once or more."""
    with flights_in_memory() as flights:
        flights.assert_not_called("played")
        with pytest.raises(AssertionError, match="at least once, and was called not at all:\n  nothing asked for it"):
            flights.assert_called(score)
        score("a")
        score("b")
        flights.assert_called(score)
        flights.assert_called(score, times=2)
        with pytest.raises(AssertionError, match="3 times, and was called 2 times"):
            flights.assert_called("played", times=3)
        with pytest.raises(AssertionError, match="not at all, and was called 2 times"):
            flights.assert_not_called(score)


def test_requests_tell_how_each_was_answered() -> None:
    """Failures and those who got no answer included."""
    with flights_in_memory(wait_timeout=0) as flights:
        with pytest.raises(TimeoutError, match="no points"):
            fail("a")
        score("b")
        score("b")
        with flights.running(score, "c"), pytest.raises(Exception, match="still running"):
            score("c")

    told = [(request.stage, request.role, request.layer, request.failed) for request in flights.requests]
    assert told == [
        ("played-failing", Role.OWNER, Layer.CALL, True),
        ("played", Role.OWNER, Layer.CALL, False),
        ("played", Role.REPLAY, Layer.MEMORY, False),
        ("played", None, None, True),
    ]
    assert str(flights.requests[-1]) == "no answer: still running after 0.0 s"


def test_a_call_without_the_decorator_is_counted_by_its_stage() -> None:
    """`run` and `arun` go the same way."""
    with flights_in_memory() as flights:
        for _ in range(2):
            assert run("played-run", {"answer": "a"}, lambda: 7, scope="test").value == 7

        flights.assert_called_once("played-run")


@pytest.mark.parametrize(
    "ask",
    [
        lambda flights: flights.assert_not_called("playd"),
        lambda flights: flights.calls("playd"),
        lambda flights: flights.assert_not_called(len),
    ],
)
def test_a_stage_that_nobody_has_heard_of_is_a_typo(ask: Any) -> None:  # noqa: ANN401
    """It proves nothing that it was not called."""
    with (
        flights_in_memory() as flights,
        pytest.raises(InvalidRequest, match="is no stage, and no function under @single_flight"),
    ):
        ask(flights)


def test_a_function_that_is_not_decorated_can_not_be_played(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence says so."""
    with flights_in_memory() as flights, pytest.raises(InvalidRequest, match="is no function under @single_flight"):
        flights.crashed(len, "a")  # type: ignore[arg-type]


def test_time_does_not_go_back() -> None:
    """Nor by a word that is no time."""
    with flights_in_memory() as flights:
        for wrong in (-1, "60"):
            with pytest.raises(InvalidRequest, match="give seconds from 0 on; time does not go back"):
                flights.advance(wrong)  # type: ignore[arg-type]
