"""Waiting for flights that other processes run: hints wake at once, a batched poll bounds every loss.

One listener and one poll thread per process serve all waiting keys; they only wake. Whoever waits looks at
the row itself and decides itself.
"""

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from singleflight_app.domain.exceptions import CoordinationUnavailable
from singleflight_app.domain.keys import FlightKey
from singleflight_app.domain.records import FLOORS, LeaseState
from singleflight_app.domain.states import Status
from singleflight_app.engine import threads
from singleflight_app.engine.ports import FlightStore, Notifier
from singleflight_app.engine.rim import Bell
from singleflight_app.telemetry.signals import announce, coordination_failed, follower_woken

logger = logging.getLogger("singleflight_app")

LISTEN_FOR = 0.25  #: seconds of one read of the streams; a stage new to the process waits at most this long
FLOORS_BACK = 60.0  #: seconds of floors that are read when the listener begins
_FLOORS_LEEWAY = 1.0  #: so that not each remembered outcome takes the lock
_SOON = 0.01


class Watch:
    """One caller's eye on a key; `seen` is the generation that it follows, None before its claim."""

    def __init__(self, key: FlightKey, bell: Bell, pending_timeout: float, on_gone: Callable[[], object]) -> None:
        self.key, self._bell, self._pending_timeout = key, bell, pending_timeout
        self.on_gone = on_gone  #: called when the caller's loop was closed under it
        self.flight_id: int | None = None
        self.seen: int | None = None
        self._woken_by = ""

    def wake(self, by: str = "") -> None:
        """Let the caller look at the row; the first to wake it counts."""
        self._woken_by = self._woken_by or by
        self._bell.ring()

    def take_waker(self) -> str:
        """Return by what the caller was woken since this was asked last: "hint", "poll", or "" for neither."""
        by, self._woken_by = self._woken_by, ""
        return by

    def is_deaf(self) -> bool:
        """Tell whether the caller is gone with its loop."""
        return self._bell.is_deaf()

    def is_past(self, state: LeaseState | None) -> bool:
        """Tell whether the row gives reason to look: it moved, ended, vanished, or nobody cares for it any more."""
        if state is None or state.generation != self.seen or Status(state.status).is_settled:
            return True
        if state.pending_age is not None:
            return state.pending_age >= self._pending_timeout
        return state.lease_remaining is not None and state.lease_remaining <= 0


