"""Forgetting: whoever asks from then on gets a new call, on every node and from every layer (R15)."""

import threading
import time

import pytest
from pytest_django.fixtures import Settings
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from singleflight_app import GLOBAL, CoordinationUnavailable, Layer, Role, run, single_flight
from singleflight_app.api import forget_flight
from singleflight_app.domain.keys import FlightKey
from singleflight_app.domain.records import Kept
from singleflight_app.models import FlightEvent
from singleflight_app.notify.clients import connect
from singleflight_app.outcomes.cache import RedisReplayCache
from tests.held import Counted, Held, begin, results
from tests.nodes import Node, nodes
from tests.past import delete, end_outcome
from tests.stored import events_of, row_of
from tests.waiting import until

pytestmark = pytest.mark.django_db

_answers = {"count": 0}


def both_remember(one: Node, other: Node, call: Counted[str], unique: str) -> FlightKey:
    """Have the first answer of `call` in the replay memory of two nodes; return its key."""
    for node in (one, other):
        node.run("calm-memory", {"key": unique}, call)
    key = one.key("calm-memory", {"key": unique})
    assert one.remembers(key)
    assert other.remembers(key)
    return key


@single_flight("forget-numbered", scope=GLOBAL)
def numbered(name: str) -> int:
    """Return another number for each call."""
    _answers["count"] += 1
    return _answers["count"]


def test_a_forgotten_answer_is_called_anew(unique: str) -> None:
    """`forget` says whether there was an outcome to drop; the next caller owns a higher generation."""
    first = numbered.outcome(unique)

    forgotten = [numbered.forget(unique), numbered.forget(unique)]
    second = numbered.outcome(unique)

    assert forgotten == [True, False]
    assert (second.value, second.role) == (first.value + 1, Role.OWNER)
    assert (second.generation or 0) > (first.generation or 0)
    assert numbered(unique) == second.value


def test_what_was_never_asked_can_not_be_forgotten(unique: str) -> None:
    """Nothing to drop is no error."""
    assert numbered.forget(unique) is False


def test_an_answer_past_its_ttl_can_not_be_forgotten(unique: str) -> None:
    """It is no outcome any more."""
    end_outcome(numbered.outcome(unique).generation)

    assert numbered.forget(unique) is False


@pytest.mark.parametrize("stage", ["calm-redis", "calm-row"])
def test_another_node_calls_anew_once_forget_has_returned(unique: str, stage: str) -> None:
    """R15, P6: neither the row nor the replay cache brings the old answer back."""
    call = Counted("old", "new")
    with nodes(3) as (one, other, third):
        one.run(stage, {"key": unique}, call)
        other.run(stage, {"key": unique}, call)

        assert third.forget(third.key(stage, {"key": unique}))

        outcomes = [node.run(stage, {"key": unique}, call) for node in (other, one, third)]
    assert [outcome.value for outcome in outcomes] == ["new"] * 3
    assert call.count == 2


def test_a_node_that_forgets_forgets_in_its_memory_too(unique: str) -> None:
    """R15: process memory obeys the same floor."""
    call = Counted("old", "new")
    with nodes(1) as (node,):
        node.run("calm-memory", {"key": unique}, call)
        assert node.run("calm-memory", {"key": unique}, call).value == "old"

        node.forget(node.key("calm-memory", {"key": unique}))

        assert node.run("calm-memory", {"key": unique}, call).value == "new"


def test_other_nodes_forget_in_their_memories_by_the_hint(unique: str) -> None:
    """R15: nobody waits for the TTL of a minute, also not where nobody follows anything."""
    call = Counted("old", "new")
    with nodes(2) as (one, other):
        key = both_remember(one, other, call, unique)

        one.forget(key)

        until(lambda: not other.remembers(key), "the floor in the other node's memory")
        assert other.run("calm-memory", {"key": unique}, call).value == "new"


