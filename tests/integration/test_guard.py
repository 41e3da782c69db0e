"""What stands between a flight and a provider that fails: tries again inside the call, and a breaker (C38, C39)."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest

from singleflight_app import FlightContext, FlightFailed, Overloaded, Role, Usage, current_flight
from singleflight_app.models import Flight
from singleflight_app.telemetry.signals import breaker_opened
from tests.held import PATIENCE, Counted, Held, begin
from tests.nodes import Node, nodes
from tests.stored import events_of, row_of
from tests.waiting import until

pytestmark = pytest.mark.django_db

Asking = Callable[..., Any]


class Answered(Exception):
    """A provider's refusal, as SDKs raise it."""

    def __init__(self, status: int, *, retry_after: float | None = None) -> None:
        super().__init__(f"status {status}")
        self.status_code, self.retry_after = status, retry_after


class Refused(Answered, ConnectionError):
    """The same, of a class that this stage lists."""


class Overtaken(ConnectionError):
    """An error whose pause is as long as it takes: whoever asks for its Retry-After lets things happen meanwhile."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        super().__init__("reset")
        self._meanwhile = meanwhile

    @property
    def retry_after(self) -> float:
        """Let them happen."""
        self._meanwhile()
        return 0.0


class Provider:
    """A model that raises what it is given, in turn, and answers then; it notes the attempts, and wants to be paid."""

    def __init__(self, *errors: Exception) -> None:
        self._errors, self.attempts = list(errors), list[int]()

    def __call__(self) -> str:
        self.attempts.append(current_flight().attempt)
        current_flight().record_usage(model="small", input_tokens=10, output_tokens=1, cost=Decimal("0.5"))
        if self._errors:
            raise self._errors.pop(0)
        return "answer"


@pytest.fixture
def openings() -> Iterator[list[str]]:
    """Stages whose breakers opened, as it is announced."""
    seen: list[str] = []

    def remember(*, stage: str, **_: object) -> None:
        seen.append(stage)

    breaker_opened.connect(remember)
    yield seen
    breaker_opened.disconnect(remember)


@pytest.fixture(params=["thread", "loop"])
def ask(request: pytest.FixtureRequest) -> Asking:
    """Ask in a thread, and on an event loop."""
    if request.param == "thread":
        return Node.run

    def on_a_loop(node: Node, stage: str, key: dict[str, str], function: Callable[[], object], **given: Any) -> Any:  # noqa: ANN401
        async def awaited() -> object:
            return function()

        return asyncio.run(node.arun(stage, key, awaited, **given))

    return on_a_loop


def test_a_call_tries_again_inside_its_flight(unique: str, ask: Asking) -> None:
    """C38: one flight, its attempts counted and visible, what all of them consumed added up."""
    model = Provider(ConnectionError("reset"), TimeoutError("slow"))
    with nodes(1) as (node,):
        outcome = ask(node, "retrying", {"key": unique}, model)

    assert (outcome.value, outcome.role) == ("answer", Role.OWNER)
    assert model.attempts == [1, 2, 3]
    assert outcome.usage == Usage("small", 30, 3, Decimal("1.5"))
    assert (row_of(outcome).attempts, row_of(outcome).cost) == (3, Decimal("1.5"))
    assert events_of(outcome) == ["granted", "settled"]


def test_the_last_error_is_the_end(unique: str, ask: Asking) -> None:
    """After `attempts` in all; later callers may call at once, and count on from there."""
    model = Provider(*(ConnectionError(f"reset {number}") for number in range(4)))
    with nodes(1) as (node,):
        with pytest.raises(ConnectionError, match="reset 2"):
            ask(node, "retrying", {"key": unique}, model)
        outcome = ask(node, "retrying", {"key": unique}, model)

    assert model.attempts == [1, 2, 3, 4, 5]
    assert row_of(outcome).attempts == 5


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_provider_that_asks_to_come_again_is_asked_again(unique: str, status: int) -> None:
    """C39: by its status, whatever the class."""
    model = Provider(Answered(status))
    with nodes(1) as (node,):
        assert node.run("retrying", {"key": unique}, model).value == "answer"

    assert model.attempts == [1, 2]


def test_a_request_at_fault_is_not_made_again(unique: str) -> None:
    """C39: 4xx, though its class is listed."""
    model = Provider(Refused(422))
    with nodes(1) as (node,):
        with pytest.raises(Refused):
            node.run("retrying", {"key": unique}, model)
        with pytest.raises(FlightFailed, match="status 422") as replayed:
            node.run("retrying", {"key": unique}, model)

    assert model.attempts == [1]
    assert not replayed.value.retryable


def test_a_retry_after_longer_than_the_pause_is_kept(unique: str, ask: Asking) -> None:
    """C39: the pause of this stage is a millisecond; the provider wants more, and something else happens meanwhile."""
    meanwhile = threading.Event()
    seen: list[bool] = []
    model = Provider(Answered(429, retry_after=1))

    def call() -> str:
        seen.append(meanwhile.is_set())
        threading.Timer(0.05, meanwhile.set).start()
        return model()

    with nodes(1) as (node,):
        ask(node, "retrying", {"key": unique}, call)

    assert seen == [False, True]


def test_a_pause_that_outlasts_the_wait_budget_ends_the_trying(unique: str, ask: Asking) -> None:
    """C39: nobody would wait for it; the row keeps when the provider may be asked again, and so long nobody asks."""
    model = Provider(Answered(429, retry_after=600))
    with nodes(1) as (node,):
        with pytest.raises(Answered):
            ask(node, "retrying", {"key": unique}, model)
        with pytest.raises(FlightFailed, match="status 429") as replayed:
            ask(node, "retrying", {"key": unique}, model)

    assert replayed.value.generation is not None
    flight = Flight.objects.get(generation=replayed.value.generation)
    assert model.attempts == [1]
    assert replayed.value.retryable
    assert flight.retry_at is not None
    assert flight.settled_at is not None
    assert flight.expires_at is not None
    assert 590 < (flight.retry_at - flight.settled_at).total_seconds() < 610
    assert (flight.expires_at - flight.settled_at).total_seconds() > 590


def test_a_lease_that_is_lost_ends_the_trying(unique: str) -> None:
    """Another caller may run the call by now."""
    calls = []
    with nodes(1) as (node,):

        def call() -> None:
            calls.append(current_flight())
            _lose_lease(node, current_flight())
            raise ConnectionError("reset")

        with pytest.raises(ConnectionError):
            node.run("retrying-fast", {"key": unique}, call)

    assert len(calls) == 1


def test_a_lease_that_is_lost_in_the_pause_ends_the_trying(unique: str) -> None:
    """The pause may be long: the lease is looked at again after it, and the newer answer is everybody's."""
    calls: list[FlightContext] = []
    taken: list[object] = []
    with nodes(2) as (one, other):

        def take_over() -> None:
            if not taken:
                taken.append(calls[0])
                _lose_lease(one, calls[0])
                begin(other.run, "retrying-fast", {"key": unique}, Counted("newer")).result(20)

        def call() -> str:
            calls.append(current_flight())
            raise Overtaken(take_over)

        outcome = one.run("retrying-fast", {"key": unique}, call)

    assert outcome.value == "newer"
    assert len(calls) == len(taken) == 1


