"""Answers of several flight stores to the same moves, in words that they share.

Each store numbers its flights and generations itself. In a comparison a flight is the n-th that a store showed, a
generation the n-th that it gave; so order is compared, and numbers are not. Durations are compared in steps of the
clock, so that the time which a test really takes decides nothing.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

from singleflight_app.domain.records import ExpiredFlight, FlightSnapshot, Forgotten, LeaseState
from singleflight_app.engine.ports import FlightQueue, FlightStore
from tests.reference import Event

STEP = 10  #: seconds; time passes in whole steps, and every duration of a policy is a multiple of it

N = TypeVar("N", FlightSnapshot, LeaseState, Forgotten, ExpiredFlight, Event)
R = TypeVar("R", FlightSnapshot, LeaseState)


class Queue(FlightQueue, Protocol):
    """Background flights, and what an operator does to any flight by hand."""

    def expire_lease(self, flight_id: int, generation: int, *, actor: str) -> Forgotten | None:
        """End a running flight's lease."""


class Compared:
    """One of the stores in a comparison."""

    def __init__(
        self,
        name: str,
        store: FlightStore,
        queue: Queue,
        *,
        wait: Callable[[float], object],
        purge: Callable[[int], object],
        events: Callable[[], Iterable[Event]] | None,
    ) -> None:
        self.name, self.store, self.queue = name, store, queue
        self.wait, self.purge, self._events = wait, purge, events
        self._flights: list[int] = []
        self._generations: list[int] = []

    @property
    def flights(self) -> list[int]:
        """Ids of all flights that were shown, in the store's own numbers."""
        return list(self._flights)

    def events(self) -> list[Event] | None:
        """Return the audit, oldest first; None: the store keeps none."""
        return None if self._events is None else [self._numbered(event) for event in self._events()]

    def told(self, answer: object) -> object:
        """Return an answer in the words that all stores share."""
        match answer:
            case FlightSnapshot():
                return self._columns(answer)
            case LeaseState():
                return _rounded(self._numbered(answer))
            case ExpiredFlight():
                over = STEP * math.floor(answer.expired_for / STEP)
                return self._numbered(answer)._replace(expired_for=over, server_age=0.0)
            case Forgotten():
                return self._numbered(answer)
            case (bool() as is_new, FlightSnapshot() as row):
                return {"is_new": is_new, **self._columns(row)}
            case set():
                return {self._flights.index(flight_id) for flight_id in answer}
            case list():
                return sorted((self.told(item) for item in answer), key=repr)
        return answer

    def _columns(self, row: FlightSnapshot) -> dict[str, Any]:
        return _rounded(self._numbered(row))._replace(server_age=0.0)._asdict()

    def _numbered(self, answer: N) -> N:
        return answer._replace(
            flight_id=_nth(self._flights, answer.flight_id), generation=_nth(self._generations, answer.generation)
        )


def _nth(seen: list[int], number: int) -> int:
    if number not in seen:
        assert number > max(seen, default=0), f"{number} is not above all that came before: {seen}"
        seen.append(number)
    return seen.index(number)


def _rounded(row: R) -> R:
    """Return the row with whole steps: what remains is rounded up, and an age down."""
    remaining: dict[str, Any] = {
        name: STEP * math.ceil(value / STEP)
        for name in ("lease_remaining", "outcome_remaining", "retry_remaining")
        if (value := getattr(row, name, None)) is not None
    }
    age = None if row.pending_age is None else STEP * math.floor(row.pending_age / STEP)
    return row._replace(pending_age=age, **remaining)
