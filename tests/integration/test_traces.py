"""Spans of OpenTelemetry as the real SDK records them: who waited for whose call, and nothing that tells an answer."""

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import StatusCode, get_current_span

from singleflight_app import FlightFailed, Outcome, StillRunning
from singleflight_app.models import Flight
from tests.held import Counted, Held, begin
from tests.looped import AsyncHeld, loops
from tests.nodes import Node, nodes
from tests.outages import Outage
from tests.past import end_leases
from tests.spans import Spans, attributes, is_under, links, recorded, traceparent
from tests.stored import row_of

pytestmark = pytest.mark.django_db

ALLOWED = {"stage", "role", "layer", "flight_id", "generation", "status", "error.type"}


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spans]:
    with recorded(monkeypatch) as found:
        yield found


def ids(span: ReadableSpan) -> tuple[Any, Any]:
    return attributes(span)["flight_id"], attributes(span)["generation"]


def of(outcome: Outcome[Any]) -> tuple[Any, Any]:
    return outcome.flight_id, outcome.generation


def test_an_owner_claims_calls_and_settles_under_its_callers_span(spans: Spans, unique: str) -> None:
    """Spans of the function's own come under the call's, those of the flight under the caller's."""

    def call() -> str:
        with spans.span("http"):
            return "secret answer"

    with nodes(1) as (node,), spans.span("request"):
        outcome = node.run("calm-row", {"key": unique}, call, scope="secret scope")

    request, http = spans.one("request"), spans.one("http")
    claimed, called, settled = spans.one("claim"), spans.one("call"), spans.one("settle")
    assert is_under(called, request)
    assert is_under(settled, request)
    assert is_under(claimed, called)
    assert is_under(http, called)
    assert ids(called) == ids(settled) == of(outcome)
    assert (attributes(called)["role"], attributes(called)["layer"]) == ("owner", "call")
    assert attributes(called)["status"] == attributes(settled)["status"] == "succeeded"
    assert row_of(outcome).trace_parent == traceparent(called)


def test_no_span_tells_a_key_a_scope_or_an_answer(spans: Spans, unique: str) -> None:
    """Traces leave the house."""
    with nodes(2) as (one, other):
        for node in (one, other):
            node.run("calm-row", {"key": f"secret {unique}"}, lambda: "secret answer", scope="secret scope")

    told = [attributes(span) for span in spans.all()]
    assert told
    assert {name for attribute in told for name in attribute} <= ALLOWED
    assert "secret" not in repr([span.to_json() for span in spans.all()])


def test_an_async_call_runs_under_the_span_of_the_caller_that_led_it(spans: Spans, unique: str) -> None:
    """The call has a task of its own, and its spans a parent all the same."""

    async def call() -> str:
        with spans.span("http"):
            return "answer"

    async def ask(node: Node) -> Outcome[str]:
        with spans.span("request"):
            return await node.arun("calm-row", {"key": unique}, call)

    with nodes(1) as (node,), loops(1) as (loop,):
        outcome = loop.run(ask(node))

    called = spans.one("call")
    assert is_under(called, spans.one("request"))
    assert is_under(spans.one("http"), called)
    assert is_under(spans.one("settle"), spans.one("request"))
    assert row_of(outcome).trace_parent == traceparent(called)


def test_after_the_call_its_span_is_not_current_any_more(spans: Spans, unique: str) -> None:
    """What the caller does next belongs to the caller."""
    with nodes(1) as (node,), spans.span("request") as request:
        node.run("calm-row", {"key": unique}, lambda: "answer")

        assert get_current_span() is request