def test_a_hung_call_is_not_made_again(unique: str) -> None:
    """Past `execution_timeout` the flight is settled, and another caller may run it."""
    hung = Held("unused", error=ConnectionError("reset"))
    with nodes(1) as (node,):
        owner = begin(node.run, "retrying-hung", {"key": unique}, hung)
        hung.wait_until_begun()
        digest = node.key("retrying-hung", {"key": unique}).digest
        until(lambda: Flight.objects.filter(digest=digest, status="timed_out"), "the hung call's end")
        hung.let_go()

        assert isinstance(owner.exception(PATIENCE), ConnectionError)
    assert hung.count == 1


def test_a_breaker_opens_after_failures_in_a_row_and_replays_go_on(unique: str, ask: Asking) -> None:
    """Calls are refused at once, with when to ask again; what is stored answers all the same."""
    unused = Counted("not called")
    with nodes(1) as (node,):
        ask(node, "breaking", {"key": f"{unique} stored"}, Counted("stored"))
        _fail(ask, node, "breaking", unique, ConnectionError("1"), ConnectionError("2"))

        with pytest.raises(Overloaded, match="the last 2 calls of stage breaking failed") as refused:
            ask(node, "breaking", {"key": unique}, unused)

        assert 0 < refused.value.retry_after <= 60
        assert ask(node, "breaking", {"key": f"{unique} stored"}, unused).value == "stored"
    assert unused.count == 0


def test_followers_need_no_closed_breaker(unique: str) -> None:
    """A call that runs may be joined: it asks nothing more of the provider."""
    held = Held("running")
    with nodes(2) as (one, other):
        owner = begin(one.run, "breaking", {"key": unique}, held)
        held.wait_until_begun()
        _fail(Node.run, other, "breaking", unique, ConnectionError("1"), ConnectionError("2"))
        follower = begin(other.run, "breaking", {"key": unique}, Counted("not called"))
        other.wait_for_follower("breaking")
        held.let_go()

        assert (follower.result(20).value, owner.result(20).value) == ("running", "running")


@pytest.mark.parametrize("between", [None, Answered(400), ValueError("our own mistake")])
def test_a_provider_that_answers_keeps_the_breaker_closed(unique: str, between: Exception | None) -> None:
    """A success, a refusal of the request, and a mistake of the function's own end the row of failures."""
    with nodes(1) as (node,):
        _fail(Node.run, node, "breaking", unique, ConnectionError("1"))
        if between is None:
            node.run("breaking", {"key": f"{unique} between"}, Counted("fine"))
        else:
            _fail(Node.run, node, "breaking", f"{unique} between", between)
        _fail(Node.run, node, "breaking", f"{unique} after", ConnectionError("2"))

        assert node.run("breaking", {"key": unique}, Counted("called")).value == "called"


