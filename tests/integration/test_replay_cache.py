"""The replay cache in the real Valkey (R15): what it hands out is never older than what was forgotten.

A ticket, an epoch and a time to write by stand between a late or paused writer and an old answer.
Long, since each refusal of the scripts is shown beside what it lets through.
"""

import threading
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from config.servers import start_servers
from singleflight_app.domain.exceptions import CoordinationUnavailable
from singleflight_app.domain.flight import Settled, StoredResult, Usage
from singleflight_app.domain.records import Kept, Ticket
from singleflight_app.domain.states import Status
from singleflight_app.notify.clients import connect
from singleflight_app.outcomes.cache import FLOOR_SECONDS, PAUSE, WRITE_WITHIN, RedisReplayCache
from singleflight_app.telemetry.signals import coordination_failed
from tests.waiting import until

USAGE = Usage("small-1", 100, 20, Decimal("0.000000001"))
Client = Any  #: django-redis hands out a client without types


class Clock:
    """The monotonic clock of one process, moved by hand; Redis has its own."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def redis() -> Client:
    start_servers()
    return connect("default")


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def cache(redis: Client, unique: str, clock: Clock) -> RedisReplayCache:
    return RedisReplayCache(redis, namespace=unique, ticket_lifetime=600, monotonic=clock)


@pytest.fixture
def failures() -> Iterator[list[tuple[str, str]]]:
    """What was announced as worked around."""
    seen: list[tuple[str, str]] = []

    def remember(*, component: str, error: str, **_: object) -> None:
        seen.append((component, error))

    coordination_failed.connect(remember)
    yield seen
    coordination_failed.disconnect(remember)


def settled(generation: int, payload: bytes = b'"answer"') -> Settled:
    """Return a success."""
    result = StoredResult(payload, "1/json", b"c" * 32, len(payload))
    return Settled(7, generation, Status.SUCCEEDED, result, usage=USAGE)


def ticket(cache: RedisReplayCache, digest: bytes) -> Ticket:
    """Look, as a caller does before it reads the row, and get the ticket."""
    looked = cache.look(digest)
    assert looked.settled is None
    assert looked.ticket is not None
    return looked.ticket


def keep(
    cache: RedisReplayCache, clock: Clock, generation: int, allowed: Ticket | None, *, remaining: float = 60.0
) -> None:
    cache.keep([Kept(b"key", settled(generation), allowed, remaining, clock.now)])


def held(cache: RedisReplayCache) -> int | None:
    """Return the generation that a caller would get."""
    looked = cache.look(b"key")
    return None if looked.settled is None else looked.settled.generation


def test_what_was_kept_comes_back_whole(cache: RedisReplayCache, clock: Clock) -> None:
    """P2: the value, what it cost, and what is left of its TTL."""
    keep(cache, clock, 5, ticket(cache, b"key"))

    looked = cache.look(b"key")

    assert looked.settled == settled(5)
    assert 0 < looked.remaining <= 60


@pytest.mark.parametrize("payload", [b"", b"\n", b"\n\x00\xff" * 100, bytes(range(256)) * 4000])
def test_any_bytes_come_back_as_they_were(cache: RedisReplayCache, clock: Clock, payload: bytes) -> None:
    """Compressed and encrypted payloads have line ends and NULs in them."""
    allowed = ticket(cache, b"\n\x00key")
    cache.keep([Kept(b"\n\x00key", settled(5, payload), allowed, 60, clock.now)])

    looked = cache.look(b"\n\x00key")

    assert looked.settled == settled(5, payload)


def test_nothing_is_written_without_a_ticket(cache: RedisReplayCache, clock: Clock) -> None:
    """Whoever did not look before the row was read can't know what happened in between."""
    keep(cache, clock, 5, None)

    assert held(cache) is None


def test_failures_are_not_kept(cache: RedisReplayCache, clock: Clock) -> None:
    """The replay cache holds successes only."""
    failed = Settled(7, 5, Status.FAILED)

    cache.keep([Kept(b"key", failed, ticket(cache, b"key"), 60, clock.now)])

    assert held(cache) is None


def test_a_higher_generation_replaces_a_lower_one_and_never_the_other_way(
    cache: RedisReplayCache, clock: Clock
) -> None:
    """P3, P6: a late owner's write changes nothing."""
    early, late = ticket(cache, b"key"), ticket(cache, b"key")
    keep(cache, clock, 5, early)
    keep(cache, clock, 9, early)

    keep(cache, clock, 5, late)
    keep(cache, clock, 8, late)

    assert held(cache) == 9