def test_a_follower_of_the_same_process_points_to_the_call(spans: Spans, unique: str) -> None:
    """In a thread and on a loop; each in a trace of its own."""
    call = Held("answer")
    with nodes(1) as (node,), loops(1) as (loop,):
        owner = begin(node.run, "calm", {"key": unique}, call)
        call.wait_until_begun()
        thread = begin(node.run, "calm", {"key": unique}, call)
        key = node.key("calm", {"key": unique})
        node.wait_for_callers(key, 2)
        task = loop.begin(node.arun("calm", {"key": unique}, AsyncHeld("answer")))
        node.wait_for_callers(key, 3)
        call.let_go()
        outcomes = [future.result(20) for future in (owner, thread, task)]

    called, waits = spans.one("call"), spans.named("wait")
    assert [links(span) for span in waits] == [[traceparent(called)]] * 2
    for wait in waits:
        assert ids(wait) == of(outcomes[0])
        told = attributes(wait)
        assert (told["role"], told["layer"], told["status"]) == ("follower", "process", "succeeded")


def test_a_follower_of_another_process_points_to_the_call(spans: Spans, unique: str) -> None:
    """The row tells it, while the call still runs."""
    call = Held("answer")
    with nodes(2) as (one, other):
        owner = begin(one.run, "calm-row", {"key": unique}, call)
        call.wait_until_begun()
        running = Flight.objects.get(status="running", owner=one.name)
        follower = begin(other.run, "calm-row", {"key": unique}, call)
        other.wait_for_follower("calm-row")
        call.let_go()
        owner.result(20)
        follower.result(20)

    called, wait = spans.one("call"), spans.one("wait")
    assert running.trace_parent == traceparent(called)
    assert links(wait) == [traceparent(called)]
    told = attributes(wait)
    assert (told["role"], told["layer"], told["status"]) == ("follower", "database", "succeeded")
    claims = {attributes(span).get("role") for span in spans.named("claim")}
    assert "follower" in claims


def test_a_replay_from_the_row_points_to_the_call_that_was_made(spans: Spans, unique: str) -> None:
    """The claim that found the outcome is all that there is of a replay."""
    with nodes(2) as (one, other):
        one.run("calm-row", {"key": unique}, lambda: "answer")
        other.run("calm-row", {"key": unique}, lambda: "else")

    (replayed,) = [span for span in spans.named("claim") if attributes(span).get("role") == "replay"]
    assert links(replayed) == [traceparent(spans.one("call"))]
    assert attributes(replayed)["status"] == "succeeded"


def test_a_takeover_is_a_call_of_its_own_and_the_row_tells_the_newer_one(spans: Spans, unique: str) -> None:
    """The follower that takes over has waited for the first call; the fenced settle says so."""
    first = Held("late")
    with nodes(2) as (one, other):
        late = begin(one.run, "fast", {"key": unique}, first)
        first.wait_until_begun()
        second = begin(other.run, "fast", {"key": unique}, Counted("newer"))
        other.wait_for_follower("fast")
        end_leases(one)
        newer = second.result(20)
        first.let_go()
        late.result(20)

    by_generation = {attributes(span)["generation"]: span for span in spans.named("call")}
    assert len(by_generation) == 2
    old, new = (by_generation[generation] for generation in sorted(by_generation))
    assert row_of(newer).trace_parent == traceparent(new)
    first_wait = spans.named("wait")[0]
    assert links(first_wait) == [traceparent(old)]
    assert {attributes(span)["status"] for span in spans.named("settle")} == {"succeeded", "fenced"}


def test_a_failure_is_told_by_its_type_alone(spans: Spans, unique: str) -> None:
    """Its message may hold an answer."""

    def call() -> str:
        raise ValueError("secret message")

    with nodes(1) as (node,), pytest.raises(ValueError, match="secret"):
        node.run("calm-row", {"key": unique}, call)

    called = spans.one("call")
    assert called.status.status_code is StatusCode.ERROR
    assert attributes(called)["error.type"] == "builtins.ValueError"
    assert attributes(called)["status"] == "failed"
    assert attributes(spans.one("settle"))["status"] == "failed"
    assert not called.events
    assert "secret" not in repr([span.to_json() for span in spans.all()])


