"""What a call may ask for beyond its arguments: `options(fresh, sample, wait_timeout)`, and the same of `run`."""

from datetime import timedelta
from typing import Any

import pytest

from singleflight_app import InvalidRequest, Role, StillRunning, arun, current_flight, run, single_flight
from tests.held import Counted, Held, begin

pytestmark = pytest.mark.django_db

calls: dict[str, Any] = {}


@single_flight("options", scope="test")
def ask(name: str) -> str:
    """Answer as the test says."""
    return str(calls[name]())


@single_flight("options-async", scope="test")
async def ask_async(name: str) -> str:
    """Answer as the test says."""
    return str(calls[name]())


class Judge:
    """Has a method that is folded."""

    @single_flight("options-method", scope="test")
    def ask(self, name: str) -> str:
        """Answer as the test says."""
        return str(calls[name]())


def test_a_second_sample_is_a_call_of_its_own(unique: str) -> None:
    """C37: another answer to the same question, stored and replayed beside the first."""
    calls[unique] = Counted("one", "two", "not called")

    first, second = ask(unique), ask.options(sample=2)(unique)

    assert (first, second) == ("one", "two")
    assert (ask(unique), ask.options(sample=1)(unique), ask.options(sample=2)(unique)) == ("one", "one", "two")
    assert ask.options(sample=2).forget(unique)
    assert ask(unique) == "one"


def test_the_sample_is_in_the_key_from_the_second_on(unique: str) -> None:
    """The first has the key of no sample at all, so that asking for more changes nothing that is stored."""
    plain, first, second = ask.key(unique), ask.options(sample=1).key(unique), ask.options(sample=2).key(unique)

    assert plain == first
    assert second.digest != plain.digest
    assert '"sample":2' in second.canonical
    assert "sample" not in plain.canonical


@pytest.mark.parametrize("sample", [0, -1, 1.5, "2", True, 2**53])
def test_a_sample_that_is_no_number_from_one_on_is_refused(unique: str, sample: Any) -> None:  # noqa: ANN401
    """Before anything is asked."""
    with pytest.raises(InvalidRequest, match=r"the sample is .*; give a whole number"):
        ask.options(sample=sample)
    with pytest.raises(InvalidRequest, match="the sample is "):
        run("calm", {"key": unique}, Counted("not called"), scope="test", sample=sample)


@pytest.mark.parametrize("budget", [-1, float("nan"), float("inf"), "5", "soon", True, [], timedelta(seconds=-1)])
def test_a_wait_budget_that_is_no_duration_is_refused(unique: str, budget: Any) -> None:  # noqa: ANN401
    """With what to give instead."""
    with pytest.raises(InvalidRequest, match=r"the wait budget is .*; give seconds from 0 on"):
        ask.options(wait_timeout=budget)
    with pytest.raises(InvalidRequest, match="the wait budget is "):
        run("calm", {"key": unique}, Counted("not called"), scope="test", wait_timeout=budget)


@pytest.mark.parametrize("budget", [0, 0.05, timedelta(milliseconds=50), timedelta(0)])
def test_a_caller_may_wait_for_less_than_the_stage_does(unique: str, budget: float | timedelta) -> None:
    """C6: StillRunning with a handle; the flight goes on, and asking again later replays its answer."""
    calls[unique] = held = Held("answer")
    owner = begin(ask, unique)
    held.wait_until_begun()

    with pytest.raises(StillRunning) as left:
        ask.options(wait_timeout=budget)(unique)
    held.let_go()

    assert owner.result(20) == "answer"
    assert left.value.handle.wait(20).value == "answer"
    assert ask(unique) == "answer"
    assert held.count == 1


def test_a_wait_budget_never_bounds_ones_own_call(unique: str) -> None:
    """Who waits for nobody has nothing to be patient about."""
    calls[unique] = held = Held("answer")
    owner = begin(ask.options(wait_timeout=0).outcome, unique)
    held.wait_until_begun()
    held.let_go()

    assert (owner.result(20).value, owner.result().role) == ("answer", Role.OWNER)


def test_options_make_a_copy_and_leave_the_function_alone(unique: str) -> None:
    """They may be kept, and laid one upon another."""
    calls[unique] = Counted("one", "two", "three")
    second = ask.options(sample=2)
    second_fresh = second.options(fresh=True, wait_timeout=5)

    assert [ask(unique), second(unique), second(unique), second_fresh(unique)] == ["one", "two", "two", "three"]
    assert [ask(unique), second(unique)] == ["one", "three"]
    assert second_fresh.options(fresh=False)(unique) == "three"


def test_methods_have_options(unique: str) -> None:
    """Bound or not yet."""
    calls[unique] = Counted("one", "two", "three")
    judge = Judge()

    assert [judge.ask(unique), judge.ask.options(sample=2)(unique)] == ["one", "two"]
    assert judge.ask.options(fresh=True)(unique) == "three"


def test_run_takes_the_same_options(unique: str) -> None:
    """Without a decorator there is nothing else to ask."""
    call = Counted("one", "two", "three")

    def asked(**options: Any) -> str:  # noqa: ANN401
        return str(run("calm", {"key": unique}, call, scope="test", **options).value)

    assert [asked(), asked(sample=2), asked(fresh=True), asked(), asked(sample=2)] == [
        "one",
        "two",
        "three",
        "three",
        "two",
    ]


async def _all_async(name: str) -> list[str]:
    async def call() -> str:
        return str(calls[name]())

    found = [await ask_async(name), await ask_async.options(sample=2)(name), await ask_async.options(fresh=True)(name)]
    outcome = await arun("calm", {"key": name}, call, scope="test", sample=2, fresh=True, wait_timeout=5)
    return [*found, outcome.value]


def test_async_functions_have_options(unique: str) -> None:
    """The same, awaited."""
    import asyncio  # noqa: PLC0415  (here alone)

    calls[unique] = Counted("one", "two", "three", "four")

    assert asyncio.run(_all_async(unique)) == ["one", "two", "three", "four"]


def test_the_idempotency_key_tells_samples_apart(unique: str) -> None:
    """C38: a provider that folds equal requests must not fold two samples."""

    def call() -> str:
        return current_flight().idempotency_key

    keys = {run("calm", {"key": unique}, call, scope="test", sample=sample).value for sample in (1, 2)}

    assert len(keys) == 2
