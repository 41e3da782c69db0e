"""Background flights on real Celery workers: the row is the queue, a message only a nudge (design section 8)."""

from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import pytest
from django.db import transaction
from pydantic import JsonValue

from singleflight_app import FlightFailed, InvalidRequest, Overloaded, ResultUnreadable, Role, StillRunning
from singleflight_app.api import sweep
from singleflight_app.domain.keys import FlightKey
from singleflight_app.engine.call import Call
from singleflight_app.models import Flight
from singleflight_app.outcomes.codec import for_policy
from singleflight_app.tasks import run_flight
from singleflight_app.wiring import runtime
from tests.background import Question, Workers, answer, begun, broker_away, failing, let_go, remembered, typed, untyped
from tests.held import Counted, Held, begin
from tests.nodes import Node, nodes
from tests.past import age_pending, delete, end_lease
from tests.stored import events_of, row_of
from tests.waiting import until

pytestmark = pytest.mark.django_db

WAIT = 20.0


@pytest.fixture(scope="module")
def workers(django_db_setup: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    """The workers of this module's tests: one, unless a test wants more or kills it."""
    with Workers(tmp_path_factory.mktemp("workers")) as found:
        yield found


@pytest.fixture
def _worker(workers: Workers) -> None:
    workers.have(1)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path)


@pytest.mark.usefixtures("_worker")
def test_a_submitted_call_runs_on_a_worker(folder: str, tmp_path: Path) -> None:
    """The handle brings its outcome, whose arguments the row no longer holds; each move has its audit row."""
    handle = answer.submit(folder, "once")

    outcome = handle.wait(WAIT)

    (call,) = begun(tmp_path, "once")
    assert (outcome.value.text, outcome.value.given_by) == ("once", str(call["pid"]))
    assert outcome.generation == outcome.value.generation == call["generation"]
    flight = row_of(handle)
    assert (flight.status, flight.arguments) == ("succeeded", None)
    assert events_of(handle) == ["submitted", "granted", "settled"]


@pytest.mark.usefixtures("_worker")
def test_whoever_asks_meanwhile_follows_the_worker(folder: str, tmp_path: Path) -> None:
    """P1, P2: submitted again or asked in the foreground, it is one call; afterwards both replay it."""
    handle = answer.submit(folder, "shared", is_held=True)
    until(lambda: begun(tmp_path, "shared"), "the worker's call")
    again = answer.submit(folder, "shared", is_held=True)
    foreground = begin(answer.outcome, folder, "shared", is_held=True)
    with pytest.raises(StillRunning):
        again.wait(0)
    let_go(tmp_path, "shared")

    values = [handle.wait(WAIT).value, again.wait(WAIT).value, foreground.result(WAIT).value]
    later = answer.submit(folder, "shared", is_held=True)

    assert again.flight_id == handle.flight_id == later.flight_id
    assert len({value.given_by for value in values}) == 1
    assert later.wait(0).value == values[0]
    assert len(begun(tmp_path, "shared")) == 1


@pytest.mark.usefixtures("_worker")
def test_a_call_that_fails_on_a_worker_fails_for_whoever_waits(unique: str) -> None:
    """Text of the failure, never a pickled exception."""
    with pytest.raises(FlightFailed, match=f"builtins.ValueError: no {unique}"):
        failing.submit(unique).wait(WAIT)


@pytest.mark.usefixtures("_worker")
def test_arguments_reach_the_worker_as_what_they_were(unique: str) -> None:
    """By their annotations: no date as text, no model as a dict."""
    question = Question(questionText=unique, asked_at=datetime(2026, 5, 1, tzinfo=UTC))

    outcome = typed.submit(datetime(2026, 5, 1, 12, tzinfo=UTC), UUID(unique), question).wait(WAIT)

    assert outcome.value == f"datetime UUID Question {unique}"


