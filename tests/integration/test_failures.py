"""What callers see of a call that fails, and who may try again: one failure per flight, stored like an answer.

Long, because every way in which a call can end badly stands beside the others.
"""

import json
import threading
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Self

import pytest
from pydantic import BaseModel, model_validator

from singleflight_app import (
    ExecutionTimedOut,
    FlightFailed,
    OwnerLost,
    ResultTooLarge,
    ResultUnreadable,
    Role,
    current_flight,
    run,
)
from singleflight_app.wiring import runtime
from tests.held import Counted, Held, at_once, begin, results
from tests.nodes import nodes
from tests.past import end_leases, end_outcome
from tests.stored import row_of

pytestmark = pytest.mark.django_db


class ModelRefused(Exception):
    """A failure of a caller's own making."""


class Unspeakable(Exception):
    """An exception that has no text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


class Moody(BaseModel):
    """A model that can be written and not read."""

    text: str

    @model_validator(mode="after")
    def _check(self) -> Self:
        raise KeyError(self.text)


def failing(error: BaseException) -> Callable[[], None]:
    """Return a call that raises."""

    def call() -> None:
        raise error

    return call


def test_the_owner_sees_its_own_exception_the_others_what_is_stored(unique: str) -> None:
    """C10, P2: one failure for all; what was stored is text, so nothing of the caller's class travels."""
    error = ModelRefused("refused")
    call = Held("never", error=error)
    with nodes(2) as (one, other):
        owner = begin(one.run, "calm", {"key": unique}, call)
        call.wait_until_begun()
        followers = [begin(node.run, "calm", {"key": unique}, call) for node in (one, other)]
        one.wait_for_callers(one.key("calm", {"key": unique}), 2)
        other.wait_for_follower("calm")
        call.let_go()

        assert owner.exception(20) is error
        for follower in followers:
            seen = follower.exception(20)
            assert isinstance(seen, FlightFailed)
            assert seen.error_type == f"{__name__}.ModelRefused"
            assert (seen.message, seen.retryable) == ("refused", False)
    assert call.count == 1


def test_a_failure_is_replayed_while_it_lasts(unique: str) -> None:
    """A failure that is not worth a retry is answered from the row, on every node, without a call."""
    call = Counted("second call")
    with pytest.raises(ModelRefused):
        run("calm", {"key": unique}, failing(ModelRefused("refused")), scope="test")

    with nodes(1) as (node,):
        for ask in (node.run, run):
            with pytest.raises(FlightFailed, match="ModelRefused: refused"):
                ask("calm", {"key": unique}, call, scope="test")

    assert call.count == 0


def test_a_failure_past_its_ttl_is_no_answer(unique: str) -> None:
    """The next caller makes a call of its own, under a higher generation."""
    with pytest.raises(ModelRefused):
        run("calm", {"key": unique}, failing(ModelRefused("refused")), scope="test")
    with pytest.raises(FlightFailed) as failed:
        run("calm", {"key": unique}, Counted("not called"), scope="test")
    end_outcome(failed.value.generation)

    outcome = run("calm", {"key": unique}, Counted("well"), scope="test")

    assert outcome.value == "well"
    assert (outcome.generation or 0) > (failed.value.generation or 0)


def test_a_retryable_failure_is_shared_by_its_followers_and_retried_by_later_callers(unique: str) -> None:
    """C10: who followed the failed call shares its failure; who comes afterwards may try again at once."""
    call = Held("never", error=ConnectionError("reset"))
    with nodes(2) as (one, other):
        owner = begin(one.run, "calm", {"key": unique}, call)
        call.wait_until_begun()
        local = begin(one.run, "calm", {"key": unique}, call)
        one.wait_for_callers(one.key("calm", {"key": unique}), 2)
        remote = begin(other.run, "calm", {"key": unique}, call)
        other.wait_for_follower("calm")
        call.let_go()
        failures = [future.exception(20) for future in (owner, local, remote)]

        later = other.run("calm", {"key": unique}, Counted("well"))

    assert isinstance(failures[0], ConnectionError)
    assert [type(failure) for failure in failures[1:]] == [FlightFailed, FlightFailed]
    assert all(failure.retryable for failure in failures[1:] if isinstance(failure, FlightFailed))
    assert call.count == 1
    assert (later.value, later.role) == ("well", Role.OWNER)
    assert row_of(later).attempts == 2


