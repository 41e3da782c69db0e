"""Redis that forgets in the middle of a flight: the answer comes a poll later, and nothing else changes (C20, P6)."""

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from pytest_django.fixtures import Settings
from redis.exceptions import RedisError

from singleflight_app import Role
from singleflight_app.notify.clients import connect
from tests.embedded import Folder, folder, kill
from tests.held import Counted, Held, begin
from tests.nodes import nodes
from tests.waiting import until

pytestmark = pytest.mark.django_db


@pytest.fixture
def valkey(tmp_path: Path, settings: Settings) -> Iterator[Folder]:
    """A Valkey of the test's own, which all nodes use; its keeper starts it again whenever it is killed."""
    with folder(tmp_path / "servers") as here:
        here.user(DATABASE_URL="postgres://nobody@database.invalid/none")
        location = f"unix://{here.sockets / 'valkey.sock'}?db=0"
        settings.CACHES = {"default": {**settings.CACHES["default"], "LOCATION": location}}
        yield here
        until(lambda: not _listeners(), "the listeners to end")
        connect("default").connection_pool.disconnect()


def _listeners() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name in {"singleflight-listen", "singleflight-spread"}]


def _flush(_: Folder) -> None:
    connect("default").flushall()


def _trim(_: Folder) -> None:
    redis = connect("default")
    for stream in redis.keys("*:hints:*"):
        redis.xtrim(stream, maxlen=0, approximate=False)


def _answers() -> bool:
    with suppress(RedisError):
        return bool(connect("default").ping())
    return False


def _stop_and_start(valkey: Folder) -> None:
    before = valkey.servers("valkey-server")
    kill(*before)
    until(_answers, "a new server")
    assert valkey.servers("valkey-server") != before


@pytest.mark.parametrize("trouble", [_flush, _trim, _stop_and_start])
def test_a_follower_gets_its_answer_whatever_redis_forgot(
    unique: str, valkey: Folder, trouble: Callable[[Folder], None]
) -> None:
    """One call, one answer for owner and follower, and the same answer for whoever comes later."""
    held, second = Held("value"), Counted("second call")
    with nodes(3) as (one, other, third):
        one.run("calm-redis", {"key": f"{unique}-before"}, Counted("in stream and cache"))
        owner = begin(one.run, "calm-redis", {"key": unique}, held)
        held.wait_until_begun()
        follower = begin(other.run, "calm-redis", {"key": unique}, second)
        other.wait_for_follower("calm-redis")

        trouble(valkey)
        held.let_go()

        found = [owner.result(20), follower.result(20), third.run("calm-redis", {"key": unique}, second)]
        assert [outcome.value for outcome in found] == ["value"] * 3
        assert [outcome.role for outcome in found] == [Role.OWNER, Role.FOLLOWER, Role.REPLAY]
        assert second.count == 0


def test_hints_are_heard_again_after_redis_came_back(unique: str, valkey: Folder) -> None:
    """The listener opens its streams anew; later flights are shared and replayed as before."""
    with nodes(2) as (one, other):
        for name in ("before", "after"):
            held = Held(name)
            owner = begin(one.run, "calm-redis", {"key": f"{unique}-{name}"}, held)
            held.wait_until_begun()
            follower = begin(other.run, "calm-redis", {"key": f"{unique}-{name}"}, Counted("second call"))
            other.wait_for_follower("calm-redis")
            held.let_go()
            assert (owner.result(20).value, follower.result(20).value) == (name, name)
            if name == "before":
                _stop_and_start(valkey)
