"""Every interleaving of those who use one entry of the replay cache (R15): no older answer comes back in any.

The scripts, the Redis that runs them and the cache around them are the real ones. That the explorer can find a way to
an older answer is shown by breaking one guard at a time.
"""

from collections.abc import Callable
from functools import lru_cache
from itertools import count
from typing import Any

import pytest

from config.servers import start_servers
from singleflight_app.notify.clients import connect
from singleflight_app.outcomes import cache as cache_module
from singleflight_app.outcomes.cache import RedisReplayCache
from tests import replayed
from tests.exploring import Cast, Counterexample, Steps, explore, orders
from tests.replayed import World, caller, expiry, failover, flush, forget, fresh, lease_ends, pause, purge

Begin = Callable[[], World]


@pytest.fixture
def begin(unique: str) -> Begin:
    """Return what makes a world of its own: a key that nobody asked for yet."""
    start_servers()
    redis: Any = connect("default")
    numbers = count()

    @lru_cache(maxsize=1)
    def cache() -> RedisReplayCache:  # made late, as a test may change the scripts first
        return RedisReplayCache(redis, namespace=unique, ticket_lifetime=660)

    def begin() -> World:
        digest = next(numbers).to_bytes(32)
        return World(redis, cache(), f"singleflight:{unique}:outcome:".encode() + digest, digest)

    return begin


def _untouched(begin: Begin) -> Begin:
    """Begin with nothing."""
    return begin


def _answered(begin: Begin) -> Begin:
    """Begin with an outcome in the row, of which Redis knows nothing."""

    def answered() -> World:
        world = begin()
        world.settle(world.claim()[1])
        return world

    return answered


def _looked_up(begin: Begin) -> Begin:
    """Begin with an outcome in the row, and an entry in Redis that is empty but for its epoch."""

    def looked_up() -> World:
        world = _answered(begin)()
        world.look()
        return world

    return looked_up


#: What there is at the beginning, and who acts in how many slots.
SETS: dict[str, tuple[Callable[[Begin], Begin], list[Cast]]] = {
    "a first call, forgotten while it runs": (_untouched, [Cast(caller, 4), Cast(caller, 6), Cast(forget, 2)]),
    "a paused owner": (_untouched, [Cast(caller, 4), Cast(lease_ends, 1), Cast(caller, 5)]),
    "two who forget": (_answered, [Cast(caller, 6), Cast(forget, 2), Cast(forget, 2)]),
    "a flush beside a forget": (_answered, [Cast(caller, 3), Cast(caller, 3), Cast(forget, 2), Cast(flush, 1)]),
    "a fresh call beside a flush": (_answered, [Cast(fresh, 6), Cast(caller, 3), Cast(flush, 1)]),
    "a fresh call that is forgotten": (_answered, [Cast(fresh, 6), Cast(caller, 3), Cast(forget, 2)]),
    "two fresh calls": (_answered, [Cast(fresh, 6), Cast(fresh, 8)]),
    "an outcome past its TTL": (_answered, [Cast(caller, 3), Cast(expiry, 1), Cast(caller, 5)]),
    "a purge after a forget": (_answered, [Cast(caller, 3), Cast(forget, 2), Cast(purge, 1), Cast(caller, 4)]),
    "a pause longer than a floor": (_answered, [Cast(caller, 3), Cast(forget, 2), Cast(pause, 1), Cast(caller, 4)]),
    "a failover that loses a floor": (_looked_up, [Cast(caller, 3), Cast(forget, 2), Cast(failover, 1)]),
}


@pytest.mark.parametrize("name", SETS)
def test_no_order_of_steps_brings_an_older_answer_back(begin: Begin, name: str) -> None:
    """R15: whoever looks after a `forget`, or after a fresh outcome, gets nothing older, whatever else happens."""
    start, cast = SETS[name]

    explored = explore(start(begin), cast)

    assert explored.orders == orders(cast)


def test_orders_that_go_on_together_come_to_the_same_ends(begin: Begin) -> None:
    """The explorer leaves nothing out: played one by one, the orders come to no other end."""
    cast = [Cast(fresh, 6), Cast(caller, 3), Cast(flush, 1)]

    merged, one_by_one = explore(_answered(begin), cast), explore(_answered(begin), cast, merged=False)

    assert merged.orders == one_by_one.orders == 840
    assert merged.ends == one_by_one.ends


def _without(script: str, guard: str) -> Callable[[pytest.MonkeyPatch], None]:
    """Return what takes a condition out of a script."""

    def weaken(monkeypatch: pytest.MonkeyPatch) -> None:
        whole = getattr(cache_module, script)
        assert whole.count(guard) == 1
        monkeypatch.setattr(cache_module, script, whole.replace(guard, "false"))

    return weaken


def _unraised(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a grant over an outcome in its TTL raise no floor."""

    def unraised(_: World, __: int) -> Steps:
        yield from ()

    monkeypatch.setattr(replayed, "raised", unraised)


@pytest.mark.parametrize(
    ("weaken", "name"),
    [
        (_without("_KEEP", "v[3] ~= ARGV[5]"), "a flush beside a forget"),
        (_without("_KEEP", "now > tonumber(ARGV[4])"), "a failover that loses a floor"),
        (_without("_KEEP", "generation <= tonumber(v[2] or '0')"), "a flush beside a forget"),
        (_unraised, "a fresh call beside a flush"),
    ],
    ids=["the epoch", "the time to write by", "the floor", "the floor of a fresh call"],
)
def test_the_explorer_finds_the_order_that_a_missing_guard_lets_through(
    begin: Begin, monkeypatch: pytest.MonkeyPatch, weaken: Callable[[pytest.MonkeyPatch], None], name: str
) -> None:
    """It can fail: without any one guard of R15 an outcome is there that must not be."""
    weaken(monkeypatch)
    start, cast = SETS[name]

    with pytest.raises(Counterexample, match=r"generation \d is held"):
        explore(start(begin), cast)
