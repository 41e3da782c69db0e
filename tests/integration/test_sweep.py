"""The sweep: flights whose owners died with nobody waiting, each dealt with once, none before its time."""

from functools import partial

import pytest

from singleflight_app import OwnerLost, Role
from singleflight_app.api import sweep
from singleflight_app.domain.policy import StagePolicy
from singleflight_app.domain.records import FlightSnapshot
from singleflight_app.domain.states import Claim
from singleflight_app.engine import maintenance
from singleflight_app.engine.ports import FlightStore
from singleflight_app.models import Flight, FlightEvent
from singleflight_app.storage.flights import PostgresFlights
from singleflight_app.wiring import runtime
from tests.background import broker_away
from tests.held import Counted, Held, at_once, begin, results
from tests.nodes import Node, nodes
from tests.past import age_pending, end_lease, end_lease_just_now
from tests.rows import granted_in, row_in
from tests.waiting import until

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _old_server(django_db_setup: None) -> None:
    """R18: a server that began less than a lease ago is given time; these tests come after that."""

    def age() -> float:
        with nodes(1) as (node,):
            return _claimed(node, "fast", node.name).server_age

    until(lambda: age() > 2, "the server to be older than a lease")


def _claimed(node: Node, stage: str, name: str, *, owner: str = "a node that died") -> FlightSnapshot:
    """Return a running flight of an owner that does not exist."""
    policy = StagePolicy(lease_timeout=60)
    return row_in(node.runtime.store.claim(node.key(stage, {"key": name}), label="", owner=owner, policy=policy))


def _submitted(node: Node, stage: str, name: str) -> FlightSnapshot:
    """Return a background flight that a worker had begun when it died."""
    queue, policy = node.runtime.queue, node.runtime.settings.policy(stage)
    pending = row_in(queue.submit(node.key(stage, {"key": name}), label="", arguments={"key": '"x"'}))
    return _begun(queue, pending, stage, policy)


def _begun(queue: FlightStore, pending: FlightSnapshot, stage: str, policy: StagePolicy) -> FlightSnapshot:
    grant = partial(queue.grant, pending, Claim.OWNER_NEW, stage=stage, policy=policy)
    return granted_in(grant(owner="a worker that died", starts_pending=True))


def _status(row: FlightSnapshot) -> str:
    return Flight.objects.get(pk=row.flight_id).status


def test_a_dead_owners_flight_is_settled_as_lost(unique: str) -> None:
    """P4, C15: nobody waits for it; whoever asks while the failure lasts is told without a call."""
    with nodes(1) as (node,):
        row = _claimed(node, "fast", unique)
        end_lease(row.generation)

        sweep()

        flight = Flight.objects.get(pk=row.flight_id)
        assert (flight.status, flight.error_type) == ("failed", "singleflight_app.OwnerLost")
        assert FlightEvent.objects.filter(flight_id=row.flight_id, kind="lost").count() == 1
        with pytest.raises(OwnerLost, match="owners died 1 times"):
            node.run("fast", {"key": unique}, Counted("not called"))


def test_a_lease_that_has_just_ended_is_left_to_those_who_wait(unique: str) -> None:
    """A waiter goes first, and a healthy owner's beat may come late: one more lease of grace."""
    with nodes(1) as (node,):
        row = _claimed(node, "calm", unique)
        end_lease_just_now(row.generation)

        sweep()

        assert _status(row) == "running"


def test_a_live_flight_is_left_alone(unique: str) -> None:
    """C16: never by age alone, however long it runs."""
    call = Held("answer")
    with nodes(1) as (node,):
        owner = begin(node.run, "fast", {"key": unique}, call)
        call.wait_until_begun()

        sweep()
        call.let_go()

        assert owner.result(20).value == "answer"


def test_a_background_flight_goes_back_to_its_queue(unique: str) -> None:
    """It keeps its arguments and counts the takeover; an owner that comes back late is fenced."""
    with nodes(1) as (node,):
        row = _submitted(node, "fast", unique)
        end_lease(row.generation)

        sweep()

        flight = Flight.objects.get(pk=row.flight_id)
        assert (flight.status, flight.takeovers, flight.owner) == ("pending", 1, "")
        assert flight.arguments == {"key": '"x"'}
        assert flight.generation > row.generation
        assert flight.lease_expires_at is None


def test_a_background_flight_that_kills_its_workers_is_given_up(unique: str) -> None:
    """C15: after `max_takeovers` it ends as lost and its arguments are erased."""
    with nodes(1) as (node,):
        row = _submitted(node, "fast-twice", unique)
        policy = node.runtime.settings.policy("fast-twice")
        end_lease(row.generation)
        sweep()
        pending = node.runtime.store.read(row.flight_id)
        assert pending is not None
        again = _begun(node.runtime.queue, pending, "fast-twice", policy)
        end_lease(again.generation)

        sweep()

    flight = Flight.objects.get(pk=row.flight_id)
    assert (flight.status, flight.error_type, flight.arguments) == ("failed", "singleflight_app.OwnerLost", None)


def test_sweeps_that_meet_deal_with_each_flight_once(unique: str) -> None:
    """Several nodes run it at the same time; SKIP LOCKED lets each take what the others don't have."""
    with nodes(1) as (node,):
        rows = [_submitted(node, "fast", f"{unique}-{number}") for number in range(10)]
        for row in rows:
            end_lease(row.generation)

        results(at_once(4, sweep))

        ids = [row.flight_id for row in rows]
        assert set(Flight.objects.filter(pk__in=ids).values_list("status", "takeovers")) == {("pending", 1)}
        assert FlightEvent.objects.filter(flight_id__in=ids, kind="requeued").count() == 10


def test_a_row_that_fails_does_not_keep_the_others(unique: str, caplog: pytest.LogCaptureFixture) -> None:
    """C21: it is logged and left for the next sweep."""
    with nodes(1) as (node,):
        bad, good = (_claimed(node, "fast", f"{unique}-{name}") for name in ("bad", "good"))
        for row in (bad, good):
            end_lease(row.generation)

        class OneFails(PostgresFlights):
            def read(self, flight_id: int) -> FlightSnapshot | None:
                if flight_id == bad.flight_id:
                    raise ValueError("a row that can't be read")
                return super().read(flight_id)

        database = runtime().database
        assert database is not None
        swept = maintenance.sweep(OneFails(database), node.runtime.settings.policy, lambda _: True)

        assert swept.failed >= 1
        assert (_status(bad), _status(good)) == ("running", "failed")
        assert f"sweeping flight {bad.flight_id} of stage fast failed" in caplog.text


def test_a_broker_that_is_away_does_not_keep_the_sweep(unique: str) -> None:
    """P6: the rows are the queue; what could not be sent is sent again later."""
    with nodes(1) as (node,), broker_away():
        answer = node.runtime.queue.submit(node.key("fast", {"key": unique}), label="", arguments={})
        assert answer is not None
        age_pending(answer[1].generation)

        sweep()

        assert _status(answer[1]) == "pending"


def test_a_flight_that_was_swept_is_answered_like_any_other(unique: str) -> None:
    """Past its `failure_ttl` the key is free again; a swept background flight can be run by whoever waits."""
    with nodes(1) as (node,):
        row = _submitted(node, "queued", unique)
        end_lease(row.generation)
        sweep()

        outcome = node.run("queued", {"key": unique}, Counted("mine"))

    assert (outcome.value, outcome.role, outcome.flight_id) == ("mine", Role.OWNER, row.flight_id)
