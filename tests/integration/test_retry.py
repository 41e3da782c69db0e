"""A flight is tried again by hand: a failure is due at once, a message is sent again, a lost flight is queued."""

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from singleflight_app import ExecutionTimedOut, FlightFailed, Outcome, Role
from singleflight_app.api import retry_flight
from singleflight_app.domain.exceptions import CoordinationUnavailable
from singleflight_app.domain.flight import Failure, Settled
from singleflight_app.domain.records import FlightSnapshot
from singleflight_app.domain.states import Claim, Status
from singleflight_app.engine import operating
from singleflight_app.models import Flight, FlightEvent
from singleflight_app.wiring import Runtime
from tests.background import broker_away
from tests.held import Counted, Held
from tests.nodes import Node, nodes
from tests.past import end_lease, end_outcome
from tests.proxy import proxy
from tests.rows import granted_in, row_in
from tests.waiting import until

pytestmark = pytest.mark.django_db

WAIT = 20.0
STAGE = "calm-row"
FAST_LEASE = 1.5  #: seconds, of the stages `fast` and `fast-twice`


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Flights whose message was sent; no worker hears them."""
    seen: list[int] = []

    def send(_runtime: Runtime, flight_id: int) -> bool:
        seen.append(flight_id)
        return True

    monkeypatch.setattr(Runtime, "send", send)
    return seen


@pytest.fixture
def _old_server(django_db_setup: None) -> None:
    """R18: a server that began less than a lease ago has nothing taken over."""

    def age() -> float:
        with connection.cursor() as cursor:
            cursor.execute("select extract(epoch from clock_timestamp() - pg_postmaster_start_time())::float8")
            return float(cursor.fetchone()[0])

    until(lambda: age() > FAST_LEASE, "the server to be older than a lease")


def _failed(node: Node, unique: str, error: Exception) -> Flight:
    """Return a flight whose call came to grief."""
    held = Held("never", error=error)
    held.let_go()
    with pytest.raises(type(error)):
        node.run(STAGE, {"key": unique}, held)
    return Flight.objects.get(digest=node.key(STAGE, {"key": unique}).digest)


def _asked(node: Node, unique: str, answer: str = "well") -> Outcome[str]:
    return node.run(STAGE, {"key": unique}, Counted(answer))


def _submitted(node: Node, unique: str, stage: str = STAGE) -> FlightSnapshot:
    return row_in(node.runtime.queue.submit(node.key(stage, {"key": unique}), label="", arguments={"x": "1"}))


def _begun(node: Node, unique: str, stage: str) -> FlightSnapshot:
    """Return a background flight whose worker died, its lease over."""
    pending, policy = _submitted(node, unique, stage), node.runtime.settings.policy(stage)
    grant = node.runtime.store.grant
    run = granted_in(
        grant(pending, Claim.OWNER_NEW, owner="a dead worker", stage=stage, policy=policy, starts_pending=True)
    )
    end_lease(run.generation)
    return run


def _by_hand(flight_id: int) -> list[tuple[str, str]]:
    events = FlightEvent.objects.filter(flight_id=flight_id).exclude(actor="").order_by("pk")
    return [(event.kind, event.actor) for event in events]


def test_a_failure_that_would_be_replayed_is_called_again(unique: str) -> None:
    """The next caller is the owner of a retry; until then nobody has called."""
    with nodes(2) as (one, other):
        flight = _failed(one, unique, ValueError("no luck"))
        with pytest.raises(FlightFailed):
            _asked(other, unique)

        assert retry_flight(flight.pk, actor="mira") is True

        outcome = _asked(other, unique)
        assert (outcome.value, outcome.role) == ("well", Role.OWNER)
        kinds = FlightEvent.objects.filter(flight_id=flight.pk).order_by("pk").values_list("kind", flat=True)
        assert list(kinds) == ["granted", "settled", "retry_allowed", "retried", "settled"]
        assert _by_hand(flight.pk) == [("retry_allowed", "mira")]


def test_a_retry_comes_before_the_providers_time(unique: str) -> None:
    """It asked to be left alone for an hour; the operator knows better."""

    class Busy(ConnectionError):
        retry_after = 3600.0

    with nodes(1) as (one,):
        flight = _failed(one, unique, Busy("later"))
        assert flight.retryable
        with pytest.raises(FlightFailed):
            _asked(one, unique)

        assert retry_flight(flight.pk, actor="mira") is True

        assert _asked(one, unique).value == "well"


def test_a_call_that_hung_can_be_retried(unique: str) -> None:
    """Timed out is a failure like any other."""
    with nodes(1) as (one,):
        key, policy = one.key(STAGE, {"key": unique}), one.runtime.settings.policy(STAGE)
        row = row_in(one.runtime.store.claim(key, label="", owner=one.name, policy=policy))
        failure = Failure("builtins.TimeoutError", "hung", retryable=False)
        hung = Settled(row.flight_id, row.generation, Status.TIMED_OUT, failure=failure)
        one.runtime.store.settle(hung, owner=one.name, ttl=60)
        with pytest.raises(ExecutionTimedOut):
            _asked(one, unique)

        assert retry_flight(row.flight_id, actor="mira") is True

        assert _asked(one, unique).value == "well"


def test_what_is_due_already_needs_no_hand(unique: str) -> None:
    """False, and no audit row: whoever asks calls anyway."""
    with nodes(1) as (one,):
        flight = _failed(one, unique, ConnectionError("reset"))

        assert retry_flight(flight.pk, actor="mira") is False

        assert _by_hand(flight.pk) == []


def test_a_second_retry_finds_nothing(unique: str) -> None:
    """One audit row, of who came first."""
    with nodes(1) as (one,):
        flight = _failed(one, unique, ValueError("no luck"))

        assert [retry_flight(flight.pk, actor=name) for name in ("mira", "noor")] == [True, False]

        assert _by_hand(flight.pk) == [("retry_allowed", "mira")]


def _past(node: Node, unique: str) -> int:
    flight = _failed(node, unique, ValueError("no luck"))
    end_outcome(flight.generation)
    return flight.pk


def _forgotten(node: Node, unique: str) -> int:
    flight = _failed(node, unique, ValueError("no luck"))
    assert node.forget(node.key(STAGE, {"key": unique}))
    return flight.pk


def _cancelled(node: Node, unique: str) -> int:
    flight_id = _submitted(node, unique).flight_id
    assert node.runtime.cancel(flight_id, actor="")
    return flight_id


def _succeeded(node: Node, unique: str) -> int:
    return _asked(node, unique).flight_id or 0


def _running(node: Node, unique: str) -> int:
    key, policy = node.key(STAGE, {"key": unique}), node.runtime.settings.policy(STAGE)
    return row_in(node.runtime.store.claim(key, label="", owner=node.name, policy=policy)).flight_id


def _gone(_node: Node, _unique: str) -> int:
    return 2**40


@pytest.mark.parametrize("state", [_past, _forgotten, _cancelled, _succeeded, _running, _gone])
def test_nothing_else_can_be_retried(unique: str, sent: list[int], state: Callable[[Node, str], int]) -> None:
    """False, and the row stays as it is."""
    with nodes(1) as (one,):
        flight_id = state(one, unique)
        before = Flight.objects.filter(pk=flight_id).values().first()

        assert retry_flight(flight_id, actor="mira") is False

        assert Flight.objects.filter(pk=flight_id).values().first() == before
        assert (_by_hand(flight_id), sent) == ([], [])


def test_a_generation_that_is_not_the_one_that_was_seen_is_left_alone(unique: str) -> None:
    """The operator looked at another failure."""
    with nodes(1) as (one,):
        flight = _failed(one, unique, ValueError("no luck"))

        assert retry_flight(flight.pk, generation=flight.generation - 1, actor="mira") is False
        assert retry_flight(flight.pk, generation=flight.generation, actor="mira") is True


def test_a_pending_flights_message_is_sent_again_at_once(unique: str, sent: list[int]) -> None:
    """The sweep would do it up to half a minute later."""
    with nodes(1) as (one,):
        row = _submitted(one, unique)
        before = Flight.objects.get(pk=row.flight_id).sent_at

        assert retry_flight(row.flight_id, actor="mira") is True

        flight = Flight.objects.get(pk=row.flight_id)
        assert (sent, flight.status, flight.generation) == ([row.flight_id], "pending", row.generation)
        assert flight.sent_at is not None
        assert before is not None
        assert flight.sent_at > before
        assert _by_hand(row.flight_id) == [("sent_again", "mira")]


def test_a_broker_that_is_away_is_said_and_the_sweep_will_send(unique: str) -> None:
    """The row is the queue: nothing is lost, and the operator knows."""
    with nodes(1) as (one,), broker_away():
        row = _submitted(one, unique)

        with pytest.raises(CoordinationUnavailable, match="no broker took its message; the sweep sends it again"):
            retry_flight(row.flight_id, actor="mira")

        assert _by_hand(row.flight_id) == [("sent_again", "mira")]


@pytest.mark.usefixtures("_old_server")
def test_a_dead_workers_flight_is_queued_again(unique: str, sent: list[int]) -> None:
    """As the sweep would, without its lease of grace: the takeover counts, and the arguments stay."""
    with nodes(1) as (one,):
        run = _begun(one, unique, "fast")

        assert retry_flight(run.flight_id, actor="mira") is True

        flight = Flight.objects.get(pk=run.flight_id)
        assert (flight.status, flight.takeovers, flight.arguments, sent) == ("pending", 1, {"x": "1"}, [flight.pk])
        assert flight.generation > run.generation
        assert _by_hand(flight.pk) == [("requeued", "mira")]


@pytest.mark.usefixtures("_old_server")
def test_a_flight_that_kills_its_workers_stays_where_it_is(unique: str, sent: list[int]) -> None:
    """C15: `max_takeovers` holds for operators as well; once it is settled as lost, a retry begins a new count."""
    with nodes(1) as (one,):
        run = _begun(one, unique, "fast-twice")
        assert retry_flight(run.flight_id, actor="mira") is True
        queued = one.runtime.queue.read(run.flight_id)
        assert queued is not None
        again = one.runtime.store.grant(
            queued,
            Claim.OWNER_NEW,
            owner="a dead worker",
            stage="fast-twice",
            policy=one.runtime.settings.policy("fast-twice"),
            starts_pending=True,
        )
        end_lease(granted_in(again).generation)

        assert retry_flight(run.flight_id, actor="mira") is False

        assert Flight.objects.get(pk=run.flight_id).status == "running"
        assert sent == [run.flight_id]


@pytest.mark.usefixtures("_old_server")
def test_a_foreground_flight_whose_owner_died_is_left_to_its_callers(unique: str, sent: list[int]) -> None:
    """No worker could run it: its arguments are nowhere."""
    with nodes(1) as (one,):
        key, policy = one.key("fast", {"key": unique}), one.runtime.settings.policy("fast")
        row = row_in(one.runtime.store.claim(key, label="", owner="a node that died", policy=policy))
        end_lease(row.generation)

        assert retry_flight(row.flight_id, actor="mira") is False
        assert sent == []


def test_after_an_outage_healthy_flights_are_not_queued_again(
    unique: str, sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """R18: every lease looks over then; the owner's beat may be under way."""
    with nodes(1) as (one,):
        run = _begun(one, unique, "fast")
        monkeypatch.setattr(one.runtime.queue, "may_take_over", lambda _lease: False)

        assert _retried(one, run.flight_id) is False
        assert sent == []


