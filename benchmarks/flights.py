"""The flights that are measured: calls that cost nothing and return about 600 bytes."""

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from singleflight_app import GLOBAL, single_flight

ANSWER = {"feedback": "x" * 580}


@single_flight("bench-owner", scope=GLOBAL)
def owned(number: str) -> dict[str, str]:
    """The default policy: replay memory, replay cache and hints all on."""
    return ANSWER


@single_flight("bench-database", scope=GLOBAL)
def from_database(number: str) -> dict[str, str]:
    """Replayed from the row."""
    return ANSWER


@single_flight("bench-redis", scope=GLOBAL)
def from_redis(number: str) -> dict[str, str]:
    """Replayed from the replay cache."""
    return ANSWER


@single_flight("bench-memory", scope=GLOBAL)
def from_memory(number: str) -> dict[str, str]:
    """Replayed from the memory of the process."""
    return ANSWER


def flight(stage: str, during: Callable[[str], object]) -> Callable[[str], dict[str, str]]:
    """Return a flight whose call does something before it returns; each process says what."""

    @single_flight(stage, scope=GLOBAL)
    def called(number: str) -> dict[str, str]:
        during(number)
        return ANSWER

    return called


def aflight(
    stage: str, during: Callable[[str], Awaitable[object]]
) -> Callable[[str], Coroutine[Any, Any, dict[str, str]]]:
    """Return the same for an event loop."""

    @single_flight(stage, scope=GLOBAL)
    async def called(number: str) -> dict[str, str]:
        await during(number)
        return ANSWER

    return called