def test_a_class_listed_in_reraise_is_rebuilt_from_its_message(unique: str) -> None:
    """Callers of a retired handler keep it; a class that wants more than a message stays FlightFailed."""
    with pytest.raises(LookupError):
        run("picky", {"key": unique}, failing(LookupError("no such question")), scope="test")
    with pytest.raises(json.JSONDecodeError):
        run("picky", {"other": unique}, failing(json.JSONDecodeError("no JSON", "text", 0)), scope="test")

    with pytest.raises(LookupError, match=r"^no such question$") as rebuilt:
        run("picky", {"key": unique}, Counted("not called"), scope="test")
    with pytest.raises(FlightFailed, match="JSONDecodeError: no JSON"):
        run("picky", {"other": unique}, Counted("not called"), scope="test")

    assert type(rebuilt.value) is LookupError


def test_a_subclass_of_a_listed_class_is_not_rebuilt_as_its_base(unique: str) -> None:
    """`reraise` names classes, not families: a KeyError is not the LookupError that was allowed."""
    with pytest.raises(KeyError):
        run("picky", {"key": unique}, failing(KeyError("x")), scope="test")

    with pytest.raises(FlightFailed, match=r"builtins\.KeyError"):
        run("picky", {"key": unique}, Counted("not called"), scope="test")


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
def test_an_exception_that_ends_processes_holds_no_key(unique: str, error: BaseException) -> None:
    """C8, R11: it goes up to its own caller; a waiting caller makes its own call at once."""
    call = Held("never", error=error)
    with nodes(2) as (one, other):
        leaving = begin(one.run, "calm", {"key": unique}, call)
        call.wait_until_begun()
        waiting = begin(other.run, "calm", {"key": unique}, Counted("mine"))
        other.wait_for_follower("calm")
        call.let_go()

        assert leaving.exception(20) is error
        assert (waiting.result(20).value, waiting.result(20).role) == ("mine", Role.OWNER)
        assert not one.runtime.coordinator.running()


def test_a_local_follower_takes_the_lead_of_a_caller_that_is_interrupted(unique: str) -> None:
    """P5: the trouble of the one that leads is not that of those behind it."""
    call = Held("never", error=KeyboardInterrupt())
    with nodes(1) as (node,):
        leaving = begin(node.run, "calm", {"key": unique}, call)
        call.wait_until_begun()
        answer = Counted("mine", "a second call")
        waiting = at_once(5, node.run, "calm", {"key": unique}, answer)
        node.wait_for_callers(node.key("calm", {"key": unique}), 6)
        call.let_go()

        assert isinstance(leaving.exception(20), KeyboardInterrupt)
        assert {outcome.value for outcome in results(waiting)} == {"mine"}


def test_an_exception_without_a_text_is_a_failure_all_the_same(unique: str) -> None:
    """C8: its own caller sees it, the others learn its class, and no key stays held."""
    with pytest.raises(Unspeakable):
        run("calm", {"key": unique}, failing(Unspeakable()), scope="test")

    with pytest.raises(FlightFailed, match="Unspeakable"):
        run("calm", {"key": unique}, Counted("not called"), scope="test")


@pytest.mark.parametrize("text", ["x" * 100_000, "\x00", "\udc80", "snow \u2603 man"])
def test_any_text_of_an_exception_can_be_stored(unique: str, text: str) -> None:
    """Long, with NUL, or no Unicode at all: what PostgreSQL refuses is left out, never the failure."""
    with pytest.raises(ModelRefused):
        run("calm", {"key": unique}, failing(ModelRefused(text)), scope="test")

    with pytest.raises(FlightFailed, match="ModelRefused"):
        run("calm", {"key": unique}, Counted("not called"), scope="test")


