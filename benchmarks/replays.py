"""Replays, one caller: from the row, from Redis, and from the memory of the process."""

import time
import uuid
from collections.abc import Callable
from statistics import median

from django_redis import get_redis_connection
from pydantic import TypeAdapter

from benchmarks.flights import ANSWER, from_database, from_memory, from_redis
from benchmarks.ratios import ratio
from benchmarks.scores import bare_connection

CALLS = 500  #: in a round
_adapter = TypeAdapter(dict[str, str])
_SELECT = b"select generation, status, result from singleflight_flight where digest = %s"


def replay_db_vs_bare(rounds: int) -> float:
    """Return SELECT by digest and decode against a replay from the row."""
    number = uuid.uuid4().hex
    from_database(number)
    digest = from_database.key(number).digest
    with bare_connection() as plain:

        def bare() -> object:
            ((_, _, payload),) = plain.execute(_SELECT, [digest], binary=True).fetchall()
            return _adapter.validate_json(payload)

        return ratio(lambda: _timed(bare), lambda: _timed(lambda: from_database(number)), rounds)


def replay_cache_vs_bare(rounds: int) -> float:
    """Return GET and decode against a replay from Redis."""
    number = uuid.uuid4().hex
    from_redis(number)
    client = get_redis_connection("default")
    name = f"benchmark:{number}"
    client.set(name, _adapter.dump_json(ANSWER), ex=600)
    try:
        return ratio(
            lambda: _timed(lambda: _adapter.validate_json(client.get(name))),
            lambda: _timed(lambda: from_redis(number)),
            rounds,
        )
    finally:
        client.delete(name)


def replay_memory_us(rounds: int) -> float:
    """Return the microseconds of a replay from the process's memory; nearly all of it is the key."""
    number = uuid.uuid4().hex
    from_memory(number)
    return median(_timed(lambda: from_memory(number)) / CALLS * 1e6 for _ in range(rounds))


def _timed(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    for _ in range(CALLS):
        call()
    return time.perf_counter() - started


BENCHMARKS = (
    ("replay_db_vs_bare", replay_db_vs_bare, "replay from the row against SELECT and decode"),
    ("replay_cache_vs_bare", replay_cache_vs_bare, "replay from Redis against GET and decode"),
    ("replay_memory_us", replay_memory_us, "microseconds of a replay from the process's memory"),
)
