"""Hints over the real Valkey, and the poll behind them: a follower hears of its flight's end (R9)."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from config.servers import start_servers
from singleflight_app.domain.keys import FlightKey, flight_key
from singleflight_app.domain.policy import StagePolicy
from singleflight_app.domain.records import Hint
from singleflight_app.engine.following import Following
from singleflight_app.engine.rim import ThreadBell, finish
from singleflight_app.notify.clients import connect
from singleflight_app.notify.null import NullNotifier
from singleflight_app.notify.redis_stream import RedisStreamNotifier
from singleflight_app.storage.memory import MemoryFlights
from singleflight_app.telemetry.signals import follower_woken
from tests.held import PATIENCE, Counted, Held, begin
from tests.nodes import Node, nodes
from tests.past import end_leases
from tests.rows import row_in
from tests.waiting import until

Client = Any  #: django-redis hands out a client without types
NEVER = 3600.0  #: a poll interval that no test lives to see


@pytest.fixture(scope="module")
def redis() -> Client:
    start_servers()
    return connect("default")


def test_a_follower_is_woken_by_the_hint_alone(redis: Client, unique: str) -> None:
    """With a poll that never comes, the hint is what wakes."""
    sender = RedisStreamNotifier(redis, namespace=unique, length=100)
    store = MemoryFlights(entries=10)
    following = Following(store, RedisStreamNotifier(redis, namespace=unique, length=100), poll_interval=NEVER)
    node_key = _key("score", unique)
    row = row_in(store.claim(node_key, label="", owner="one", policy=StagePolicy()))
    stop = threading.Event()

    def hint_until_told() -> None:  # the listener may not have opened the stage yet
        while not stop.wait(0.01):
            sender.publish([("score", Hint(node_key.digest, row.generation))])

    bell = ThreadBell()
    with following.watch(node_key, bell) as watch, following.following(watch, row.flight_id, row.generation, None):
        hinting = begin(hint_until_told)
        woken = finish(bell.wait(PATIENCE))
        stop.set()
        hinting.result(PATIENCE)
    following.close()

    assert woken


def test_a_poll_wakes_where_there_is_news_and_nowhere_else() -> None:
    """R9: one statement for all; settled, regranted, vanished or expired is news."""
    store = MemoryFlights(entries=10)
    following = Following(store, NullNotifier(), poll_interval=NEVER)
    rows = {}
    for name in ("quiet", "granted", "gone"):
        rows[name] = row_in(store.claim(_key("score", name), label="", owner="one", policy=StagePolicy()))
    rows["granted"] = rows["granted"]._replace(generation=rows["granted"].generation - 1)
    rows["gone"] = rows["gone"]._replace(flight_id=2**40)

    bells = {name: ThreadBell() for name in rows}
    with ExitStack() as stack:
        watches = {name: stack.enter_context(following.watch(_key("score", name), bells[name])) for name in rows}
        for name, row in rows.items():
            stack.enter_context(following.following(watches[name], row.flight_id, row.generation, None))
        following.poll()
        woken = {name: finish(bell.wait(0)) for name, bell in bells.items()}
    following.close()

    assert woken == {"quiet": False, "granted": True, "gone": True}


@pytest.fixture
def wakers() -> Iterator[list[str]]:
    """By what followers were woken, as it is announced."""
    seen: list[str] = []

    def remember(*, by: str, **_: object) -> None:
        seen.append(by)

    follower_woken.connect(remember)
    yield seen
    follower_woken.disconnect(remember)


@pytest.mark.django_db
def test_a_follower_says_once_that_a_hint_brought_the_end(unique: str, wakers: list[str]) -> None:
    """Once per flight and process, however many wait there; a poll that never comes can't be first."""
    with nodes(2) as (one, other):
        _follow(one, other, unique)  # the first of a stage may have missed the hint, and is told by a poll
        other.runtime.coordinator._following._interval = NEVER
        wakers.clear()
        _follow(one, other, f"{unique} again", followers=5)

    assert wakers == ["hint"]


