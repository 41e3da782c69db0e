"""Hands stored ends on, after their commit and off the callers' way: hints first, then the replay cache.

One thread per process sends what has gathered in one go. Nothing here is needed for an answer to be right: a hint
that is lost costs a poll interval, a cache entry that is lost costs a read of the row. Only floors are sent again,
as long as they matter: no poll stands behind them, and what other processes remember is old from then on.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from singleflight_app.domain.exceptions import CoordinationUnavailable
from singleflight_app.domain.records import FLOORS, Hint, Kept
from singleflight_app.engine import threads
from singleflight_app.engine.ports import Notifier, ReplayCache
from singleflight_app.telemetry.signals import announce, coordination_failed

FLOOR_PAUSE = 1.0  #: seconds between two tries to raise floors that could not be confirmed
MOST = 10_000  #: of each kind that wait; beyond it the oldest are dropped
_BATCH = 200
_GOODBYE = 1.0  #: seconds for the rest at the process's end
logger = logging.getLogger("singleflight_app")


class Spreading:
    """What this process has to tell, and the thread that tells it."""

    def __init__(
        self,
        cache: ReplayCache,
        notifier: Notifier,
        *,
        floor_seconds: float,
        monotonic: Callable[[], float] = time.monotonic,
        start: threads.Start = threads.start,
    ) -> None:
        self._cache, self._notifier, self._monotonic, self._start_thread = cache, notifier, monotonic, start
        self._floor_seconds = floor_seconds
        self._floors: dict[bytes, tuple[int, float]] = {}  # by key: the generation, and until when it matters
        self._unheard: list[tuple[Hint, float]] = []  # floors that were not sent, and until when they matter
        self._changed = threading.Condition()
        self._hints: deque[tuple[str, Hint]] = deque(maxlen=MOST)
        self._kept: deque[Kept] = deque(maxlen=MOST)
        self._is_started = self._is_sending = self._is_floor_due = self._is_closed = False

    def hint(self, stage: str, hint: Hint) -> None:
        """Tell the followers of a flight to look at its row."""
        if self._notifier.is_listening:
            with self._changed:
                self._hints.append((stage, hint))
                self._wake()

    def keep(self, kept: Kept) -> None:
        """Offer an outcome to the replay cache; without a ticket there is nothing to offer."""
        if kept.ticket is not None:
            with self._changed:
                self._kept.append(kept)
                self._wake()

    def floor(self, digest: bytes, generation: int, *, seconds: float) -> None:
        """Raise a floor that Redis could not confirm, as soon as it can: an older outcome may lie there so long."""
        with self._changed:
            if len(self._floors) < MOST:
                self._floors[digest] = (generation, self._monotonic() + seconds)
                self._is_floor_due = True
                self._wake()

    def drain(self, timeout: float) -> None:
        """Return once all is sent, or after `timeout` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._hints or self._kept or self._is_sending), timeout)

    def close(self) -> None:
        """Send the rest and end the thread."""
        self.drain(_GOODBYE)
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _has_work(self) -> bool:
        return bool(self._hints or self._kept or self._is_floor_due or self._is_closed)

    def _wake(self) -> None:
        if not self._is_started:
            self._is_started = self._start_thread(self._send_for_ever, "spread")
        elif not self._is_sending:
            self._changed.notify()

    def _send_for_ever(self) -> None:
        while True:
            with self._changed:
                self._is_sending = False
                self._changed.notify_all()
                pause = FLOOR_PAUSE if self._floors or self._unheard else None
                self._changed.wait_for(self._has_work, pause)
                self._is_floor_due = False
                hints = [self._hints.popleft() for _ in range(min(len(self._hints), _BATCH))]
                kept = [self._kept.popleft() for _ in range(min(len(self._kept), _BATCH))]
                self._is_sending = True
                if self._is_closed and not (hints or kept):
                    return
            self._send(hints, kept)
            self._raise_floors()

    def _send(self, hints: list[tuple[str, Hint]], kept: list[Kept]) -> None:
        now = self._monotonic()
        again = [(floor, until) for floor, until in self._unheard if now < until]
        floors = again + [(hint, now + self._floor_seconds) for _, hint in hints if hint.is_floor]
        try:
            is_sent = self._notifier.publish([*((FLOORS, floor) for floor, _ in again), *hints])
            self._unheard = [] if is_sent else floors[-MOST:]
            self._cache.keep(kept)
        except Exception as exc:
            # The adapters announce Redis's own errors; no other may end the thread.
            logger.exception("handing on %s hints and %s outcomes failed", len(hints), len(kept))
            announce(coordination_failed, component="notify", error=type(exc).__name__)

    def _raise_floors(self) -> None:
        with self._changed:
            floors = list(self._floors.items())
        for digest, (generation, until) in floors:
            if self._monotonic() < until:
                try:
                    self._cache.raise_floor(digest, generation)
                except CoordinationUnavailable:
                    return  # the others would wait for the same server
            with self._changed:
                if self._floors.get(digest) == (generation, until):
                    del self._floors[digest]
