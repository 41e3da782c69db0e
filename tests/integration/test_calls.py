"""What callers of one key get: one call, one answer, each a copy of its own (P1, P2, P9)."""

import math
import threading
import time
from collections import Counter, OrderedDict
from decimal import Decimal
from enum import StrEnum
from typing import Annotated

import pytest
from pydantic import JsonValue, PlainSerializer, SecretStr

from singleflight_app import (
    GLOBAL,
    Layer,
    Overloaded,
    ReentrantFlight,
    Role,
    StillRunning,
    Usage,
    current_flight,
    run,
)
from singleflight_app.telemetry.signals import result_changed
from singleflight_app.wiring import runtime
from tests.held import Counted, Held, at_once, begin, results
from tests.nodes import Node, nodes
from tests.past import delete
from tests.stored import events_of, row_of

pytestmark = pytest.mark.django_db


class Level(StrEnum):
    """A text that is more."""

    JUNIOR = "junior"


def test_the_first_caller_makes_the_call(unique: str) -> None:
    """P1: it owns a flight, whose row and audit rows tell the same story."""
    outcome = run("calm", {"key": unique}, Counted("answer"), scope="test")

    flight = row_of(outcome)
    assert (outcome.value, outcome.role, outcome.layer) == ("answer", Role.OWNER, Layer.CALL)
    assert (outcome.superseded, outcome.degraded) == (False, False)
    assert (flight.status, flight.generation, flight.attempts) == ("succeeded", outcome.generation, 1)
    assert (flight.stage, flight.scope, flight.owner) == ("calm", "test", runtime().identity.name)
    assert flight.lease_expires_at is None
    assert events_of(outcome) == ["granted", "settled"]


@pytest.mark.parametrize(
    ("stage", "layer"),
    [("calm", Layer.MEMORY), ("calm-redis", Layer.REDIS), ("calm-row", Layer.DATABASE)],
)
def test_a_later_caller_gets_the_stored_answer(unique: str, stage: str, layer: Layer) -> None:
    """P2: from the nearest layer that the stage's policy allows, with the owner's generation."""
    call = Counted({"points": 7}, {"points": 3})
    first = run(stage, {"key": unique}, call, scope="test")
    runtime().coordinator.drain(20)

    second = run(stage, {"key": unique}, call, scope="test")

    assert (second.value, second.role, second.layer) == ({"points": 7}, Role.REPLAY, layer)
    assert (second.generation, second.flight_id) == (first.generation, first.flight_id)
    assert call.count == 1


@pytest.mark.parametrize(("stage", "layer"), [("calm", Layer.REDIS), ("calm-row", Layer.DATABASE)])
def test_another_node_gets_the_stored_answer(unique: str, stage: str, layer: Layer) -> None:
    """P2: what one node paid for, no node pays again."""
    call = Counted("paid", "paid again")
    with nodes(2) as (one, other):
        one.run(stage, {"key": unique}, call)

        outcome = other.run(stage, {"key": unique}, call)

    assert (outcome.value, outcome.role, outcome.layer) == ("paid", Role.REPLAY, layer)


def test_callers_of_one_process_share_one_call(unique: str) -> None:
    """P1, P2: twenty threads at once; one owns, the others follow it without a claim of their own."""
    call = Held(["a", "list"])
    with nodes(1) as (node,):
        callers = at_once(20, node.run, "calm", {"key": unique}, call)
        node.wait_for_callers(node.key("calm", {"key": unique}), 20)
        call.let_go()

        outcomes = results(callers)

    roles = Counter((outcome.role, outcome.layer) for outcome in outcomes)
    assert call.count == 1
    assert roles == {(Role.OWNER, Layer.CALL): 1, (Role.FOLLOWER, Layer.PROCESS): 19}
    assert len({outcome.generation for outcome in outcomes}) == 1
    assert all(outcome.value == ["a", "list"] for outcome in outcomes)


@pytest.mark.parametrize(
    ("value", "result_type", "is_changed"),
    [
        (Decimal("1.50"), JsonValue, True),
        ((1, 2), JsonValue, True),
        (SecretStr("pass"), SecretStr, True),
        (Decimal("1.50"), Decimal, False),
        (math.nan, float, False),
        (1, float, False),
        (Level.JUNIOR, JsonValue, True),
        ([Level.JUNIOR], list[str], True),
        ([Level.JUNIOR], list[Level], False),
        (OrderedDict(a=1), dict, True),
        (True, int, True),
        ({"a": [None, ""]}, JsonValue, False),
    ],
)
def test_a_value_that_json_changes_is_announced_by_stage(
    unique: str, value: object, result_type: object, *, is_changed: bool
) -> None:
    """The owner gets what all others get, and the operator learns that an annotation is missing."""
    changed: list[str] = []

    def remember(*, stage: str, **_: object) -> None:
        changed.append(stage)

    result_changed.connect(remember)
    try:
        with nodes(2) as (one, other):
            called = one.run("calm-row", {"key": unique}, Counted(value), result_type=result_type)
            replayed = other.run("calm-row", {"key": unique}, Counted(value), result_type=result_type)
    finally:
        result_changed.disconnect(remember)

    assert repr(called.value) == repr(replayed.value)
    assert changed == (["calm-row"] if is_changed else [])


