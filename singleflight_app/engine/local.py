"""Callers of one process that share a key: one of them leads, the others wait for its end.

The leader claims, follows or calls; the others stand behind it. A leader that leaves without an end (its
wait is over, it was interrupted) hands the lead to the next in line, so that nobody's trouble is another's.
"""

import threading
from collections import deque

from singleflight_app.domain.exceptions import Overloaded
from singleflight_app.domain.flight import Settled
from singleflight_app.domain.states import Layer, Role


class Shared:
    """The end of a flight as the callers of this process share it."""

    __slots__ = ("layer", "role", "settled")

    def __init__(self, settled: Settled, role: Role, layer: Layer) -> None:
        self.settled, self.role, self.layer = settled, role, layer


class LocalFlight:
    """One key in this process while somebody asks for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._line: deque[threading.Event] = deque()
        self._is_led = False
        self.shared: Shared | None = None
        self.callers = 0  # guarded by LocalFlights
        self.flight_id: int | None = None  #: as far as the leader knows it
        self.generation: int | None = None

    def wait_turn(self, timeout: float) -> bool:
        """Wait for the end or the lead; True: look at `shared`, else lead. TimeoutError: neither came."""
        with self._lock:
            if self.shared is not None:
                return True
            if not self._is_led:
                self._is_led = True
                return False
            turn = threading.Event()
            self._line.append(turn)
        try:
            turn.wait(timeout)
        except BaseException:
            if not self._leave_line(turn):
                self.hand_over()
            raise
        if self._leave_line(turn) and self.shared is None:
            raise TimeoutError
        # Out of the line without an end: the lead was handed over.
        return self.shared is not None

    def publish(self, shared: Shared) -> None:
        """Give everybody in line, and whoever still joins this flight, its end; the first end stands."""
        with self._lock:
            if self.shared is None:
                self.shared = shared
            for turn in self._line:
                turn.set()

    def _leave_line(self, turn: threading.Event) -> bool:
        with self._lock:
            if turn not in self._line:
                return False
            self._line.remove(turn)
            return True

    def hand_over(self) -> None:
        """Leave the lead to the next in line."""
        with self._lock:
            self._is_led = False
            if self.shared is None and self._line:
                self._is_led = True
                self._line.popleft().set()


class LocalFlights:
    """The flights that callers of this process ask for just now, by key digest."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flights: dict[bytes, LocalFlight] = {}

    def join(self, digest: bytes, *, max_waiters: int, retry_after: float) -> LocalFlight:
        """Return the key's flight in this process; Overloaded when `max_waiters` already wait behind it."""
        with self._lock:
            flight = self._flights.get(digest)
            if flight is None or flight.shared is not None:
                flight = self._flights[digest] = LocalFlight()
            if flight.callers > max_waiters:
                reason = f"{max_waiters} callers of this process already wait for the same flight"
                raise Overloaded(reason, retry_after)
            flight.callers += 1
            return flight

    def detach(self, digest: bytes) -> None:
        """Let whoever asks from now on not join the flight that runs; those inside stay with it."""
        with self._lock:
            self._flights.pop(digest, None)

    def leave(self, digest: bytes, flight: LocalFlight) -> None:
        """Forget the flight once nobody asks for it."""
        with self._lock:
            flight.callers -= 1
            if flight.callers == 0 and self._flights.get(digest) is flight:
                del self._flights[digest]