@pytest.mark.django_db
def test_a_follower_says_that_a_poll_brought_the_end(
    unique: str, wakers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hints that don't arrive show, also where nothing fails."""
    monkeypatch.setattr(RedisStreamNotifier, "publish", lambda *_: True)
    with nodes(2) as (one, other):
        _follow(one, other, unique)

    assert wakers == ["poll"]


@pytest.mark.django_db
def test_where_no_hint_can_arrive_none_is_missed(unique: str, settings: Any, wakers: list[str]) -> None:  # noqa: ANN401
    """Without Redis the poll is no sign of trouble."""
    settings.SINGLEFLIGHT = {**settings.SINGLEFLIGHT, "CACHE": None}
    with nodes(2) as (one, other):
        _follow(one, other, unique)

    assert wakers == []


def _follow(one: Node, other: Node, key: str, *, followers: int = 1) -> None:
    """Let callers of one node follow a call of another to its end."""
    call = Held("answer")
    owner = begin(one.run, "calm-row", {"key": key}, call)
    call.wait_until_begun()
    waiting = [begin(other.run, "calm-row", {"key": key}, call) for _ in range(followers)]
    other.wait_for_callers(other.key("calm-row", {"key": key}), followers)
    other.wait_for_follower("calm-row")
    call.let_go()
    assert {future.result(PATIENCE).value for future in (owner, *waiting)} == {"answer"}


@pytest.mark.django_db
def test_without_redis_the_poll_brings_the_answer(unique: str, settings: Any) -> None:  # noqa: ANN401
    """P6: CACHE None is slower by a poll interval, and nothing else."""
    settings.SINGLEFLIGHT = {**settings.SINGLEFLIGHT, "CACHE": None}
    call = Held("answer")
    with nodes(2) as (one, other):
        assert not one.runtime.notifier.is_listening
        owner = begin(one.run, "calm", {"key": unique}, call)
        call.wait_until_begun()
        follower = begin(other.run, "calm", {"key": unique}, call)
        other.wait_for_follower("calm")
        call.let_go()

        assert follower.result(20).value == owner.result(20).value == "answer"
        assert call.count == 1


@pytest.mark.django_db
def test_redis_that_dies_while_callers_wait_costs_a_poll(unique: str, settings: Any, failures: list[str]) -> None:  # noqa: ANN401
    """C20: one call, the same answer."""
    nowhere = {"default": {**settings.CACHES["default"], "LOCATION": "unix:///nonexistent/redis.sock"}}
    settings.CACHES = nowhere
    call = Held("answer")
    with nodes(2) as (one, other):
        owner = begin(one.run, "calm", {"key": unique}, call)
        call.wait_until_begun()
        followers = [begin(other.run, "calm", {"key": unique}, call) for _ in range(3)]
        other.wait_for_follower("calm")
        call.let_go()

        assert {future.result(20).value for future in (owner, *followers)} == {"answer"}
        assert other.run("calm-row", {"key": unique}, Counted("else")).value == "else"
    assert call.count == 1
    assert {"notify", "cache"} <= set(failures)


@pytest.mark.django_db
def test_a_follower_of_a_dead_owner_takes_over_once_the_lease_is_over(unique: str) -> None:
    """R8, P4: of many waiting callers on two nodes one makes the call, all get its answer."""
    dead = Held("never")
    with nodes(3) as (one, other, third):
        dying = begin(one.run, "fast", {"key": unique}, dead)
        dead.wait_until_begun()
        call = Held("taken over")
        waiting = [begin(node.run, "fast", {"key": unique}, call) for node in (other, third) for _ in range(3)]
        for node in (other, third):
            node.wait_for_follower("fast")

        end_leases(one)

        call.wait_until_begun()
        call.let_go()
        outcomes = [future.result(20) for future in waiting]
        dead.let_go()
        outcomes.append(dying.result(20))
    assert {outcome.value for outcome in outcomes} == {"taken over"}
    assert call.count == 1


@pytest.mark.django_db
def test_a_fenced_owner_gets_the_newer_answer(unique: str) -> None:
    """R3, C12: its own late result is refused and recorded; its caller sees what everybody sees."""
    late = Held("late")
    with nodes(2) as (one, other):
        fenced = begin(one.run, "fast", {"key": unique}, late)
        late.wait_until_begun()
        end_leases(one)
        newer = other.run("fast", {"key": unique}, Counted("newer"))
        late.let_go()

        outcome = fenced.result(20)

    assert (outcome.value, outcome.generation, outcome.superseded) == ("newer", newer.generation, False)


@pytest.mark.django_db
def test_threads_end_with_their_node() -> None:
    """R12: nothing goes on listening, polling or beating for a runtime that is closed."""
    before = _threads()
    with nodes(1) as (node,):
        _follow_something(node)
        assert len(_threads()) > len(before)

    until(lambda: len(_threads() - before) == 0, "the node's threads to end")


def _key(stage: str, name: str) -> FlightKey:
    return flight_key("test", stage, "test", {"name": name})


def _follow_something(node: Node) -> None:
    call = Held("answer")
    with nodes(1) as (owner,):
        key = {"key": node.name}
        owned = begin(owner.run, "calm", key, call)
        call.wait_until_begun()
        followed = begin(node.run, "calm", key, call)
        node.wait_for_follower("calm")
        call.let_go()
        owned.result(20)
        followed.result(20)
        node.run("calm", {"own": node.name}, Counted("held"))


def _threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("singleflight")}


@pytest.mark.django_db
@pytest.mark.parametrize("stage", ["calm-redis", "calm-memory", "calm-row"])
def test_a_closed_runtime_leaves_no_socket(unique: str, stage: str) -> None:
    """R12: whether it listened or not, the last one to use Redis closes its connections."""
    with nodes(1) as (one,):
        one.run(stage, {"key": unique}, Counted("value"))
        pool = one.runtime.notifier._client.connection_pool  # type: ignore[attr-defined]

    def open_sockets() -> int:
        return sum(link._sock is not None for link in [*pool._available_connections, *pool._in_use_connections])

    until(lambda: open_sockets() == 0, "all sockets to be closed")