def test_requests_at_fault_never_open_a_breaker(unique: str) -> None:
    """They show that the provider answers."""
    with nodes(1) as (node,):
        _fail(Node.run, node, "breaking", unique, *(Answered(400) for _ in range(5)))

        assert node.run("breaking", {"key": unique}, Counted("called")).value == "called"


def test_after_the_pause_one_call_finds_out_and_the_others_are_refused(unique: str, ask: Asking) -> None:
    """A provider that comes back is not met by everybody at once; a success closes the breaker."""
    probe = Held("back again")
    with nodes(1) as (node,):
        _fail(ask, node, "mending", unique, ConnectionError("down"))
        probing = begin(_until_let_through, node, "mending", {"key": unique}, probe)
        probe.wait_until_begun()

        with pytest.raises(Overloaded, match="its breaker is open"):
            ask(node, "mending", {"key": f"{unique} meanwhile"}, Counted("not called"))
        probe.let_go()

        assert probing.result(20).value == "back again"
        assert ask(node, "mending", {"key": f"{unique} later"}, Counted("called")).value == "called"


def test_a_probe_that_fails_opens_the_breaker_again(unique: str) -> None:
    """For another pause, after which the next one finds out."""
    with nodes(1) as (node,):
        _fail(Node.run, node, "mending", unique, ConnectionError("down"))
        with pytest.raises(ConnectionError):
            _until_let_through(node, "mending", {"key": unique}, Provider(ConnectionError("still down")))

        assert _until_let_through(node, "mending", {"key": unique}, Counted("back")).value == "back"


def test_each_opening_is_announced_once(unique: str, openings: list[str]) -> None:
    """Not each failure, nor each caller that is refused; a probe that fails opens it once more."""
    with nodes(1) as (node,):
        _fail(Node.run, node, "breaking", unique, ConnectionError("1"))
        assert openings == []
        _fail(Node.run, node, "breaking", f"{unique} 2", ConnectionError("2"))
        with pytest.raises(Overloaded):
            node.run("breaking", {"key": f"{unique} 3"}, Counted("not called"))
        assert openings == ["breaking"]

        _fail(Node.run, node, "mending", unique, ConnectionError("down"))
        with pytest.raises(ConnectionError):
            _until_let_through(node, "mending", {"key": unique}, Provider(ConnectionError("still down")))
        assert openings == ["breaking", "mending", "mending"]
        _until_let_through(node, "mending", {"key": unique}, Counted("back"))
    assert len(openings) == 3


def test_a_probe_that_makes_no_call_leaves_the_turn_to_the_next(unique: str) -> None:
    """A replay finds nothing out."""
    with nodes(1) as (node,):
        node.run("mending-row", {"key": f"{unique} stored"}, Counted("stored"))
        _fail(Node.run, node, "mending-row", unique, ConnectionError("down"))

        for _ in range(3):
            assert node.run("mending-row", {"key": f"{unique} stored"}, Counted("not called")).value == "stored"
        assert _until_let_through(node, "mending-row", {"key": unique}, Counted("back")).value == "back"


def test_hung_calls_open_a_breaker(unique: str) -> None:
    """Nothing shows better that a provider is in trouble; a call on a loop is cancelled, one in a thread goes on."""

    async def hung() -> None:
        await asyncio.Event().wait()

    held = Held("late")
    with nodes(1) as (node,):
        with pytest.raises(FlightFailed, match="execution_timeout"):
            asyncio.run(node.arun("breaking-hung", {"key": unique}, hung))
        _refused(node, unique)

    with nodes(1) as (node,):
        owner = begin(node.run, "breaking-hung", {"key": f"{unique} held"}, held)
        held.wait_until_begun()
        digest = node.key("breaking-hung", {"key": f"{unique} held"}).digest
        until(lambda: Flight.objects.filter(digest=digest, status="timed_out"), "the hung call's end")
        held.let_go()
        assert owner.result(20).superseded
        _refused(node, unique)


def _refused(node: Node, key: str) -> None:
    with pytest.raises(Overloaded, match="its breaker is open"):
        node.run("breaking-hung", {"key": f"{key} later"}, Counted("not called"))


def _lose_lease(node: Node, flight: FlightContext) -> None:
    """Let an operator end a lease, and return once the node's beat has found out."""
    assert flight.flight_id is not None
    assert node.runtime.expire_lease(flight.flight_id, actor="test")
    until(lambda: flight.is_superseded, "a beat that finds its lease lost")


def _fail(ask: Asking, node: Node, stage: str, key: str, *errors: Exception) -> None:
    """Make a call that fails with each of these errors, for a key of its own."""
    for number, error in enumerate(errors):
        with pytest.raises(type(error)):
            ask(node, stage, {"key": f"{key} failing {number}"}, Provider(error))


def _until_let_through(node: Node, stage: str, key: dict[str, str], call: Callable[[], str]) -> Any:  # noqa: ANN401
    """Ask until the breaker lets the call through, and return what it came to."""

    def asked() -> Any:  # noqa: ANN401
        try:
            return node.run(stage, key, call)
        except (Overloaded, FlightFailed):
            return None

    return until(asked, "a breaker that lets one through")
