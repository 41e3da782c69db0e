"""Leases that are in doubt, and calls that only look dead: who goes on, and who may take over (P1, R2)."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection
from pytest_django.fixtures import Settings

from singleflight_app import Role, current_flight
from singleflight_app.engine.heartbeat import Lease
from tests.held import Counted, Held, begin
from tests.nodes import Node, nodes
from tests.past import age_running
from tests.proxy import Proxy, proxy
from tests.waiting import until

pytestmark = pytest.mark.django_db


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A proxy that all nodes reach the database through."""
    with proxy() as there:
        monkeypatch.setitem(connection.settings_dict, "HOST", there.folder)
        yield there


class Doubting(Held[str]):
    """A held call that lets the test see what it knows of its lease."""

    def __call__(self) -> str:
        self.flight = current_flight()
        return super().__call__()


def _lease(node: Node) -> Lease:
    (lease,) = node.runtime.coordinator._settling.heartbeat.held()
    return lease


def _wait_for_beats(node: Node, count: int) -> None:
    """Return once so many more beats have renewed the node's one lease."""
    for _ in range(count):
        before = _lease(node).sent_at
        until(lambda: _lease(node).sent_at > before, "a good beat")  # noqa: B023  (called at once)


def test_a_call_that_runs_for_an_hour_is_healthy_while_it_beats(unique: str) -> None:
    """C16: nobody takes a flight over by its age."""
    silent = Held("at last")
    with nodes(2) as (one, other):
        owner = begin(one.run, "fast", {"key": unique}, silent)
        silent.wait_until_begun()
        follower = begin(other.run, "fast", {"key": unique}, Counted("second call"))
        other.wait_for_follower("fast")

        age_running(_lease(one).generation)
        _wait_for_beats(one, 4)  # longer than its lease

        silent.let_go()
        assert (owner.result(20).value, follower.result(20).value) == ("at last", "at last")
        assert owner.result(20).generation == follower.result(20).generation


def test_one_beat_that_fails_is_no_loss(unique: str, network: Proxy, failures: list[str], settings: Settings) -> None:
    """C17: the network is cut for a moment; the owner goes on, and nobody else begins."""
    patient = {"lease_timeout": 20, "heartbeat_interval": 0.3, "wait_timeout": 60}
    settings.SINGLEFLIGHT = {**settings.SINGLEFLIGHT, "STAGES": {"patient": patient}}
    held = Doubting("value")
    with nodes(2) as (one, other):
        owner = begin(one.run, "patient", {"key": unique}, held)
        held.wait_until_begun()
        follower = begin(other.run, "patient", {"key": unique}, Counted("second call"))
        other.wait_for_follower("patient")

        network.cut()
        until(lambda: "beat" in failures, "a beat that fails")
        network.mend()
        _wait_for_beats(one, 1)

        assert not held.flight.lease_lost
        held.let_go()
        assert (owner.result(20).value, follower.result(20).value) == ("value", "value")
        assert (owner.result(20).role, owner.result(20).superseded) == (Role.OWNER, False)


def test_an_owner_whose_beats_all_fail_doubts_its_lease_and_settles_all_the_same(unique: str, network: Proxy) -> None:
    """C17: no beat got through for a whole lease, nobody took over, and its end stands."""
    held = Doubting("late but first")
    with nodes(2) as (one, other):
        owner = begin(one.run, "fast", {"key": unique}, held)
        held.wait_until_begun()
        assert not held.flight.lease_lost

        network.cut()
        until(lambda: held.flight.lease_lost, "the owner to doubt its lease")
        held.let_go()
        assert owner.result(20).value == "late but first"
        network.mend()
        until(lambda: not one.runtime.coordinator.running(), "the late settle")

        replayed = other.run("fast", {"key": unique}, Counted("second call"))
        assert (replayed.value, replayed.generation) == ("late but first", owner.result(20).generation)


def test_an_end_between_a_takeovers_decision_and_its_statement_stands(
    unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C14: the follower saw a lease that was over; the owner settles before the takeover is sent."""
    decided, may_send = threading.Event(), threading.Event()
    late, second = Held("late but first"), Counted("second call")
    with nodes(2) as (one, other):
        grant = other.runtime.store.grant

        def slow_grant(*args: Any, **kwargs: Any) -> object:  # noqa: ANN401  (the store's own arguments)
            decided.set()
            assert may_send.wait(20)
            return grant(*args, **kwargs)

        monkeypatch.setattr(other.runtime.store, "grant", slow_grant)
        owner = begin(one.run, "fast", {"key": unique}, late)
        late.wait_until_begun()
        _lease(one).beat_at = float("inf")  # no beat comes any more
        follower = begin(other.run, "fast", {"key": unique}, second)
        assert decided.wait(20)

        late.let_go()
        assert owner.result(20).value == "late but first"
        may_send.set()

        assert (follower.result(20).value, second.count) == ("late but first", 0)
        assert follower.result(20).generation == owner.result(20).generation


def test_who_comes_back_after_an_outage_takes_nothing_over_for_a_lease(
    unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R18: it lasts from the first answer, not from the last failure, however long nobody asked in between."""
    held, second = Held("value"), Counted("second call")
    with proxy() as gone, nodes(2) as (one, other):
        database, lease = other.runtime.database, one.runtime.settings.policy("fast").lease
        assert database is not None
        parameters = database._connection_parameters
        monkeypatch.setattr(database, "_connection_parameters", lambda: {**parameters(), "host": gone.folder})
        owner = begin(one.run, "fast", {"key": unique}, held)
        held.wait_until_begun()
        gone.cut()
        assert other.run("fast", {"key": f"{unique}-alone"}, Counted("alone")).degraded
        until(lambda: database.was_reachable_for(lease), "the last failure to be a lease ago")

        gone.mend()
        until(lambda: not other.run("fast", {"key": f"{unique}-back"}, Counted("back")).degraded, "the database")
        may_take_over = other.runtime.store.may_take_over(lease)
        follower = begin(other.run, "fast", {"key": unique}, second)
        held.let_go()

        assert not may_take_over
        assert (owner.result(20).value, follower.result(20).value, second.count) == ("value", "value", 0)
