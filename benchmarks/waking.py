"""How soon 20 followers in another process have the answer, counted from the owner's commit.

Both processes read one clock: on Linux time.monotonic() is the same in all of them.
"""

import random
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from functools import cache

from benchmarks.flights import flight
from benchmarks.partners import Pipe, partner
from singleflight_app.telemetry.signals import flight_settled

FOLLOWERS = 20
WAKES = 100
_STAGE = "bench-waking"


def wake_p50_ms(rounds: int) -> float:
    """Return how long the last of 20 followers took, in half of the rounds."""
    return _wakes()[WAKES // 2]


def wake_p99_ms(rounds: int) -> float:
    """Return how long the last of 20 followers took, in 99 of 100 rounds."""
    return _wakes()[WAKES * 99 // 100 - 1]


@cache
def _wakes() -> list[float]:
    """Return milliseconds, sorted; the first round only warms up."""
    committed_at: list[float] = []

    def note(**_: object) -> None:
        committed_at.append(time.monotonic())

    flight_settled.connect(note)
    try:
        with partner(_follow) as others:
            return sorted([_wake(others.pipe, committed_at) for _ in range(WAKES + 1)][1:])
    finally:
        flight_settled.disconnect(note)


def _wake(followers: Pipe, committed_at: list[float]) -> float:
    def during(number: str) -> None:
        followers.send(number)
        # Time for all 20 to wait, and in step with no poll.
        time.sleep(random.uniform(0.1, 0.3))  # noqa: S311  (spreads the rounds, guards nothing)

    flight(_STAGE, during)(uuid.uuid4().hex)
    back_at: float = followers.recv()
    return (back_at - committed_at.pop()) * 1000


def _follow(owner: Pipe) -> None:
    called = flight(_STAGE, _refuse)

    def ask(number: str) -> float:
        called(number)
        return time.monotonic()

    with ThreadPoolExecutor(FOLLOWERS) as threads:
        while True:
            owner.send(max(threads.map(ask, [owner.recv()] * FOLLOWERS)))


def _refuse(number: str) -> None:
    raise RuntimeError(f"a follower of {number} made the call")


BENCHMARKS = (
    ("wake_p50_ms", wake_p50_ms, "milliseconds from the commit to the last of 20 followers in another process, median"),
    ("wake_p99_ms", wake_p99_ms, "the same, 99th percentile of 100 rounds"),
)
