"""10,000 async followers of one flight, in one process and on one loop: what each costs when the end comes."""

import asyncio
import time
import uuid
from statistics import median

from benchmarks.flights import aflight

FOLLOWERS = 10_000
_STAGE = "bench-fanout"


def fanout_us(rounds: int) -> float:
    """Return microseconds per follower, from the return of the owner's function to the last follower."""
    return median(asyncio.run(_answered()) / FOLLOWERS * 1e6 for _ in range(rounds))


async def _answered() -> float:
    """Return the seconds until all are back; each has a copy of its own."""
    has_begun, may_return = asyncio.Event(), asyncio.Event()
    returned_at = back_at = 0.0

    async def during(_: str) -> None:
        nonlocal returned_at
        has_begun.set()
        await may_return.wait()
        returned_at = time.monotonic()

    called, number = aflight(_STAGE, during), uuid.uuid4().hex

    async def ask() -> None:
        nonlocal back_at
        await called(number)
        back_at = time.monotonic()

    async with asyncio.TaskGroup() as callers:
        for _ in range(FOLLOWERS + 1):
            callers.create_task(ask())
        # Each stands in line after its first step, and the call begins after all first steps.
        await has_begun.wait()
        may_return.set()
    return back_at - returned_at


BENCHMARKS = (("fanout_us", fanout_us, "microseconds per follower, 10,000 async followers of one flight"),)