@pytest.mark.parametrize(
    "usage",
    [
        {"cost": 10**12},
        {"cost": Decimal("Infinity")},
        {"cost": Decimal("NaN")},
        {"input_tokens": 2**70},
        {"output_tokens": -5},
        {"model": "m" * 300},
        {"model": "a\x00b\udc80"},
    ],
)
def test_strange_usage_never_costs_the_answer(unique: str, usage: dict[str, Any]) -> None:
    """P8: the call is paid; what it used is stored as well as it can be, and no key stays held."""

    def call() -> str:
        current_flight().record_usage(**usage)
        return "paid"

    outcome = run("calm-row", {"key": unique}, call, scope="test")
    again = run("calm-row", {"key": unique}, Counted("called again"), scope="test")

    assert (outcome.value, again.value) == ("paid", "paid")
    assert outcome.generation not in runtime().coordinator.running()


@pytest.mark.parametrize("value", [object(), lambda: 1, {"a": object()}, threading.Lock()])
def test_a_result_that_cannot_be_stored_reaches_its_own_caller(unique: str, value: object) -> None:
    """P8: the exception carries the paid value; the others see a failure that is not retried."""
    with pytest.raises(ResultUnreadable, match="can't be stored as") as refused:
        run("calm", {"key": unique}, lambda: value, scope="test")

    assert refused.value.value is value
    with pytest.raises(FlightFailed, match="ResultUnreadable") as seen:
        run("calm", {"key": unique}, Counted("not called"), scope="test")
    assert not seen.value.retryable


def test_a_result_whose_type_breaks_on_it_reaches_its_own_caller(unique: str) -> None:
    """P8: a validator with a fault of its own costs the others the answer, not the one who paid."""
    call = Counted(Moody.model_construct(text="paid"))
    with pytest.raises(ResultUnreadable) as refused:
        run("calm", {"key": unique}, call, scope="test", result_type=Moody)

    assert refused.value.value == Moody.model_construct(text="paid")
    with pytest.raises(FlightFailed, match="ResultUnreadable"):
        run("calm", {"key": unique}, call, scope="test", result_type=Moody)
    assert call.count == 1


def test_a_result_that_is_too_large_reaches_the_callers_of_its_process_alone(unique: str) -> None:
    """C34: those who waited beside the owner get it; for all others it is refused by name and size."""
    call = Held("x" * 200)
    with nodes(2) as (one, other):
        callers = at_once(3, one.run, "small", {"key": unique}, call)
        call.wait_until_begun()
        one.wait_for_callers(one.key("small", {"key": unique}), 3)
        remote = begin(other.run, "small", {"key": unique}, call)
        other.wait_for_follower("small")
        call.let_go()

        assert [outcome.value for outcome in results(callers)] == ["x" * 200] * 3
        seen = remote.exception(20)
        assert isinstance(seen, ResultTooLarge)
        assert (seen.size, seen.limit) == (202, 100)
        with pytest.raises(ResultTooLarge, match="has 202 bytes and max_result_bytes is 100"):
            one.run("small", {"key": unique}, call)
    assert call.count == 1


def test_a_hung_call_holds_no_key(unique: str) -> None:
    """R4: its followers are told, later callers call, and its own caller still gets its late value."""
    call = Held("late")
    with nodes(2) as (one, other):
        hung = begin(one.run, "hung", {"key": unique}, call)
        call.wait_until_begun()
        followers = [begin(node.run, "hung", {"key": unique}, call) for node in (one, other)]
        for follower in followers:
            assert isinstance(follower.exception(20), ExecutionTimedOut)

        newer = other.run("hung", {"key": unique}, Counted("newer"))
        call.let_go()
        late = hung.result(20)

        assert (newer.value, newer.role) == ("newer", Role.OWNER)
        assert (late.value, late.superseded) == ("late", True)
        assert one.run("hung", {"key": unique}, call).value == "newer"
        assert call.count == 1


def test_a_key_whose_owners_keep_dying_is_given_up(unique: str) -> None:
    """C15: with `max_takeovers` used up the next caller makes no call, but is told so; it lasts like any failure."""
    first, second = Held("never"), Held("never")
    with nodes(3) as three:
        dying = []
        for node, call in zip(three, (first, second), strict=False):
            dying.append(begin(node.run, "fast-twice", {"key": unique}, call))
            call.wait_until_begun()
            end_leases(node)

        for _ in range(2):
            with pytest.raises(OwnerLost, match="owners died 2 times"):
                three[2].run("fast-twice", {"key": unique}, Counted("not called"))
        first.let_go()
        second.let_go()
        assert all(outcome.superseded for outcome in results(dying))
