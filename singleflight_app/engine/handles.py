"""A way back to a flight: for callers whose wait ended, and for background flights."""

from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from singleflight_app.domain.flight import Outcome

R = TypeVar("R")


class _Handle:
    """Finds a flight again by id and generation; it waits and reads, and never takes a flight over."""

    def __init__(self, stage: str, flight_id: int | None, generation: int | None, wait: Callable[..., Any]) -> None:
        self.stage, self.flight_id, self.generation = stage, flight_id, generation
        self._wait = wait

    def __str__(self) -> str:
        """Return stage, id and generation, safe for logs."""
        if self.flight_id is None:
            return f"a flight of stage {self.stage}"
        return f"flight {self.flight_id} of stage {self.stage} (generation {self.generation})"


class FlightHandle(_Handle, Generic[R]):
    """Finds a flight again by id and generation; it waits and reads, and never takes a flight over.

    `flight_id` and `generation` are None when the caller's wait ended before its claim was answered.
    """

    def wait(self, timeout: float | None = None) -> Outcome[R]:
        """Return the outcome, waiting up to `timeout` seconds (the stage's `wait_timeout` if None).

        Raises what a follower would see: StillRunning, FlightFailed, FlightCancelled. A flight that was
        purged meanwhile is ResultUnreadable.
        """
        outcome: Outcome[R] = self._wait(self, timeout)
        return outcome


class AsyncFlightHandle(_Handle, Generic[R]):
    """A `FlightHandle` of an async function: `wait` is awaited."""

    async def wait(self, timeout: float | None = None) -> Outcome[R]:
        """Return the outcome, waiting up to `timeout` seconds (the stage's `wait_timeout` if None).

        Raises what a follower would see, as `FlightHandle.wait` does.
        """
        waiting: Awaitable[Outcome[R]] = self._wait(self, timeout)
        return await waiting