@pytest.mark.parametrize("value", [UUID(int=1), (1, 2), Decimal("1.5"), b"\xff", datetime(2026, 5, 1, tzinfo=UTC)])
def test_an_argument_that_would_arrive_as_something_else_is_refused(value: object) -> None:
    """By name and with the repair; no row is left behind."""
    with pytest.raises(InvalidRequest, match=r"argument value .* annotate it"):
        untyped.submit(value)

    assert not Flight.objects.filter(digest=untyped.key(value).digest).exists()


@pytest.mark.usefixtures("_worker")
def test_a_message_that_comes_twice_does_nothing(folder: str, tmp_path: Path) -> None:
    """C27: beside a live lease, and after the end."""
    handle = answer.submit(folder, "twice", is_held=True)
    until(lambda: begun(tmp_path, "twice"), "the worker's call")
    assert handle.flight_id is not None

    beside = run_flight(handle.flight_id)
    let_go(tmp_path, "twice")
    handle.wait(WAIT)
    afterwards = run_flight(handle.flight_id)

    assert (beside, afterwards) == ("another worker runs it", "nothing to do")
    assert run_flight(2**40) == "nothing to do"
    assert len(begun(tmp_path, "twice")) == 1


@pytest.mark.usefixtures("_worker")
def test_a_lost_message_is_sent_again_by_the_sweep(folder: str, tmp_path: Path) -> None:
    """C27: the process died between its commit and its message; sent again not before its time, and spaced."""
    flight = _committed_without_message(folder, "lost")
    sweep()
    sent_early = _sent_at(flight)
    age_pending(flight.generation)
    aged = _sent_at(flight)

    sweep()
    sent_again = _sent_at(flight)

    assert sent_early == flight.sent_at
    assert sent_again > aged
    until(lambda: begun(tmp_path, "lost"), "the worker's call")
    assert answer.submit(folder, "lost").wait(WAIT).value.text == "lost"
    assert len(begun(tmp_path, "lost")) == 1


@pytest.mark.usefixtures("_worker")
def test_a_broker_that_is_away_costs_time_not_the_flight(folder: str, tmp_path: Path) -> None:
    """P6: submitting succeeds, for the row is committed; the sweep sends the message once the broker is back."""
    with broker_away():
        handles = [answer.submit(folder, name) for name in ("away", "away-too")]
    with pytest.raises(StillRunning):
        handles[0].wait(0)
    for handle in handles:
        age_pending(handle.generation)

    sweep()

    assert [handle.wait(WAIT).value.text for handle in handles] == ["away", "away-too"]


def test_the_flight_of_a_killed_worker_is_swept_and_run_again(workers: Workers, folder: str, tmp_path: Path) -> None:
    """C11, C27: SIGKILL in mid-call loses the message too; the row knows what to do, and counts the duplicate."""
    workers.have(2)
    handle = answer.submit(folder, "killed", is_held=True)
    until(lambda: begun(tmp_path, "killed"), "the first call")
    first = begun(tmp_path, "killed")[0]
    workers.kill(first["pid"])
    sweep()
    in_grace = row_of(handle)
    end_lease(first["generation"])

    sweep()

    until(lambda: len(begun(tmp_path, "killed")) == 2, "the second call")
    let_go(tmp_path, "killed")
    outcome = handle.wait(WAIT)
    assert (in_grace.status, in_grace.generation) == ("running", first["generation"])
    assert outcome.value.given_by == str(begun(tmp_path, "killed")[1]["pid"]) != str(first["pid"])
    assert (outcome.generation or 0) > first["generation"]
    flight = row_of(handle)
    assert (flight.status, flight.takeovers) == ("succeeded", 1)
    assert events_of(handle) == ["submitted", "granted", "requeued", "granted", "settled"]


@pytest.mark.usefixtures("_worker")
def test_a_worker_that_remembers_a_forgotten_answer_calls_anew(folder: str) -> None:
    """R15: what was submitted after a forget is run, whatever the worker's own memory holds."""
    first = remembered.submit(folder, "anew").wait(WAIT)
    remembered.forget(folder, "anew")

    second = remembered.submit(folder, "anew").wait(WAIT)

    assert (first.value, second.value) == (1, 2)