def test_a_stored_failure_that_a_follower_gets_is_no_error_of_its_wait(spans: Spans, unique: str) -> None:
    """It waited to the end; the call's span has the error."""
    call = Held("", error=ValueError("secret"))
    with nodes(2) as (one, other):
        owner = begin(one.run, "calm-row", {"key": unique}, call)
        call.wait_until_begun()
        follower = begin(other.run, "calm-row", {"key": unique}, call)
        other.wait_for_follower("calm-row")
        call.let_go()
        assert isinstance(owner.exception(20), ValueError)
        assert isinstance(follower.exception(20), FlightFailed)

    wait = spans.one("wait")
    assert (wait.status.status_code, attributes(wait)["status"]) == (StatusCode.UNSET, "failed")


def test_a_wait_whose_budget_ended_points_to_the_call_that_goes_on(spans: Spans, unique: str) -> None:
    """That call is what its caller wants to look at."""
    call = Held("answer")
    with nodes(2) as (one, other):
        owner = begin(one.run, "calm-row", {"key": unique}, call)
        call.wait_until_begun()
        with pytest.raises(StillRunning):
            other.run("calm-row", {"key": unique}, call, wait_timeout=0.2)
        with pytest.raises(StillRunning):
            one.run("calm-row", {"key": unique}, call, wait_timeout=0.2)
        waits = spans.named("wait")
        call.let_go()
        owner.result(20)

    called = spans.one("call")
    assert [links(wait) for wait in waits] == [[traceparent(called)]] * 2
    assert {attributes(wait)["error.type"].rpartition(".")[2] for wait in waits} <= {"StillRunning", "TimeoutError"}


def test_what_is_not_sampled_is_told_to_nobody(monkeypatch: pytest.MonkeyPatch, unique: str) -> None:
    """A link to a span that was never recorded leads nowhere."""
    with recorded(monkeypatch, ParentBased(ALWAYS_OFF)) as spans, nodes(2) as (one, other):
        outcome = one.run("calm-row", {"key": unique}, lambda: "answer")
        other.run("calm-row", {"key": unique}, lambda: "answer")

        assert (spans.all(), row_of(outcome).trace_parent) == ([], "")


def test_without_a_provider_nothing_is_told(unique: str) -> None:
    """Having the package installed is not tracing."""
    with nodes(1) as (node,):
        outcome = node.run("calm-row", {"key": unique}, lambda: "answer")

    assert row_of(outcome).trace_parent == ""


def test_a_provider_that_comes_later_is_found(monkeypatch: pytest.MonkeyPatch, unique: str) -> None:
    """A project may set it up after its first call."""
    with nodes(1) as (node,):
        node.run("calm-row", {"key": unique}, lambda: "answer")
        with recorded(monkeypatch) as spans:
            node.run("calm-row", {"key": f"{unique} again"}, lambda: "answer")

            assert len(spans.named("call")) == 1


def test_a_degraded_call_has_its_span(spans: Spans, outage: Outage, unique: str) -> None:
    """Without a generation, and beside the claim that found no database."""
    with nodes(1) as (node,):
        node.run("calm-row", {"key": f"{unique} before"}, lambda: "answer")
        outage.begin()
        outcome = node.run("calm-row", {"key": unique}, lambda: "degraded")

    assert outcome.degraded
    called = spans.named("call")[-1]
    assert (attributes(called)["status"], "generation" in attributes(called)) == ("succeeded", False)
    assert attributes(spans.named("claim")[-1])["error.type"].endswith("CoordinationUnavailable")


class Broken(SpanExporter):
    """What a project's own processor may do wrong, at every turn."""

    def __getattribute__(self, name: str) -> Any:  # noqa: ANN401
        if name in {"on_start", "on_end"}:
            raise RuntimeError("the processor is broken")
        return super().__getattribute__(name)


def test_a_broken_processor_costs_no_answer(spans: Spans, unique: str, caplog: pytest.LogCaptureFixture) -> None:
    """P8: nor does the row keep anything but its outcome."""
    spans.provider._active_span_processor._span_processors = (Broken(),)  # type: ignore[assignment]
    with nodes(2) as (one, other):
        outcome = one.run("calm-row", {"key": unique}, lambda: "answer")
        again = other.run("calm-row", {"key": unique}, lambda: "else")

    assert (outcome.value, again.value) == ("answer", "answer")
    assert "the trace lost a span" in caplog.text
