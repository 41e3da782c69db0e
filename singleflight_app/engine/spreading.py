"""Hands stored ends on, after their commit and off the callers' way: hints first, then the replay cache.

One thread per process sends what has gathered in one go. Nothing here is needed for an answer to be right: a hint
that is lost costs a poll interval, a cache entry that is lost costs a read of the row.
"""

import logging
import threading
from collections import deque

from singleflight_app.domain.records import Hint, Kept
from singleflight_app.engine import threads
from singleflight_app.engine.ports import Notifier, ReplayCache
from singleflight_app.telemetry.signals import announce, coordination_failed

MOST = 10_000  #: of each kind that wait; beyond it the oldest are dropped
_BATCH = 200
_GOODBYE = 1.0  #: seconds for the rest at the process's end
logger = logging.getLogger("singleflight_app")


class Spreading:
    """What this process has to tell, and the thread that tells it."""

    def __init__(self, cache: ReplayCache, notifier: Notifier) -> None:
        self._cache, self._notifier = cache, notifier
        self._changed = threading.Condition()
        self._hints: deque[tuple[str, Hint]] = deque(maxlen=MOST)
        self._kept: deque[Kept] = deque(maxlen=MOST)
        self._is_started = self._is_sending = self._is_closed = False

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

    def _wake(self) -> None:
        if not self._is_started:
            self._is_started = threads.start(self._send_for_ever, "spread")
        elif not self._is_sending:
            self._changed.notify()

    def _send_for_ever(self) -> None:
        while True:
            with self._changed:
                self._is_sending = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._hints or self._kept or self._is_closed)
                hints = [self._hints.popleft() for _ in range(min(len(self._hints), _BATCH))]
                kept = [self._kept.popleft() for _ in range(min(len(self._kept), _BATCH))]
                self._is_sending = True
                if self._is_closed and not (hints or kept):
                    return
            self._send(hints, kept)

    def _send(self, hints: list[tuple[str, Hint]], kept: list[Kept]) -> None:
        try:
            self._notifier.publish(hints)
            self._cache.keep(kept)
        except Exception as exc:
            # The adapters announce Redis's own errors; no other may end the thread.
            logger.exception("handing on %s hints and %s outcomes failed", len(hints), len(kept))
            announce(coordination_failed, component="notify", error=type(exc).__name__)
