"""Each call is in the ledger once, whoever ended it: its owner, an heir, the sweep, or an operator."""

from collections.abc import Iterator
from decimal import Decimal

import pytest

from singleflight_app import CoordinationUnavailable, FlightCancelled, OwnerLost, current_flight
from singleflight_app.api import retry_flight, sweep
from singleflight_app.domain.flight import Usage
from singleflight_app.domain.policy import StagePolicy
from singleflight_app.domain.records import FlightSnapshot
from singleflight_app.domain.states import Claim
from singleflight_app.engine.call import Call, Granted
from singleflight_app.models import Flight, StageStat
from singleflight_app.outcomes.codec import for_policy
from singleflight_app.telemetry.ledger import Ledger
from tests.background import broker_away
from tests.held import Counted, Held, begin
from tests.ledgers import counting, row_of
from tests.nodes import Node, nodes
from tests.outages import Outage
from tests.past import end_lease
from tests.rows import granted_in, row_in
from tests.waiting import until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("empty_tables")]

USAGE = Usage("small-1", 100, 20, Decimal("0.25"))


@pytest.fixture
def sums() -> Iterator[Ledger]:
    with counting() as found:
        yield found


def _dead(node: Node, stage: str, name: str) -> FlightSnapshot:
    """Return a running flight whose owner is gone, its lease long over."""
    policy = StagePolicy(lease_timeout=60)
    row = row_in(node.runtime.store.claim(node.key(stage, {"key": name}), label="", owner="dead", policy=policy))
    end_lease(row.generation)
    return row


def _server_is_old() -> None:
    """R18: a server that began less than a lease ago is given time."""

    def is_old() -> bool:
        with nodes(1) as (node,):
            return _dead(node, "fast", "age").server_age > 2

    until(is_old, "the server to be older than a lease")
    Flight.objects.all().delete()


def test_a_call_that_was_taken_over_counts_once_however_late_it_ends(sums: Ledger, unique: str) -> None:
    """Two calls were made: the heir's end is spent, the late one's refused end is wasted, and no third is counted."""
    late = Held("late")

    def paid() -> str:
        current_flight().record_usage(USAGE)
        return late()

    with nodes(2) as (one, other):
        owner = begin(one.run, "fast", {"key": unique}, paid)
        late.wait_until_begun()
        one.expire(one.key("fast", {"key": unique}))
        other.run("fast", {"key": unique}, Counted("newer"))
        late.let_go()
        owner.result(20)

        row = row_of(sums, "fast")

    assert (row.calls, row.takeovers, row.fenced, row.requests) == (2, 1, 1, 2)
    assert (row.tokens_spent, row.tokens_wasted, row.cost_wasted) == (0, 120, Decimal("0.25"))
    assert sum(row.runs) == 1


def test_a_dead_owners_call_is_counted_by_its_heir(sums: Ledger, unique: str) -> None:
    """Its process can tell nobody any more."""
    _server_is_old()
    with nodes(1) as (node,):
        _dead(node, "fast", unique)

        assert node.run("fast", {"key": unique}, Counted("newer")).value == "newer"

        row = row_of(sums, "fast")
    assert (row.calls, row.takeovers, row.requests) == (2, 1, 1)


def test_a_dead_owners_call_is_counted_by_the_sweep(sums: Ledger, unique: str) -> None:
    """Settled as lost: one call, no duplicate."""
    _server_is_old()
    with nodes(1) as (node,):
        _dead(node, "fast", unique)

        sweep()
        sweep()

    row = row_of(sums, "fast")
    assert (row.calls, row.takeovers, row.fenced) == (1, 0, 0)


def test_a_dead_workers_call_is_a_duplicate_once_it_is_queued_again(sums: Ledger, unique: str) -> None:
    """The worker's call and the one that follows are two."""
    _server_is_old()
    with broker_away(), nodes(1) as (node,):
        queue, policy = node.runtime.queue, node.runtime.settings.policy("fast")
        key = node.key("fast", {"key": unique})
        pending = row_in(queue.submit(key, label="", arguments={"key": '"x"'}))
        running = granted_in(
            queue.grant(pending, Claim.OWNER_NEW, owner="dead", stage="fast", policy=policy, starts_pending=True)
        )
        end_lease(running.generation)

        sweep()

    row = row_of(sums, "fast")
    assert (row.calls, row.takeovers) == (1, 1)