@pytest.mark.usefixtures("_old_server")
@pytest.mark.parametrize("method", ["allow_retry", "queue"])
def test_a_retry_whose_reply_was_lost_counts_once(
    unique: str, method: str, sent: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """R6: sent again, it finds its own work."""
    with nodes(1) as (one,), proxy() as cut:
        if method == "queue":
            flight_id = _begun(one, unique, "fast").flight_id
        else:
            flight_id = _failed(one, unique, ValueError("no luck")).pk
        monkeypatch.setitem(connection.settings_dict, "HOST", cut.folder)
        with nodes(1) as (operator,):
            move = getattr(operator.runtime.queue, method)

            def lose_the_reply(*args: Any, **kwargs: Any) -> object:  # noqa: ANN401  (the store's own)
                cut.lose_next_reply()
                return move(*args, **kwargs)

            monkeypatch.setattr(operator.runtime.queue, method, lose_the_reply)

            assert _retried(operator, flight_id) is True

    assert cut.lost_replies == 1
    assert len(_by_hand(flight_id)) == 1
    assert sent == ([flight_id] if method == "queue" else [])


def _retried(node: Node, flight_id: int) -> bool:
    """Retry as `retry_flight` does, on this node."""
    here = node.runtime
    return operating.retry(here.queue, here.settings.policy, here.send, flight_id, actor="mira", generation=None)