def test_the_time_of_a_call_does_not_run_out_on_its_value(unique: str) -> None:
    """P8: it returned at the last moment, and a beat comes in while its value is packed."""
    with nodes(2) as (one, other):
        heartbeat = one.runtime.coordinator._settling.heartbeat

        def call() -> str:
            (lease,) = heartbeat.held()
            lease.run_until = time.monotonic()
            return "paid"

        def packed(value: str) -> str:
            heartbeat.beat()
            return value

        noted = Annotated[str, PlainSerializer(packed)]
        called = one.run("calm-row", {"key": unique}, call, result_type=noted)

        assert (called.value, called.superseded) == ("paid", False)
        assert other.run("calm-row", {"key": unique}, Counted("not called")).value == "paid"


def test_each_caller_has_a_copy_of_its_own(unique: str) -> None:
    """C4: owner, follower and replay; whoever changes what it got changes nobody else's answer."""
    original = ["a"]
    call = Held(original)
    with nodes(1) as (node,):
        callers = at_once(3, node.run, "calm", {"key": unique}, call)
        node.wait_for_callers(node.key("calm", {"key": unique}), 3)
        call.let_go()
        shared = [outcome.value for outcome in results(callers)]
        replayed = [node.run("calm", {"key": unique}, call).value for _ in range(2)]

        for value in (*shared, *replayed):
            value.append("changed")

        assert original == ["a"]
        assert all(value == ["a", "changed"] for value in (*shared, *replayed))
        assert node.run("calm", {"key": unique}, call).value == ["a"]


def test_a_caller_of_another_node_follows_the_owner(unique: str) -> None:
    """P1, P2: it waits for the end and gets the owner's answer from the row."""
    call = Held("answer")
    with nodes(2) as (one, other):
        owner = begin(one.run, "calm", {"key": unique}, call)
        call.wait_until_begun()
        follower = begin(other.run, "calm", {"key": unique}, call)
        other.wait_for_follower("calm")
        call.let_go()

        owned, followed = results([owner, follower])

    assert (followed.value, followed.role, followed.layer) == ("answer", Role.FOLLOWER, Layer.DATABASE)
    assert followed.generation == owned.generation
    assert call.count == 1


def test_nodes_that_race_for_one_key_make_one_call(unique: str) -> None:
    """P1, the double click: whoever's claim is lost inside another's statement asks again and finds the row."""
    with nodes(4) as four:
        for round_ in range(15):
            call, barrier = Counted(*range(40)), threading.Barrier(12)

            def ask(node: Node, call: Counted[int], barrier: threading.Barrier, key: str) -> object:
                barrier.wait(20)
                return node.run("calm", {"key": key}, call).value

            key = f"{unique}-{round_}"
            callers = [begin(ask, node, call, barrier, key) for node in four for _ in range(3)]

            assert set(results(callers)) == {0}
            assert call.count == 1


def test_two_scopes_never_share_a_call(unique: str) -> None:
    """P9, C31: the same question of two tenants, or of one tenant and everybody, is two flights."""
    call = Counted("for a", "for b", "for all")

    answers = [run("calm", {"key": unique}, call, scope=scope).value for scope in ("tenant:a", "tenant:b", GLOBAL)]

    assert answers == ["for a", "for b", "for all"]


def test_another_version_is_another_flight(unique: str) -> None:
    """C32: a changed prompt never replays an answer of the old one."""
    call = Counted("old", "new")

    answers = [run("calm", {"key": unique}, call, scope="test", version=v).value for v in ("1", "2", "1")]

    assert answers == ["old", "new", "old"]


def test_a_purged_key_begins_above_its_old_generations(unique: str) -> None:
    """Generations are never reused, not even after a purge."""
    first = run("calm-row", {"key": unique}, Counted("first"), scope="test")
    delete(first.generation)

    second = run("calm-row", {"key": unique}, Counted("second"), scope="test")

    assert second.value == "second"
    assert (second.generation or 0) > (first.generation or 0)


@pytest.mark.parametrize("empty", [None, "", [], {}, 0, False])
@pytest.mark.parametrize("stage", ["calm", "calm-redis", "calm-row"])
def test_an_empty_result_is_a_result(unique: str, stage: str, empty: object) -> None:
    """R14, C8: stored and replayed like any other; no key stays held."""
    call = Counted(empty, "called again")
    run(stage, {"key": unique}, call, scope="test")

    outcome = run(stage, {"key": unique}, call, scope="test")

    assert outcome.value == empty
    assert outcome.role is Role.REPLAY


