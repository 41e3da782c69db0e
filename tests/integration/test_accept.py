"""`accept=` and Rejected: what a provider returned is looked at before it counts as an answer (C33)."""

import asyncio
from typing import Any

import pytest
from pytest_django.fixtures import Settings as DjangoSettings

from singleflight_app import FlightFailed, InvalidRequest, Rejected, run, single_flight
from singleflight_app.models import Flight
from tests.held import Counted
from tests.looped import a_turn
from tests.nodes import nodes

pytestmark = pytest.mark.django_db

ERROR_BODY = {"error": "overloaded"}
replies: dict[str, Any] = {}


def no_error_body(reply: dict[str, str]) -> None:
    """Refuse what is no answer."""
    if "error" in reply:
        raise Rejected(reply["error"], retryable="again" in reply, retry_after=float(reply.get("after", 0)) or None)


@single_flight("accept", scope="test", accept=no_error_body)
def ask(name: str) -> dict[str, str]:
    """Reply as the test says."""
    reply: dict[str, str] = replies[name]()
    return reply


@single_flight("accept-async", scope="test", accept=no_error_body)
async def ask_async(name: str) -> dict[str, str]:
    """Reply as the test says."""
    await a_turn()
    reply: dict[str, str] = replies[name]()
    return reply


@pytest.mark.parametrize("stage", ["calm", "calm-memory", "calm-redis", "calm-row"])
def test_what_was_rejected_is_no_answer_on_any_layer(unique: str, stage: str) -> None:
    """C33: its own caller sees Rejected with what was paid for; everybody else a failure, here and on another node."""
    reply = Counted(ERROR_BODY)
    with nodes(2) as (one, other):
        with pytest.raises(Rejected, match="overloaded") as own:
            one.run(stage, {"key": unique}, reply, accept=no_error_body)
        for node in (one, other):
            with pytest.raises(FlightFailed, match="Rejected: overloaded"):
                node.run(stage, {"key": unique}, reply, accept=no_error_body)

    assert own.value.value == ERROR_BODY
    assert reply.count == 1


def test_an_answer_that_is_accepted_is_an_answer(unique: str) -> None:
    """It is looked at once, by the owner alone."""
    looked: list[dict[str, str]] = []
    with nodes(2) as (one, other):
        call = Counted({"points": "7"})
        values = [node.run("calm", {"key": unique}, call, accept=looked.append).value for node in (one, other)]

    assert values == [{"points": "7"}] * 2
    assert looked == [{"points": "7"}]


@pytest.mark.parametrize("is_retryable", [True, False])
def test_a_retryable_rejection_lets_the_next_caller_call(unique: str, *, is_retryable: bool) -> None:
    """As an exception that is listed in `retry_on` does."""
    replies[unique] = Counted({**ERROR_BODY, **({"again": "yes"} if is_retryable else {})}, {"points": "7"})
    with pytest.raises(Rejected):
        ask(unique)

    if is_retryable:
        assert ask(unique) == {"points": "7"}
    else:
        with pytest.raises(FlightFailed) as replayed:
            ask(unique)
        assert not replayed.value.retryable


def test_a_rejection_may_say_when_to_come_again(unique: str) -> None:
    """C39: until then it is replayed; the row knows the time."""
    replies[unique] = Counted({**ERROR_BODY, "again": "yes", "after": "600"}, {"points": "7"})
    with pytest.raises(Rejected):
        ask(unique)
    with pytest.raises(FlightFailed, match="overloaded") as replayed:
        ask(unique)

    assert replayed.value.retryable
    assert replayed.value.generation is not None
    flight = Flight.objects.get(generation=replayed.value.generation)
    assert flight.retry_at is not None
    assert flight.settled_at is not None
    assert 590 < (flight.retry_at - flight.settled_at).total_seconds() < 610


def test_a_rejected_answer_is_asked_for_again_where_the_stage_retries(unique: str) -> None:
    """C38: within the same flight."""
    reply = Counted({**ERROR_BODY, "again": "yes"}, {"points": "7"})
    with nodes(1) as (node,):
        outcome = node.run("retrying", {"key": unique}, reply, accept=no_error_body)

    assert (outcome.value, reply.count) == ({"points": "7"}, 2)


def test_an_async_answer_is_looked_at_once_it_is_there(unique: str) -> None:
    """Not the coroutine."""
    replies[unique] = Counted(ERROR_BODY)

    with pytest.raises(Rejected) as own:
        asyncio.run(_awaited(unique))

    assert own.value.value == ERROR_BODY


async def _awaited(name: str) -> dict[str, str]:
    return await ask_async(name)


def test_the_function_itself_may_reject(unique: str) -> None:
    """Where it knows best."""

    def call() -> str:
        raise Rejected("cut off in mid-sentence", retryable=True)

    with pytest.raises(Rejected, match="cut off"):
        run("calm", {"key": unique}, call, scope="test")
    assert run("calm", {"key": unique}, Counted("whole"), scope="test").value == "whole"


def test_a_fault_in_accept_is_a_failure_like_any_other(unique: str) -> None:
    """An answer that was not looked at is none."""

    def broken(_: object) -> None:
        raise KeyError("points")

    with pytest.raises(KeyError):
        run("calm", {"key": unique}, Counted("answer"), scope="test", accept=broken)
    with pytest.raises(FlightFailed, match="KeyError"):
        run("calm", {"key": unique}, Counted("not called"), scope="test", accept=broken)


def test_without_a_database_it_looks_as_well(unique: str, settings: DjangoSettings) -> None:
    """Local mode has the same eyes."""
    settings.SINGLEFLIGHT = {**settings.SINGLEFLIGHT, "MODE": "local"}

    with pytest.raises(Rejected):
        run("calm", {"key": unique}, Counted(ERROR_BODY), scope="test", accept=no_error_body)
    with pytest.raises(FlightFailed):
        run("calm", {"key": unique}, Counted(ERROR_BODY), scope="test", accept=no_error_body)


@pytest.mark.parametrize("accept", ["no function", 7])
def test_an_accept_that_can_not_be_called_is_refused(unique: str, accept: Any) -> None:  # noqa: ANN401
    """At once, not when the first answer was paid for."""
    with pytest.raises(InvalidRequest, match="accept"):
        run("calm", {"key": unique}, Counted("not called"), scope="test", accept=accept)