def test_generations_are_compared_as_numbers(cache: RedisReplayCache, clock: Clock) -> None:
    """Not as text, where 9 comes after 10."""
    allowed = ticket(cache, b"key")
    keep(cache, clock, 9, allowed)

    keep(cache, clock, 10, allowed)

    assert held(cache) == 10


def test_a_floor_drops_and_refuses_what_is_not_above_it(cache: RedisReplayCache, clock: Clock) -> None:
    """R15: after `forget`, neither the entry that there was nor a late write of it is handed out again."""
    allowed = ticket(cache, b"key")
    keep(cache, clock, 5, allowed)

    cache.raise_floor(b"key", 5)
    dropped = held(cache)
    keep(cache, clock, 4, allowed)
    keep(cache, clock, 5, allowed)
    refused = held(cache)
    keep(cache, clock, 6, allowed)

    assert (dropped, refused, held(cache)) == (None, None, 6)


def test_a_floor_stands_where_there_was_no_entry(cache: RedisReplayCache, clock: Clock) -> None:
    """R15: forgotten before its owner wrote it, an outcome is not written afterwards."""
    allowed = ticket(cache, b"key")

    cache.raise_floor(b"key", 5)
    keep(cache, clock, 5, allowed)

    assert held(cache) is None


def test_a_floor_never_sinks(cache: RedisReplayCache, clock: Clock) -> None:
    """A late `forget` of an older generation neither lowers the floor nor drops the newer entry."""
    allowed = ticket(cache, b"key")
    cache.raise_floor(b"key", 5)
    keep(cache, clock, 6, allowed)

    cache.raise_floor(b"key", 3)
    kept = held(cache)
    keep(cache, clock, 5, allowed)

    assert (kept, held(cache)) == (6, 6)


def test_a_floor_outlives_every_ticket_that_could_bring_the_outcome_back(
    cache: RedisReplayCache,
    clock: Clock,
    redis: Client,
    unique: str,
) -> None:
    """R15: floors outlive the time to write by, also on a key that Redis held nothing of."""
    cache.raise_floor(b"key", 5)
    allowed = ticket(cache, b"key")
    keep(cache, clock, 6, allowed, remaining=0.5)

    left = redis.pttl(f"singleflight:{unique}:outcome:".encode() + b"key") / 1000

    assert left > WRITE_WITHIN
    assert left > FLOOR_SECONDS - 20


def test_a_writer_that_comes_after_its_time_writes_nothing(cache: RedisReplayCache, clock: Clock) -> None:
    """R15: paused between its settle and this write, it can't know what was forgotten meanwhile."""
    allowed = ticket(cache, b"key")

    cache.keep([Kept(b"key", settled(5), allowed, 60, clock.now - WRITE_WITHIN - 1)])
    late = held(cache)
    cache.keep([Kept(b"key", settled(5), allowed, 60, clock.now - WRITE_WITHIN + 2)])

    assert (late, held(cache)) == (None, 5)


def test_an_outcome_past_its_ttl_is_neither_written_nor_handed_out(cache: RedisReplayCache, clock: Clock) -> None:
    """R15: the TTL counts from before the row was settled, in Redis time."""
    allowed = ticket(cache, b"key")
    cache.keep([Kept(b"key", settled(5), allowed, 1, clock.now - 1)])
    refused = held(cache)
    cache.keep([Kept(b"key", settled(6), allowed, 0.2, clock.now)])

    until(lambda: held(cache) is None, "the entry to expire")

    assert refused is None


def test_a_flush_voids_every_ticket(cache: RedisReplayCache, clock: Clock, redis: Client, unique: str) -> None:
    """R15, C20: a flush loses floors too, so what was looked up before it may not write after it."""
    before = ticket(cache, b"key")
    cache.raise_floor(b"key", 5)
    redis.delete(f"singleflight:{unique}:outcome:".encode() + b"key")

    keep(cache, clock, 5, before)
    refused = held(cache)
    keep(cache, clock, 5, before)
    again = held(cache)
    keep(cache, clock, 6, ticket(cache, b"key"))

    assert (refused, again, held(cache)) == (None, None, 6)


