"""A way back to a flight: for callers whose wait ended, and for background flights."""

from collections.abc import Callable
from typing import Generic, TypeVar

from singleflight_app.domain.flight import Outcome

R = TypeVar("R")


class FlightHandle(Generic[R]):
    """Finds a flight again by id and generation; it waits and reads, and never takes a flight over.

    `flight_id` and `generation` are None when the caller's wait ended before its claim was answered.
    """

    def __init__(
        self,
        stage: str,
        flight_id: int | None,
        generation: int | None,
        wait: Callable[["FlightHandle[R]", float | None], Outcome[R]],
    ) -> None:
        self.stage, self.flight_id, self.generation = stage, flight_id, generation
        self._wait = wait

    def wait(self, timeout: float | None = None) -> Outcome[R]:
        """Return the outcome, waiting up to `timeout` seconds (the stage's `wait_timeout` if None).

        Raises what a follower would see: StillRunning, FlightFailed, FlightCancelled. A flight that was
        purged meanwhile is ResultUnreadable.
        """
        return self._wait(self, timeout)

    def __str__(self) -> str:
        """Return stage, id and generation, safe for logs."""
        if self.flight_id is None:
            return f"a flight of stage {self.stage}"
        return f"flight {self.flight_id} of stage {self.stage} (generation {self.generation})"
