"""Replay memory of one process: successes for a few seconds, bounded by entries and bytes.

Times are monotonic and count from before the row was read. A floor keeps a late thread from putting an
outcome back that was just forgotten.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from singleflight_app.domain.flight import Settled

FLOOR_SECONDS = 60.0


class _Entry(NamedTuple):
    settled: Settled
    generation: int
    until: float
    size: int


class ReplayMemory:
    """Least recently used outcomes of this process."""

    def __init__(
        self,
        *,
        entries: int,
        size: int,
        longest_ttl: float = 0.0,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_entries, self._max_size, self._monotonic = entries, size, monotonic
        self.floor_seconds = max(FLOOR_SECONDS, longest_ttl)  # outlives whatever was read before it was raised
        self._lock = threading.Lock()
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self._floors: OrderedDict[bytes, tuple[int, float]] = OrderedDict()
        self._floor_of_all = 0  # stands for floors that there was no room for: generations rise over all keys
        self._size = 0

    def look(self, digest: bytes) -> Settled | None:
        """Return the outcome of a key, if it is still fresh."""
        if digest not in self._entries:  # most misses need no lock
            return None
        with self._lock:
            entry = self._entries.get(digest)
            if entry is None:
                return None
            if entry.until <= self._monotonic():
                self._drop(digest)
                return None
            self._entries.move_to_end(digest)
            return entry.settled

    def keep(self, digest: bytes, settled: Settled, *, until: float) -> None:
        """Offer a success until a monotonic time; an older generation than the floor's is refused."""
        if settled.result is None or settled.generation is None or until <= self._monotonic():
            return
        size = len(settled.result.payload) + 200  # what the objects around the payload take, about
        if size > self._max_size:
            return  # it would push everybody else out, and go next itself
        with self._lock:
            floor, _ = self._floors.get(digest, (0, 0.0))
            held = self._entries.get(digest)
            if settled.generation <= max(floor, self._floor_of_all) or (
                held is not None and held.generation > settled.generation
            ):
                return
            self._drop(digest)
            self._entries[digest] = _Entry(settled, settled.generation, until, size)
            self._size += size
            while len(self._entries) > self._max_entries or self._size > self._max_size:
                self._drop(next(iter(self._entries)))

    def raise_floor(self, digest: bytes, generation: int) -> None:
        """Drop the key's outcome up to `generation` and refuse it from now on."""
        now = self._monotonic()
        with self._lock:
            floor, _ = self._floors.pop(digest, (0, 0.0))
            self._floors[digest] = (max(floor, generation), now + self.floor_seconds)
            while self._floors and next(iter(self._floors.values()))[1] <= now:
                self._floors.popitem(last=False)
            if len(self._floors) > self._max_entries:
                self._floor_of_all = max(self._floor_of_all, self._floors.popitem(last=False)[1][0])
            entry = self._entries.get(digest)
            if entry is not None and entry.generation <= generation:
                self._drop(digest)

    def _drop(self, digest: bytes) -> None:
        entry = self._entries.pop(digest, None)
        if entry is not None:
            self._size -= entry.size