@pytest.mark.parametrize("asking", [0, 1])
def test_a_caller_whose_wait_ends_is_told_and_finds_the_answer_later(unique: str, asking: int) -> None:
    """R7, C6: the flight goes on; its handle, and whoever asks again, gets the answer."""
    call = Held("late")
    with nodes(2) as two:
        owner = begin(two[0].run, "calm", {"key": unique}, call)
        call.wait_until_begun()
        with pytest.raises(StillRunning, match="still running after") as left:
            two[asking].run("calm", {"key": unique}, call, wait_timeout=0.05)
        handle = left.value.handle
        with pytest.raises(StillRunning):
            handle.wait(0)
        call.let_go()
        owned = owner.result(20)

        found = handle.wait()
        again = two[asking].run("calm", {"key": unique}, call)

    assert (handle.flight_id, handle.generation) == (owned.flight_id, owned.generation)
    assert (found.value, again.value, again.role) == ("late", "late", Role.REPLAY)
    assert call.count == 1


def test_a_follower_that_leaves_disturbs_nobody(unique: str) -> None:
    """P5, C2, C3: others go on waiting, later ones join, and no second call begins."""
    call = Held("answer")
    with nodes(2) as (one, other):
        key = other.key("calm", {"key": unique})
        owner = begin(one.run, "calm", {"key": unique}, call)
        call.wait_until_begun()
        leaving = begin(other.run, "calm", {"key": unique}, call, wait_timeout=0.3)
        other.wait_for_follower("calm")
        staying = begin(other.run, "calm", {"key": unique}, call)
        other.wait_for_callers(key, 2)
        assert isinstance(leaving.exception(20), StillRunning)
        joining = begin(other.run, "calm", {"key": unique}, call)
        other.wait_for_callers(key, 2)
        call.let_go()

        outcomes = results([owner, staying, joining])

    assert [outcome.value for outcome in outcomes] == ["answer"] * 3
    assert call.count == 1


def test_callers_over_the_limit_are_turned_away_at_once(unique: str) -> None:
    """C7: `max_waiters` followers wait; the next one is told when to come again, and may."""
    call = Held("answer")
    with nodes(1) as (node,):
        callers = at_once(3, node.run, "crowded", {"key": unique}, call)
        node.wait_for_callers(node.key("crowded", {"key": unique}), 3)

        with pytest.raises(Overloaded, match="2 callers of this process already wait") as refused:
            node.run("crowded", {"key": unique}, call)
        call.let_go()

        assert refused.value.retry_after > 0
        assert [outcome.value for outcome in results(callers)] == ["answer"] * 3
        assert node.run("crowded", {"key": unique}, call).role is Role.REPLAY


def test_a_call_that_asks_for_itself_is_refused_at_once(unique: str) -> None:
    """C9: directly or by way of another flight; a refused inner call spoils nothing of the outer one."""

    def ask_itself() -> str:
        return run("calm", {"key": unique}, ask_itself, scope="test").value

    def ask_around() -> str:
        try:
            return run("calm", {"other": unique}, ask_itself, scope="test").value
        except ReentrantFlight as exc:
            return exc.stage

    outcome = run("calm", {"key": unique}, ask_around, scope="test")

    assert outcome.value == "calm"


def test_a_call_knows_its_flight(unique: str) -> None:
    """`current_flight()` is the innermost one; outside of any it is an error with a sentence."""
    seen = []

    def inner() -> None:
        seen.append(current_flight())

    def outer() -> None:
        seen.append(current_flight())
        run("calm", {"inner": unique}, inner, scope="test")
        seen.append(current_flight())

    outcome = run("calm", {"outer": unique}, outer, scope="test")

    assert seen[0] is seen[2]
    assert (seen[0].generation, seen[0].attempt) == (outcome.generation, 1)
    assert seen[0].owner == runtime().identity.name
    assert seen[1].idempotency_key != seen[0].idempotency_key
    assert not seen[0].lease_lost
    with pytest.raises(LookupError, match="no flight is running here"):
        current_flight()


@pytest.mark.parametrize("stage", ["calm", "calm-redis", "calm-row"])
def test_what_a_call_used_stands_in_every_outcome(unique: str, stage: str) -> None:
    """The ledger counts what followers and replays saved, so they must know it."""

    def call() -> str:
        current_flight().record_usage(model="small-1", input_tokens=100, output_tokens=20, cost="0.25")
        current_flight().record_usage({"model": "small-2", "usage": {"input_tokens": 1, "output_tokens": 2}})
        return "answer"

    owned = run(stage, {"key": unique}, call, scope="test")

    replayed = run(stage, {"key": unique}, call, scope="test")

    assert replayed.role is Role.REPLAY
    assert owned.usage == replayed.usage == Usage("small-2", 101, 22, owned.usage.cost)
    assert str(owned.usage.cost.normalize()) == "0.25"
