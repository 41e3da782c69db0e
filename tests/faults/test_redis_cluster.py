"""A Redis Cluster in trouble: a node that is killed, one that hangs, slots that move, all nodes gone (P6, R15)."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pytest_django.fixtures import Settings

from singleflight_app import CoordinationUnavailable, Role
from singleflight_app.domain.flight import Settled, StoredResult
from singleflight_app.domain.records import Hint, Kept
from singleflight_app.domain.states import Status
from singleflight_app.notify.clients import connect
from singleflight_app.notify.redis_stream import RedisStreamNotifier
from singleflight_app.outcomes.cache import RedisReplayCache
from tests.held import Counted
from tests.nodes import nodes
from tests.valkeys import Cluster, serving
from tests.waiting import until

pytestmark = pytest.mark.django_db

DIGESTS = [number.to_bytes(32) for number in range(30)]  #: keys of all nodes
RESULT = StoredResult(b"1", "1/json", b"c" * 32, 1)


@pytest.fixture
def cluster(tmp_path: Path, settings: Settings) -> Iterator[Cluster]:
    """A cluster that is the default cache."""
    with serving(Cluster(tmp_path)) as made:
        settings.CACHES = {"default": made.cache}
        yield made


@pytest.fixture
def cache(cluster: Cluster, unique: str) -> RedisReplayCache:
    return RedisReplayCache(connect("default"), namespace=unique, ticket_lifetime=600)


def keep(cache: RedisReplayCache, generation: int) -> None:
    """Offer an outcome of every key in one trip."""
    settled = Settled(7, generation, Status.SUCCEEDED, RESULT)
    tickets = {digest: cache.look(digest).ticket for digest in DIGESTS}
    cache.keep([Kept(digest, settled, ticket, 600, time.monotonic()) for digest, ticket in tickets.items()])


def held(cache: RedisReplayCache) -> list[int | None]:
    """Return the generation that a caller of each key would get."""
    found = [cache.look(digest).settled for digest in DIGESTS]
    return [None if settled is None else settled.generation for settled in found]


def test_keys_and_streams_are_found_while_their_slots_move(
    cluster: Cluster, cache: RedisReplayCache, unique: str, failures: list[str]
) -> None:
    """ASK and MOVED, also to a node that the client has never heard of, are no failure."""
    notifier = RedisStreamNotifier(connect("default"), namespace=unique, length=100)
    notifier.open("score")
    new, name = cluster.add(), f"singleflight:{unique}:outcome:".encode()
    keys = [*(name + digest for digest in DIGESTS), f"{{singleflight:{unique}}}:hints:score".encode()]
    moving = {cluster.slot_of(key): cluster.owner_of(key) for key in keys}
    for slot, old in moving.items():
        new.admin.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", old.name)
        old.admin.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", new.name)

    keep(cache, 5)
    notifier.publish([("score", Hint(b"asked", 1))])
    asked = held(cache), notifier.read(["score"], 0.9)
    for slot in moving:
        for node in (new, *cluster.nodes[:3]):
            node.admin.execute_command("CLUSTER", "SETSLOT", slot, "NODE", new.name)
    for digest in DIGESTS:
        cache.raise_floor(digest, 5)
    keep(cache, 6)
    notifier.publish([("score", Hint(b"moved", 2))])
    moved = held(cache), notifier.read(["score"], 0.9)

    assert asked == ([5] * len(DIGESTS), [Hint(b"asked", 1)])
    assert moved == ([6] * len(DIGESTS), [Hint(b"moved", 2)])
    assert failures == []


def _kill_all(cluster: Cluster, _: bytes) -> None:
    for node in cluster.nodes:
        node.kill()


@pytest.mark.parametrize(
    "trouble",
    [
        pytest.param(lambda cluster, key: cluster.owner_of(key).kill(), id="one is killed"),
        pytest.param(lambda cluster, key: cluster.owner_of(key).pause(), id="one hangs"),
        pytest.param(_kill_all, id="all are killed"),
    ],
)
def test_nodes_in_trouble_cost_no_answer(
    cluster: Cluster, unique: str, trouble: Callable[[Cluster, bytes], None], failures: list[str]
) -> None:
    """P6: calls are shared and replayed by the row; what Redis could not confirm is told to whoever forgets."""
    with nodes(2) as (one, other):
        keys = [{"key": f"{unique}-{number}"} for number in range(6)]
        for key in keys:
            one.run("calm-redis", key, Counted("value"))

        name = f"singleflight:{one.runtime.settings.namespace}:outcome:".encode()
        trouble(cluster, name + one.key("calm-redis", keys[0]).digest)

        found = [other.run("calm-redis", key, Counted("second call")) for key in keys]
        assert [outcome.value for outcome in found] == ["value"] * len(keys)
        with pytest.raises(CoordinationUnavailable, match="forget it again"):
            one.forget(one.key("calm-redis", keys[0]))
        assert one.run("calm-redis", keys[0], Counted("new")).value == "new"
        assert "cache" in failures


def test_a_process_begins_and_goes_on_without_its_cluster(cluster: Cluster, unique: str) -> None:
    """P6: no node answers when the client is made; calls are made and shared all the same, and Redis is used later."""
    for node in cluster.nodes:
        node.pause()
    with nodes(2) as (one, other):
        first = one.run("calm-redis", {"key": unique}, Counted("value"))
        second = other.run("calm-redis", {"key": unique}, Counted("second call"))
        for node in cluster.nodes:
            node.resume()

        def is_used() -> bool:
            key = {"key": f"{unique}-later-{time.monotonic()}"}
            one.run("calm-redis", key, Counted("value"))
            return other.run("calm-redis", key, Counted("second call")).layer == "redis"

        until(is_used, "Redis to be used again")

    assert [(outcome.value, outcome.role) for outcome in (first, second)] == [
        ("value", Role.OWNER),
        ("value", Role.REPLAY),
    ]
