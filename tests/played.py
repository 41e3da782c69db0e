"""Decorated functions for the tests of test mode, under default policies: a lease of 30 s, outcomes kept for 60 s."""

import asyncio
from collections.abc import Callable

from singleflight_app import GLOBAL, current_flight, single_flight


def _nothing() -> None:
    """Do nothing."""


@single_flight("played", scope=GLOBAL, key=lambda answer: answer)
def score(answer: str, during: Callable[[], object] = _nothing) -> str:
    """Do what the test wants done while the call runs, which is no part of the key; then give points."""
    during()
    return f"{answer}: 7 points"


@single_flight("played-async", scope=GLOBAL, key=lambda answer: answer)
async def ascore(answer: str, during: Callable[[], object] = _nothing) -> str:
    """Let others have their turn as well."""
    during()
    await asyncio.sleep(0)
    return f"{answer}: 7 points"


@single_flight("played-attempt", scope=GLOBAL)
def attempt(answer: str) -> int:
    """Tell which attempt this is."""
    return current_flight().attempt


@single_flight("played-failing", scope=GLOBAL)
def fail(answer: str) -> str:
    """Never come to anything, which another try might."""
    raise TimeoutError(f"no points for {answer}")


@single_flight("played-tuple", scope=GLOBAL)
def untyped(answer: str) -> object:
    """Return what comes back from JSON as a list."""
    return (answer, 7)


@single_flight("played-queued", scope=GLOBAL)
def queued(answer: str, *, submits: str = "") -> str:
    """Submit another one, if told so."""
    if submits:
        queued.submit(submits)
    return f"{answer}: 7 points"


@single_flight("played-async-queued", scope=GLOBAL)
async def aqueued(answer: str) -> str:
    """Run on a worker's own loop."""
    await asyncio.sleep(0)
    return f"{answer}: 7 points"
