"""Callers of one process that share a key: one of them leads, the others wait for its end.

The leader claims, follows or calls; the others stand in line behind it. A leader that leaves without an end
(its wait is over, it was interrupted) hands the lead to the next in line, so that nobody's trouble is another's.

An end is shared only with those who asked before the statement that brought it was sent. Whoever came later may
have asked after a `forget` that the statement did not see yet, and asks again.
"""

import threading
from collections import deque
from enum import Enum, auto

from singleflight_app.domain.exceptions import Overloaded
from singleflight_app.domain.flight import Settled
from singleflight_app.domain.states import Layer, Role


class Turn(Enum):
    """What a caller in line is told."""

    LEAD = auto()  #: claim, call or follow, for everybody
    SHARE = auto()  #: take `shared`
    AGAIN = auto()  #: ask anew: the end came too late for this caller, or is nobody's


class Shared:
    """The end of a flight as the callers of this process share it."""

    __slots__ = ("layer", "role", "settled")

    def __init__(self, settled: Settled, role: Role, layer: Layer) -> None:
        self.settled, self.role, self.layer = settled, role, layer


class _Place:
    """One caller's place in line."""

    __slots__ = ("number", "told", "turn")

    def __init__(self, number: int) -> None:
        self.number, self.told = number, threading.Event()
        self.turn: Turn | None = None

    def tell(self, turn: Turn) -> None:
        self.turn = turn
        self.told.set()


class LocalFlight:
    """One key in this process while somebody asks for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._line: deque[_Place] = deque()
        self._asked = self._mark = 0
        self._is_led = self.has_ended = False
        self.shared: Shared | None = None
        self.callers = 0  # guarded by LocalFlights
        self.flight_id: int | None = None  #: as far as the leader knows it
        self.generation: int | None = None

    def wait_turn(self, timeout: float) -> Turn:
        """Wait for the lead or the end; TimeoutError: neither came."""
        with self._lock:
            if self.has_ended:
                return Turn.AGAIN
            self._asked += 1
            if not self._is_led:
                self._is_led = True
                return Turn.LEAD
            place = _Place(self._asked)
            self._line.append(place)
        try:
            place.told.wait(timeout)
        except BaseException:
            if self._leave(place) is Turn.LEAD:
                self.hand_over()
            raise
        turn = self._leave(place)
        if turn is None:
            raise TimeoutError
        return turn

    def mark(self) -> None:
        """Note who has asked by now; the leader calls this before each statement that may bring the end."""
        with self._lock:
            self._mark = self._asked

    def publish(self, shared: Shared, *, to_nobody: bool = False) -> None:
        """Tell the line the end; the first end stands. `to_nobody`: it was forgotten, so all ask again."""
        with self._lock:
            if self.has_ended:
                return
            self.has_ended, self.shared = True, shared
            while self._line:
                place = self._line.popleft()
                in_time = place.number <= self._mark and not to_nobody
                place.tell(Turn.SHARE if in_time else Turn.AGAIN)

    def retire(self) -> None:
        """Let everybody in line, and whoever comes, ask anew: this flight's end is no answer for them any more."""
        with self._lock:
            self.has_ended = True
            while self._line:
                self._line.popleft().tell(Turn.AGAIN)

    def hand_over(self) -> None:
        """Leave the lead to the next in line."""
        with self._lock:
            self._is_led = False
            if self._line and not self.has_ended:
                self._is_led = True
                self._line.popleft().tell(Turn.LEAD)

    def _leave(self, place: _Place) -> Turn | None:
        with self._lock:
            if place in self._line:
                self._line.remove(place)
            return place.turn


class LocalFlights:
    """The flights that callers of this process ask for just now, by key digest."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flights: dict[bytes, LocalFlight] = {}

    def join(self, digest: bytes, *, max_waiters: int, retry_after: float) -> LocalFlight:
        """Return the key's flight in this process; Overloaded when `max_waiters` already wait behind it."""
        with self._lock:
            flight = self._flights.get(digest)
            if flight is None or flight.has_ended:
                flight = self._flights[digest] = LocalFlight()
            if flight.callers > max_waiters:
                reason = f"{max_waiters} callers of this process already wait for the same flight"
                raise Overloaded(reason, retry_after)
            flight.callers += 1
            return flight

    def leave(self, digest: bytes, flight: LocalFlight) -> None:
        """Forget the flight once nobody asks for it."""
        with self._lock:
            flight.callers -= 1
            if flight.callers == 0 and self._flights.get(digest) is flight:
                del self._flights[digest]