class Following:
    """The waiting keys of this process, with the two threads that wake them."""

    def __init__(
        self,
        store: FlightStore,
        notifier: Notifier,
        *,
        poll_interval: float,
        on_hint: Callable[[], object] = lambda: None,
        on_floor: Callable[[bytes, int], object] = lambda _digest, _generation: None,
        monotonic: Callable[[], float] = time.monotonic,
        start: threads.Start = threads.start,
    ) -> None:
        self._store, self._notifier, self._monotonic, self._start_thread = store, notifier, monotonic, start
        self._on_hint, self._on_floor = on_hint, on_floor
        self._interval = poll_interval
        self._changed = threading.Condition()
        self._watches: dict[bytes, set[Watch]] = {}
        self._waiting: Counter[str] = Counter()  # followers by stage; only these are listened to and polled
        self._floors_until = float("-inf")  #: until when this process remembers outcomes that a floor may drop
        self._next_poll = float("inf")
        self._is_polling = self._is_listening = self._is_closed = False

    @contextmanager
    def watch(
        self,
        key: FlightKey,
        bell: Bell,
        *,
        pending_timeout: float = float("inf"),
        on_gone: Callable[[], object] = lambda: None,
    ) -> Iterator[Watch]:
        """Register a key before its claim is sent, so that no hint after the claim is missed."""
        watch = Watch(key, bell, pending_timeout, on_gone)
        with self._changed:
            self._watches.setdefault(key.digest, set()).add(watch)
        try:
            yield watch
        finally:
            with self._changed:
                self._drop(watch)

    @contextmanager
    def following(self, watch: Watch, flight_id: int, generation: int, lease_remaining: float | None) -> Iterator[None]:
        """Follow one generation: listen to the stage and poll the row until the block ends."""
        with self._changed:
            watch.flight_id, watch.seen = flight_id, generation
            self._poll_by(self._monotonic() + self.pause(lease_remaining))
        try:
            with self.listening(watch.key.stage):
                yield
        finally:
            with self._changed:
                watch.flight_id = None

    @contextmanager
    def listening(self, stage: str) -> Iterator[None]:
        """Hear the hints of a stage until the block ends."""
        with self._changed:
            self._waiting[stage] += 1
            self._start()
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._hear_less(stage)

    def hear_floors(self, until: float) -> None:
        """Hear which outcomes are forgotten or replaced, until a monotonic time: the process remembers some so long."""
        if until <= self._floors_until or not self._notifier.is_listening:
            return
        with self._changed:
            self._floors_until = until + _FLOORS_LEEWAY
            self._start_listening()
            self._changed.notify_all()

    def close(self) -> None:
        """End both threads at their next turn; the last one to use the notifier closes it."""
        with self._changed:
            self._is_closed = True
            is_heard = self._is_listening
            self._changed.notify_all()
        if not is_heard:
            self._notifier.close()

    def drop_deaf(self) -> None:
        """Forget callers whose loops were closed under them; they will never leave by themselves."""
        with self._changed:
            deaf = [watch for watches in self._watches.values() for watch in watches if watch.is_deaf()]
            for watch in deaf:
                self._drop(watch)
                if watch.flight_id is not None:
                    self._hear_less(watch.key.stage)
        for watch in deaf:
            watch.on_gone()

    def _drop(self, watch: Watch) -> None:
        watches = self._watches.get(watch.key.digest, set())
        watches.discard(watch)
        if not watches:
            self._watches.pop(watch.key.digest, None)

    def _hear_less(self, stage: str) -> None:
        self._waiting[stage] -= 1
        if not self._waiting[stage]:
            del self._waiting[stage]

    def after_fork(self) -> None:
        """Forget, in a child, who held the lock: a thread of the parent, which is not here."""
        self._changed = threading.Condition()

    def _start(self) -> None:
        if not self._is_polling:
            self._is_polling = self._start_thread(self._poll_for_ever, "poll")
        self._start_listening()

    def _start_listening(self) -> None:
        if not self._is_listening and self._notifier.is_listening:
            self._is_listening = self._start_thread(self._listen_for_ever, "listen")

    def _poll_for_ever(self) -> None:
        while self._wait_for_poll():
            try:
                soonest = self.poll()
            except CoordinationUnavailable as exc:
                announce(coordination_failed, component="database", error=type(exc).__name__)
                soonest = None
            except Exception as exc:
                # Whoever follows depends on this thread for its whole wait: no surprise may end it.
                logger.exception("the poll failed")
                announce(coordination_failed, component="poll", error=type(exc).__name__)
                soonest = None
            with self._changed:
                self._poll_by(self._monotonic() + self.pause(soonest))

    def poll(self) -> float | None:
        """Read all followed flights in one statement and wake where there is news; return the shortest lease left."""
        self.drop_deaf()
        with self._changed:
            followed = [watch for watches in self._watches.values() for watch in watches if watch.flight_id]
        if not followed:
            return None
        states = {state.flight_id: state for state in self._store.poll({w.flight_id for w in followed if w.flight_id})}
        for watch in followed:
            if watch.flight_id is not None and watch.is_past(states.get(watch.flight_id)):
                watch.wake("poll")
        leases = [s.lease_remaining for s in states.values() if s.lease_remaining is not None and s.lease_remaining > 0]
        return min(leases, default=None)

    def _wait_for_poll(self) -> bool:
        """Wait until a poll is due; False when this is closed."""
        with self._changed:
            while not self._is_closed:
                left = self._next_poll - self._monotonic()
                if self._waiting and left <= 0:
                    self._next_poll = float("inf")
                    return True
                self._changed.wait(left if self._waiting and left < float("inf") else None)
            return False

    def _poll_by(self, then: float) -> None:
        if then < self._next_poll:
            self._next_poll = then
            self._changed.notify_all()

    def pause(self, lease_remaining: float | None = None) -> float:
        """Return the seconds until the next poll: the interval, jittered, or the end of the next lease.

        A lease that is over already gives no reason to hurry: whoever may take it was woken.
        """
        pause = self._interval * random.uniform(0.75, 1.25)  # noqa: S311  (spreads load, guards nothing)
        return pause if lease_remaining is None or lease_remaining <= 0 else min(pause, lease_remaining + _SOON)

    def _listen_for_ever(self) -> None:
        self._listen_until_closed()
        self._notifier.close()

    def _listen_until_closed(self) -> None:
        while (stages := self._stages_to_hear()) is not None:
            try:
                is_new = [self._notifier.open(stage) for stage in stages if stage != FLOORS]
                if FLOORS in stages:
                    # A floor sent since the first outcome was remembered, but before this, is still to be read.
                    self._notifier.open(FLOORS, back=FLOORS_BACK)
                if any(is_new):
                    # What was sent before the position was known can only be seen in the rows.
                    with self._changed:
                        self._poll_by(self._monotonic())
                hints = self._notifier.read(stages, LISTEN_FOR)
            except Exception as exc:  # noqa: BLE001  (as for the poll; mostly a ConnectionError, announced and logged)
                announce(coordination_failed, component="notify", error=type(exc).__name__)
                with self._changed:
                    self._changed.wait_for(lambda: self._is_closed, self._interval)
                continue
            for hint in hints:
                if hint.is_floor:
                    self._on_floor(hint.digest, hint.generation)
                else:
                    self.wake(hint.digest, "hint")
                    self._on_hint()

    def _stages_to_hear(self) -> list[str] | None:
        """Wait until somebody follows or remembers; None when this is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._waiting or self._remembers())
            floors = [FLOORS] if self._remembers() else []
            return None if self._is_closed else [*self._waiting, *floors]

    def _remembers(self) -> bool:
        return self._monotonic() < self._floors_until

    def wake(self, digest: bytes, by: str = "") -> None:
        """Let all who wait for a key here look at its row."""
        with self._changed:
            for watch in self._watches.get(digest, ()):
                watch.wake(by)

    def announce_end(self, watch: Watch, by: str) -> None:
        """Say by what a follower came to the end that it waited for, where a hint could have brought it."""
        if by and self._notifier.is_listening:
            announce(follower_woken, stage=watch.key.stage, by=by)