def test_the_last_call_of_a_request_that_kills_its_owners_is_counted(sums: Ledger, unique: str) -> None:
    """C15: whoever settles it as lost counts it, and each caller that is told so is a request."""
    _server_is_old()
    with nodes(1) as (node,):
        row = _dead(node, "fast-twice", unique)
        Flight.objects.filter(pk=row.flight_id).update(takeovers=1)

        with pytest.raises(OwnerLost):
            node.run("fast-twice", {"key": unique}, Counted("not called"))

    row_of_stage = row_of(sums, "fast-twice")
    assert (row_of_stage.calls, row_of_stage.replays, row_of_stage.takeovers) == (1, 1, 0)


def test_a_lease_that_was_given_back_before_its_call_began_is_no_call(sums: Ledger, unique: str) -> None:
    """The row tells of a cancelled flight; nothing was paid."""
    with nodes(1) as (node,):
        key, policy = node.key("calm", {"key": unique}), node.runtime.settings.policy("calm")
        row = row_in(node.runtime.store.claim(key, label="", owner=node.name, policy=policy))
        call = Call(key, policy, Counted("not called"), for_policy(str, policy, node.runtime.keys), 1.0)
        leading = node.runtime.coordinator._leading

        leading._owning.release_unused(call, Granted(row, Claim.OWNER_NEW, 0.0))
        until(lambda: Flight.objects.get(pk=row.flight_id).status == "cancelled", "the release")
        node.run("calm", {"key": unique}, Counted("called"))

    assert row_of(sums, "calm").calls == 1


def test_a_hung_call_counts_once_although_its_value_comes_late(sums: Ledger, unique: str) -> None:
    """The heartbeat settled it as timed out; what came later was refused."""
    hung = Held("late")
    with nodes(1) as (node,):
        asked = begin(node.run, "hung", {"key": unique}, hung)
        hung.wait_until_begun()
        until(lambda: Flight.objects.filter(stage="hung", status="timed_out").exists(), "the end of a hung call")
        hung.let_go()
        asked.result(20)

    row = row_of(sums, "hung")
    assert (row.calls, row.failures, row.fenced, sum(row.runs)) == (1, 1, 1, 1)


def test_an_end_that_is_written_late_counts_once(sums: Ledger, unique: str, outage: Outage) -> None:
    """R6: the heartbeat stores it when the database is back, and knows how long the call took."""
    call = Held("answer")
    with nodes(1) as (node,):
        asked = begin(node.run, "fast", {"key": unique}, call)
        call.wait_until_begun()
        outage.begin()
        call.let_go()
        assert asked.result(20).value == "answer"
        outage.end()
        until(lambda: Flight.objects.get().status == "succeeded", "the late settle")
        node.wait_until_idle()

    row = row_of(sums, "fast")
    assert (row.calls, row.requests, sum(row.runs)) == (1, 1, 1)


def test_a_call_that_is_cancelled_by_hand_counts_once(sums: Ledger, unique: str) -> None:
    """Whoever cancels it counts it; its late end is refused, and what it used is wasted."""
    call = Held("late")

    def paid() -> str:
        current_flight().record_usage(USAGE)
        return call()

    with nodes(1) as (node,):
        asked = begin(node.run, "calm", {"key": unique}, paid)
        call.wait_until_begun()
        assert node.runtime.cancel(Flight.objects.get().pk, actor="mira")
        call.let_go()
        with pytest.raises(FlightCancelled):
            asked.result(20)

    row = row_of(sums, "calm")
    assert (row.calls, row.fenced, row.tokens_wasted, row.tokens_spent) == (1, 1, 120, 0)


def test_a_pending_flight_that_is_cancelled_is_no_call(sums: Ledger, unique: str) -> None:
    """Nothing had begun."""
    with nodes(1) as (node,):
        pending = row_in(node.runtime.queue.submit(node.key("calm", {"key": unique}), label="", arguments={}))

        assert node.runtime.cancel(pending.flight_id, actor="mira")

    sums.flush()
    assert not StageStat.objects.exists()


def test_a_dead_workers_flight_that_is_retried_by_hand_is_a_duplicate(sums: Ledger, unique: str) -> None:
    """As if the sweep had queued it again."""
    _server_is_old()
    with broker_away(), nodes(1) as (node,):
        queue, policy = node.runtime.queue, node.runtime.settings.policy("fast")
        pending = row_in(queue.submit(node.key("fast", {"key": unique}), label="", arguments={"key": '"x"'}))
        running = granted_in(
            queue.grant(pending, Claim.OWNER_NEW, owner="dead", stage="fast", policy=policy, starts_pending=True)
        )
        end_lease(running.generation)

        with pytest.raises(CoordinationUnavailable, match="no broker took its message"):
            retry_flight(running.flight_id, actor="mira")

    row = row_of(sums, "fast")
    assert (row.calls, row.takeovers) == (1, 1)
