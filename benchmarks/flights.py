"""The flights that are measured: calls that cost nothing and return about 600 bytes."""

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