def test_a_floor_from_before_the_listener_began_is_heard(unique: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """R15: between the first outcome that a process remembers and its first look at the stream, too."""
    begins, may_begin = threading.Event(), threading.Event()
    call = Counted("old", "new")
    with nodes(2) as (one, other):
        open_at_once = other.runtime.notifier.open

        def open_late(stage: str, *, back: float = 0.0) -> bool:
            begins.set()
            assert may_begin.wait(20)
            return open_at_once(stage, back=back)

        monkeypatch.setattr(other.runtime.notifier, "open", open_late)
        key = both_remember(one, other, call, unique)
        assert begins.wait(20)
        one.forget(key)
        one.runtime.coordinator.drain(20)
        assert other.remembers(key)

        may_begin.set()

        until(lambda: not other.remembers(key), "the floor in the other node's memory")
        assert other.run("calm-memory", {"key": unique}, call).value == "new"


def test_a_floor_that_redis_did_not_take_is_sent_again(unique: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """R15: the memories of other processes have no poll behind them; Redis is told later."""
    call = Counted("old", "new")
    with nodes(2) as (one, other):
        key = both_remember(one, other, call, unique)
        with monkeypatch.context() as outage:
            nowhere = Redis(unix_socket_path="/nonexistent/redis.sock", retry=Retry(NoBackoff(), 0))
            outage.setattr(one.runtime.notifier, "_client", nowhere)
            one.forget(key)
            one.runtime.coordinator.drain(20)
            has_heard = not other.remembers(key)

        until(lambda: not other.remembers(key), "the floor in the other node's memory")
        assert not has_heard
        assert other.run("calm-memory", {"key": unique}, call).value == "new"


def test_a_lost_hint_costs_the_memorys_own_time(unique: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """R15: a node that hears nothing gives the old answer for `replay_memory_ttl` at most, by its monotonic clock."""
    call = Counted("old", "new")
    with nodes(2) as (one, other):
        key = both_remember(one, other, call, unique)
        memory = other.runtime.coordinator.replaying._memory
        monkeypatch.setattr(other.runtime.coordinator._following, "_on_floor", lambda *_: None)
        one.forget(key)
        one.runtime.coordinator.drain(20)
        before = other.run("calm-memory", {"key": unique}, call)

        now = time.monotonic
        monkeypatch.setattr(memory, "_monotonic", lambda: now() + 60)

        assert (before.value, before.layer) == ("old", Layer.MEMORY)
        assert other.run("calm-memory", {"key": unique}, call).value == "new"


def test_a_purge_after_a_forget_brings_nothing_back(unique: str) -> None:
    """R15: the row is gone, and with it the mark; a writer that read it before comes too late all the same."""
    call = Counted("old", "new")
    with nodes(2) as (one, other):
        key = one.key("calm-redis", {"key": unique})
        cache = RedisReplayCache(connect("default"), namespace=one.runtime.settings.namespace, ticket_lifetime=600)
        ticket = cache.look(key.digest).ticket
        old = one.run("calm-redis", {"key": unique}, call)
        read_at = time.monotonic()
        row = one.runtime.store.find(key.digest)
        assert row is not None
        one.forget(key)
        delete(old.generation)

        cache.keep([Kept(key.digest, row.settled(), ticket, 60, read_at)])
        new = other.run("calm-redis", {"key": unique}, call)

        assert (new.value, new.role) == ("new", Role.OWNER)
        assert (new.generation or 0) > (old.generation or 0)
        assert one.run("calm-redis", {"key": unique}, call).value == "new"


@pytest.mark.parametrize("forgetting", [0, 1, 2])
def test_who_asks_after_a_forget_does_not_get_the_answer_of_the_call_that_still_runs(
    unique: str, forgetting: int
) -> None:
    """R15: whichever node forgets; whether or not somebody of the asking node waits for the old call since before."""
    old, new = Held("old"), Counted("new", "newer")
    with nodes(3) as three:
        key = three[0].key("calm", {"key": unique})
        owner = begin(three[0].run, "calm", {"key": unique}, old)
        old.wait_until_begun()
        before = begin(three[1].run, "calm", {"key": unique}, new)
        three[1].wait_for_follower("calm")
        lines = [node.line_of(key) for node in three]

        assert three[forgetting].forget(key)
        after = [begin(node.run, "calm", {"key": unique}, new) for node in three]
        for node, line in zip(three, lines, strict=True):
            node.wait_for_another_caller(key, line)
        old.let_go()

        assert owner.result(20).value == "old"
        assert [outcome.value for outcome in results(after)] == ["new"] * 3
        assert before.result(20).value in {"old", "new"}
        assert new.count == 1


def test_an_answer_forgotten_while_its_call_ran_is_in_no_layer(unique: str) -> None:
    """R15: the owner that settles a forgotten flight keeps it from memory and cache."""
    old = Held("old")
    with nodes(2) as (one, other):
        owner = begin(one.run, "calm", {"key": unique}, old)
        old.wait_until_begun()
        other.forget(other.key("calm", {"key": unique}))
        old.let_go()
        owner.result(20)

        outcomes = [node.run("calm", {"key": unique}, Counted("new")) for node in (one, other)]

    assert [outcome.value for outcome in outcomes] == ["new", "new"]


def test_callers_after_a_forget_share_one_new_call(unique: str) -> None:
    """P1: forgetting is no licence for a call each."""
    call = Held("new")
    with nodes(2) as (one, other):
        one.run("calm", {"key": unique}, Counted("old"))
        one.forget(one.key("calm", {"key": unique}))
        owner = begin(one.run, "calm", {"key": unique}, call)
        call.wait_until_begun()
        follower = begin(other.run, "calm", {"key": unique}, call)
        other.wait_for_follower("calm")
        call.let_go()

        values = [outcome.value for outcome in results([owner, follower])]

    assert values == ["new", "new"]
    assert call.count == 1


def test_a_failure_can_be_forgotten(unique: str) -> None:
    """An operator need not wait for `failure_ttl`."""
    with nodes(1) as (node,):
        with pytest.raises(ZeroDivisionError):
            node.run("calm", {"key": unique}, lambda: 1 / 0)
        assert node.forget(node.key("calm", {"key": unique}))

        assert node.run("calm", {"key": unique}, Counted("well")).value == "well"


def test_forgetting_leaves_the_row_to_late_followers_and_an_audit_row(unique: str) -> None:
    """R8, R16: expires_at stays, so that purge waits; forgetting twice is told once."""
    outcome = numbered.outcome(unique)
    before = row_of(outcome)

    for _ in range(2):
        numbered.forget(unique)

    flight = row_of(outcome)
    assert (flight.forgotten, flight.expires_at) == (True, before.expires_at)
    assert events_of(outcome) == ["granted", "settled", "forgotten"]


def test_an_operator_forgets_by_id_and_is_named(unique: str) -> None:
    """R16: who did it stands in the audit row."""
    outcome = run("calm", {"key": unique}, Counted("old"), scope="test")
    assert outcome.flight_id is not None

    assert forget_flight(outcome.flight_id, actor="alice") is True
    assert forget_flight(outcome.flight_id, actor="bob") is False

    event = FlightEvent.objects.get(flight_id=outcome.flight_id, kind="forgotten")
    assert event.actor == "alice"
    assert run("calm", {"key": unique}, Counted("new"), scope="test").value == "new"


def test_a_redis_that_does_not_confirm_is_told_to_whoever_forgets(unique: str, settings: Settings) -> None:
    """R15: the row is marked, the floor is not sure; calling again, once Redis is back, is safe."""
    numbered(unique)
    caches = settings.CACHES
    settings.CACHES = {"default": {**caches["default"], "LOCATION": "unix:///nonexistent/redis.sock"}}
    with pytest.raises(CoordinationUnavailable, match="forget it again"):
        numbered.forget(unique)
    settings.CACHES = caches

    assert numbered.forget(unique) is False
    assert numbered.outcome(unique).role is Role.OWNER
