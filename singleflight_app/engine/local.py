"""Callers of one process that share a key: one of them leads, the others wait for its end.

The leader claims, follows or calls; the others stand in line behind it. A leader that leaves without an end
(its wait is over, it was interrupted) hands the lead to the next in line, so that nobody's trouble is another's.

An end is shared only with those who asked before the statement that brought it was sent. Whoever came later may
have asked after a `forget` that the statement did not see yet, and asks again.
"""

import threading
from collections import OrderedDict
from enum import Enum, auto

from singleflight_app.domain.exceptions import Overloaded
from singleflight_app.domain.flight import Settled
from singleflight_app.domain.states import Layer, Role
from singleflight_app.engine.rim import Bell


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

    __slots__ = ("bell", "number", "turn")

    def __init__(self, number: int, bell: Bell) -> None:
        self.number, self.bell = number, bell
        self.turn: Turn | None = None

    def tell(self, turn: Turn) -> bool:
        """Say what the caller may do; False: nobody hears it."""
        self.turn = turn
        return self.bell.ring()


class LocalFlight:
    """One key in this process while somebody asks for it."""

    def __init__(self) -> None:
        # Reentrant, since a caller whose loop was closed under it leaves when Python collects it: anywhere.
        self._lock = threading.RLock()
        self._line: OrderedDict[int, _Place] = OrderedDict()
        self.asked = self._mark = 0  #: how many have asked; how many of them before the statement that counts
        self.is_led = self.has_ended = False
        self._leader: Bell | None = None
        self.shared: Shared | None = None
        self.callers = 0  # guarded by LocalFlights
        self.flight_id: int | None = None  #: as far as the leader knows it
        self.generation: int | None = None

    async def wait_turn(self, bell: Bell, timeout: float) -> Turn:
        """Wait for the lead or the end; TimeoutError: neither came."""
        with self._lock:
            if self.has_ended:
                return Turn.AGAIN
            self.asked += 1
            if not self.is_led:
                self.is_led, self._leader = True, bell
                return Turn.LEAD
            place = self._line[self.asked] = _Place(self.asked, bell)
        try:
            await bell.wait(timeout)
        except BaseException:
            if self._leave(place) is Turn.LEAD:
                self.hand_over()
            raise
        turn = self._leave(place)
        if turn is None:
            raise TimeoutError
        return turn

    def mark(self, asked: int | None = None) -> None:
        """Note who has asked by now; the leader calls this before each statement that may bring the end.

        A `fresh` leader can only tell afterwards: it names how many had `asked` before.
        """
        with self._lock:
            self._mark = self.asked if asked is None else asked

    def publish(self, shared: Shared, *, to_nobody: bool = False) -> None:
        """Tell the line the end; the first end stands. `to_nobody`: it was forgotten, so all ask again."""
        with self._lock:
            if self.has_ended:
                return
            self.has_ended, self.shared = True, shared
            while self._line:
                _, place = self._line.popitem(last=False)
                in_time = place.number <= self._mark and not to_nobody
                place.tell(Turn.SHARE if in_time else Turn.AGAIN)

    def retire(self) -> None:
        """Let everybody in line, and whoever comes, ask anew: this flight's end is no answer for them any more."""
        with self._lock:
            self.has_ended = True
            while self._line:
                self._line.popitem(last=False)[1].tell(Turn.AGAIN)

    def cancel(self, settled: Settled) -> None:
        """Tell all in line that the flight was cancelled by hand: none of them may begin it anew."""
        with self._lock:
            self.mark()
            self.publish(Shared(settled, Role.OWNER, Layer.CALL))

    def hand_over(self) -> None:
        """Leave the lead to the next in line."""
        with self._lock:
            self.is_led = False
            while self._line and not self.has_ended and not self.is_led:
                _, place = self._line.popitem(last=False)
                self.is_led, self._leader = place.tell(Turn.LEAD), place.bell

    @property
    def is_forsaken(self) -> bool:
        """Its leader's loop was closed under it."""
        return self.is_led and self._leader is not None and self._leader.is_deaf()

    def after_fork(self) -> None:
        """Forget, in a child, who held the lock."""
        self._lock = threading.RLock()

    def _leave(self, place: _Place) -> Turn | None:
        with self._lock:
            self._line.pop(place.number, None)
            return place.turn


class LocalFlights:
    """The flights that callers of this process ask for just now: by key digest, `fresh` callers apart."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # reentrant, as a flight's
        self._flights: dict[tuple[bytes, bool], LocalFlight] = {}

    def join(self, digest: bytes, *, is_fresh: bool, max_waiters: int, retry_after: float) -> LocalFlight:
        """Return the key's flight in this process; Overloaded when `max_waiters` already wait behind it."""
        with self._lock:
            flight = self._flights.get((digest, is_fresh))
            if flight is None or flight.has_ended or flight.is_forsaken:
                flight = self._flights[digest, is_fresh] = LocalFlight()
            if flight.callers > max_waiters:
                reason = f"{max_waiters} callers of this process already wait for the same flight"
                raise Overloaded(reason, retry_after)
            flight.callers += 1
            return flight

    def after_fork(self) -> None:
        """Forget, in a child, who held a lock: threads of the parent, which are not here."""
        self._lock = threading.RLock()
        for flight in self._flights.values():
            flight.after_fork()

    def leave(self, digest: bytes, flight: LocalFlight, *, is_fresh: bool) -> None:
        """Forget the flight once nobody asks for it; a leader's turn goes on when its caller has left."""
        with self._lock:
            flight.callers -= 1
            self.drop_if_over(digest, flight, is_fresh=is_fresh)

    def forsake(self, digest: bytes, flight: LocalFlight, *, is_fresh: bool, has_left: bool) -> None:
        """Go on without a leader that will never end its turn, nor leave as a caller if it has not `has_left`."""
        with self._lock:
            if flight.is_forsaken:
                flight.hand_over()
                flight.callers -= not has_left
                self.drop_if_over(digest, flight, is_fresh=is_fresh)

    def drop_if_over(self, digest: bytes, flight: LocalFlight, *, is_fresh: bool) -> None:
        """Forget a flight that nobody asks for and nobody leads."""
        with self._lock:
            if flight.callers == 0 and not flight.is_led and self._flights.get((digest, is_fresh)) is flight:
                del self._flights[digest, is_fresh]
