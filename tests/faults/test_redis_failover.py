"""Sentinel puts the replica in the primary's place: answers come a poll later, and nothing else changes (C20, P6)."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_django.fixtures import Settings

from singleflight_app import Layer, Role
from singleflight_app.notify.clients import connect
from singleflight_app.outcomes.cache import RedisReplayCache
from tests.held import Counted, Held, begin
from tests.nodes import Node, nodes
from tests.valkeys import Watched, serving
from tests.waiting import until

pytestmark = pytest.mark.django_db


@pytest.fixture
def watched(tmp_path: Path, settings: Settings) -> Iterator[Watched]:
    """Servers behind a Sentinel that are the default cache."""
    with serving(Watched(tmp_path, down_after=500)) as made:
        settings.CACHES = {"default": made.cache}
        yield made


def is_replayed_from_redis(one: Node, other: Node, key: dict[str, str]) -> bool:
    """Tell whether what one node settles now, the other has from Redis."""
    key["key"] += "+"
    one.run("calm-redis", key, Counted("value"))
    return other.run("calm-redis", key, Counted("second call")).layer is Layer.REDIS


@pytest.mark.parametrize("trouble", ["kill", "pause"])
def test_a_follower_gets_its_answer_while_the_primary_changes(unique: str, watched: Watched, trouble: str) -> None:
    """One call, one answer for owner, follower and whoever comes later; then hints and cache work as before."""
    held, second = Held("value"), Counted("second call")
    with nodes(3) as (one, other, third):
        one.run("calm-redis", {"key": f"{unique}-before"}, Counted("in stream and cache"))
        owner = begin(one.run, "calm-redis", {"key": unique}, held)
        held.wait_until_begun()
        follower = begin(other.run, "calm-redis", {"key": unique}, second)
        other.wait_for_follower("calm-redis")

        getattr(watched.primary, trouble)()
        held.let_go()
        found = [owner.result(20), follower.result(20), third.run("calm-redis", {"key": unique}, second)]
        watched.wait_for_failover()

        assert [(outcome.value, outcome.role) for outcome in found] == [
            ("value", Role.OWNER),
            ("value", Role.FOLLOWER),
            ("value", Role.REPLAY),
        ]
        assert second.count == 0
        key = {"key": f"{unique}-after"}
        until(lambda: is_replayed_from_redis(one, other, key), "Redis to be used again")


def test_nobody_is_answered_by_a_primary_that_was_replaced(unique: str, watched: Watched) -> None:
    """R15: a connection to it may still be open, and it may not have heard yet of what was forgotten."""
    cache = RedisReplayCache(connect("default"), namespace=unique, ticket_lifetime=600)
    assert cache.look(b"key").ticket is not None
    text = cache._look._text

    watched.primary.admin.execute_command("REPLICAOF", "127.0.0.1", watched.replica.port)

    with pytest.raises(Exception, match="read only replica"):
        watched.primary.admin.eval(text, 1, f"singleflight:{unique}:outcome:key", "epoch", 1000)