def test_tickets_of_callers_that_look_together_are_all_good(cache: RedisReplayCache, clock: Clock) -> None:
    """Whoever becomes the owner among them can keep its outcome."""
    first, second = ticket(cache, b"key"), ticket(cache, b"key")

    keep(cache, clock, 5, first)
    keep(cache, clock, 6, second)

    assert held(cache) == 6


def test_a_ticket_lasts_as_long_as_the_longest_call(
    cache: RedisReplayCache,
    clock: Clock,
    redis: Client,
    unique: str,
) -> None:
    """A call of ten minutes can still keep its outcome; each look renews the time."""
    name = f"singleflight:{unique}:outcome:".encode() + b"key"
    cache.raise_floor(b"key", 1)

    ticket(cache, b"key")

    assert redis.ttl(name) > 590


def test_two_processes_with_different_clocks_agree(redis: Client, unique: str, clock: Clock) -> None:
    """C18: each ties its own clock to that of Redis when it looks."""
    behind = Clock()
    behind.now -= 3600
    one = RedisReplayCache(redis, namespace=unique, ticket_lifetime=600, monotonic=clock)
    other = RedisReplayCache(redis, namespace=unique, ticket_lifetime=600, monotonic=behind)
    allowed, allowed_too = ticket(one, b"key"), ticket(other, b"key")

    keep(one, clock, 5, allowed)
    keep(other, behind, 6, allowed_too)

    assert (held(one), held(other)) == (6, 6)
    assert 0 < one.look(b"key").remaining <= 60


@pytest.mark.parametrize("entry", [b"", b"no json\npayload", b"[1, 2]\npayload", b"\xff\xfe\n", b"null\n"])
def test_an_entry_that_can_not_be_read_is_a_miss(
    cache: RedisReplayCache,
    clock: Clock,
    redis: Client,
    unique: str,
    entry: bytes,
) -> None:
    """R13: an entry of another release, or of another program, costs a look at the row."""
    keep(cache, clock, 5, ticket(cache, b"key"))
    redis.hset(f"singleflight:{unique}:outcome:".encode() + b"key", "p", entry)

    assert held(cache) is None


def test_namespaces_are_apart(redis: Client, unique: str, clock: Clock) -> None:
    """Two installations on one Redis don't see each other's outcomes."""
    one = RedisReplayCache(redis, namespace=unique, ticket_lifetime=600, monotonic=clock)
    other = RedisReplayCache(redis, namespace=f"{unique}-other", ticket_lifetime=600, monotonic=clock)
    keep(one, clock, 5, ticket(one, b"key"))

    assert (held(one), held(other)) == (5, None)


def test_writers_that_race_leave_the_highest_generation(cache: RedisReplayCache, clock: Clock) -> None:
    """The script compares and writes in one step."""
    allowed, barrier = ticket(cache, b"key"), threading.Barrier(20)

    def write(generation: int) -> None:
        barrier.wait(20)
        keep(cache, clock, generation, allowed)

    threads = [threading.Thread(target=write, args=(generation,)) for generation in range(1, 21)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)

    assert held(cache) == 20


def test_a_redis_that_is_away_costs_one_try_and_no_error(
    unique: str, clock: Clock, failures: list[tuple[str, str]]
) -> None:
    """P6: a miss at once for everybody else, until a moment later somebody tries again."""
    away = RedisReplayCache(_nowhere(), namespace=unique, ticket_lifetime=600, monotonic=clock)

    looked = [away.look(b"key") for _ in range(3)]
    keep(away, clock, 5, Ticket(b"epoch", 0.0))
    first_outage = list(failures)
    clock.now += PAUSE
    away.look(b"key")

    assert all(look.settled is None and look.ticket is None for look in looked)
    assert first_outage == [("cache", "ConnectionError")]
    assert len(failures) == 2


def test_a_floor_that_is_not_confirmed_is_an_error(unique: str, clock: Clock) -> None:
    """R15: whoever forgets must know that no old answer comes any more."""
    away = RedisReplayCache(_nowhere(), namespace=unique, ticket_lifetime=600, monotonic=clock)

    for _ in range(2):
        with pytest.raises(CoordinationUnavailable, match="forget it again"):
            away.raise_floor(b"key", 5)


def _nowhere() -> Redis:
    return Redis(unix_socket_path="/nonexistent/redis.sock", retry=Retry(NoBackoff(), 0))
