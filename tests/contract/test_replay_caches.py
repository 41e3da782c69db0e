"""What every replay cache keeps: it may have forgotten anything, and never gives what was dropped, or was not offered.

What the one in Redis refuses, and why, is in tests/integration/test_replay_cache.py.
"""

import pytest

from config.servers import start_servers
from singleflight_app.domain.flight import Settled, StoredResult
from singleflight_app.domain.records import Kept, Looked
from singleflight_app.domain.states import Status
from singleflight_app.engine.ports import ReplayCache
from singleflight_app.notify.clients import connect
from singleflight_app.outcomes.cache import RedisReplayCache
from singleflight_app.outcomes.null import NoReplayCache

AS_OF = 1000.0


@pytest.fixture(params=["redis", "null"])
def cache(request: pytest.FixtureRequest, unique: str) -> ReplayCache:
    """Every kind of cache in turn."""
    if request.param == "null":
        return NoReplayCache()
    start_servers()
    return RedisReplayCache(connect("default"), namespace=unique, ticket_lifetime=600, monotonic=lambda: AS_OF)


def settled(generation: int) -> Settled:
    return Settled(7, generation, Status.SUCCEEDED, StoredResult(b"7", "1/json", b"c" * 32, 1))


def keep(cache: ReplayCache, looked: Looked, end: Settled) -> None:
    cache.keep([Kept(b"key", end, looked.ticket, 60, AS_OF)])


def test_a_key_that_was_never_kept_is_a_miss(cache: ReplayCache) -> None:
    """With a ticket or without, whoever looked goes on to the row."""
    assert cache.look(b"key").settled is None


def test_what_was_kept_is_given_as_it_was_or_not_at_all(cache: ReplayCache) -> None:
    """P2: and to this key alone."""
    keep(cache, cache.look(b"key"), settled(5))

    assert cache.look(b"key").settled in {None, settled(5)}
    assert cache.look(b"another key").settled is None


def test_what_may_not_be_kept_is_passed_over_in_silence(cache: ReplayCache) -> None:
    """P8: nothing at all, a failure, and a success of somebody who did not look before the row was read."""
    looked = cache.look(b"key")

    cache.keep([])
    keep(cache, looked, Settled(7, 5, Status.FAILED))
    keep(cache, Looked(), settled(5))

    assert cache.look(b"key").settled is None


def test_what_is_not_above_the_floor_is_never_given(cache: ReplayCache) -> None:
    """R15: neither what there was, nor what a late writer brings; the floor may be raised twice."""
    looked = cache.look(b"key")
    keep(cache, looked, settled(5))

    cache.raise_floor(b"key", 5)
    cache.raise_floor(b"key", 5)
    keep(cache, looked, settled(5))

    assert cache.look(b"key").settled is None
    keep(cache, cache.look(b"key"), settled(6))
    assert cache.look(b"key").settled in {None, settled(6)}