@pytest.mark.usefixtures("_worker")
def test_submitting_commits_at_once(folder: str, tmp_path: Path) -> None:
    """P5: a transaction that rolls back takes nothing of the flight with it; on_commit waits for the rows."""
    with transaction.atomic():
        handle = answer.submit(folder, "committed")
        transaction.set_rollback(True)

    assert handle.wait(WAIT).value.text == "committed"
    assert len(begun(tmp_path, "committed")) == 1


@pytest.mark.usefixtures("_worker")
def test_a_handle_of_a_purged_flight_says_so(folder: str) -> None:
    """It finds its flight by id; what is gone is not waited for."""
    handle = answer.submit(folder, "purged")
    outcome = handle.wait(WAIT)
    delete(outcome.generation)

    with pytest.raises(ResultUnreadable, match="is gone, since it was purged; call the function again"):
        handle.wait(WAIT)


def test_submitting_what_was_forgotten_and_still_runs_is_put_off(unique: str) -> None:
    """Its end would be the forgotten answer: the caller is told when to come again."""
    call = answer
    with nodes(1) as (node,):
        held = Held("old")
        owner = begin(node.runtime.coordinator.run, _call_of(node, call.key("nowhere", unique), held))
        held.wait_until_begun()
        call.forget("nowhere", unique)

        with pytest.raises(Overloaded, match="no answer any more still runs") as refused:
            call.submit("nowhere", unique)
        held.let_go()
        owner.result(WAIT)

    assert refused.value.retry_after > 0


def test_a_pending_flight_that_no_worker_takes_is_run_by_whoever_waits(unique: str) -> None:
    """R8: past `pending_timeout`, by a caller that has waited since before."""
    with nodes(1) as (node,):
        key = node.key("queued", {"key": unique})
        answered = node.runtime.queue.submit(key, label="", arguments={})
        assert answered is not None
        pending = answered[1]

        outcome = node.run("queued", {"key": unique}, Counted("mine"), wait_timeout=WAIT)

    assert (outcome.value, outcome.role, outcome.flight_id) == ("mine", Role.OWNER, pending.flight_id)
    assert (outcome.generation or 0) > pending.generation


def test_a_worker_that_does_not_know_the_function_says_so(unique: str, caplog: pytest.LogCaptureFixture) -> None:
    """Another release may have put it there; the flight stays for one that knows it."""
    with nodes(1) as (node,):
        answered = node.runtime.queue.submit(node.key("nobodys", {"key": unique}), label="", arguments={"x": "1"})
    assert answered is not None

    assert run_flight(answered[1].flight_id) == "nothing to do"

    assert "waits for a function that this worker does not know" in caplog.text
    assert Flight.objects.get(pk=answered[1].flight_id).status == "pending"


def test_a_stored_call_that_no_longer_fits_its_function_fails_with_a_sentence(unique: str) -> None:
    """A release that renamed an argument meets a row of the one before it: no worker dies of it."""
    with nodes(1) as (node,):
        answered = node.runtime.queue.submit(failing.key(unique), label="", arguments={"renamed": '"x"'})
    assert answered is not None

    assert run_flight(answered[1].flight_id) == "failed"

    flight = Flight.objects.get(pk=answered[1].flight_id)
    assert flight.status == "failed"
    assert "do not fit the function any more" in flight.error_message


def _committed_without_message(folder: str, name: str) -> Flight:
    """Do what `submit` does up to the message."""
    arguments = answer._arguments.dump({"folder": folder, "name": name, "is_held": False})
    answered = runtime().queue.submit(answer.key(folder, name), label="", arguments=arguments)
    assert answered is not None
    return Flight.objects.get(pk=answered[1].flight_id)


def _sent_at(flight: Flight) -> datetime:
    sent_at = Flight.objects.get(pk=flight.pk).sent_at
    assert sent_at is not None
    return sent_at


def _call_of(node: Node, key: FlightKey, function: Held[str]) -> Call[str]:
    policy = node.runtime.settings.policy(key.stage)
    return Call(key, policy, function, for_policy(JsonValue, policy), policy.wait)
