"""One thread per process keeps its leases: renews them, notices their loss, ends hung calls, writes late settles.

A beat that fails is not a lost lease. A lease is lost when the row says so; until then its owner goes on.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from singleflight_app.domain.exceptions import CoordinationUnavailable
from singleflight_app.domain.flight import Settled
from singleflight_app.domain.keys import FlightKey
from singleflight_app.domain.policy import StagePolicy
from singleflight_app.domain.records import Beat, LeaseState, Progress
from singleflight_app.domain.states import Status
from singleflight_app.engine import threads
from singleflight_app.engine.ports import FlightStore
from singleflight_app.engine.rim import Interruption
from singleflight_app.telemetry.signals import announce, coordination_failed, lease_lost

_BREATH = 0.1  #: seconds after a surprise, so that it can't become a busy loop
_BEATS_TOGETHER = 0.5  #: leases due within this part of their interval share a statement
_RETRIES_PER_BEAT = 4

logger = logging.getLogger("singleflight_app")


@dataclass(eq=False)
class Lease:
    """A generation that this process runs."""

    key: FlightKey
    policy: StagePolicy
    flight_id: int
    generation: int
    #: Monotonic time before the grant or the last good beat was sent: the trust counts from there.
    sent_at: float
    run_until: float = float("inf")  #: monotonic end of `execution_timeout`
    on_timeout: Callable[["Lease"], object] = lambda _: None
    #: Called with the reason: "superseded", "cancelled" or "vanished".
    on_lost: Callable[[str], object] = lambda _: None
    on_gone: Callable[["Lease"], object] = lambda _: None  #: called when the call's event loop was closed under it
    pid: int = field(default_factory=os.getpid)
    beat_at: float = 0.0
    is_background: bool = False  #: run by a worker, with arguments in the row
    progress: Progress | None = None  #: what the call said last, until a beat has carried it
    interruption: Interruption = field(default_factory=Interruption)
    has_begun: bool = False  #: the function was called
    seconds_run: float | None = None  #: of the call, once it ended
    is_lost: bool = False
    lost_by: str = ""  #: the reason, as of `on_lost`
    is_timed_out: bool = False
    late: Settled | None = None  #: the end that could not be written yet
    late_until: float = 0.0

    @property
    def is_over(self) -> bool:
        """What the call comes to is nobody's answer any more."""
        return self.is_lost or self.is_timed_out

    @property
    def was_ended(self) -> bool:
        """The row had a newer generation, or another end, when this process last heard of it."""
        return self.is_timed_out or self.lost_by in {"superseded", "cancelled"}

    def is_in_doubt(self, now: float) -> bool:
        """The lease may be over by now: no beat got through for its whole length."""
        return now >= self.sent_at + self.policy.lease


class Heartbeat:
    """The leases of this process."""

    def __init__(
        self,
        store: FlightStore,
        *,
        owner: str,
        settle_late: Callable[[Lease], bool],
        limits: tuple[int, int] = (1000, 64_000_000),
        monotonic: Callable[[], float] = time.monotonic,
        start: threads.Start = threads.start,
    ) -> None:
        self._store, self._owner, self._monotonic, self._start_thread = store, owner, monotonic, start
        self._settle_late = settle_late
        self._max_late, self._max_late_bytes = limits
        self._changed = threading.Condition()
        self._leases: dict[int, Lease] = {}  # by generation
        self._wakes_at = float("-inf")  #: until when the thread sleeps, if nobody wakes it
        self._is_started = self._is_closed = False

    def hold(self, lease: Lease) -> None:
        """Begin to beat for a lease."""
        with self._changed:
            lease.beat_at = lease.sent_at + lease.policy.heartbeat
            self._leases[lease.generation] = lease
            self._start()
            self._wake_by(self._due(lease))

    def release(self, lease: Lease) -> bool:
        """Stop beating for a lease that is settled, lost or given up; False: it was let go of before."""
        with self._changed:
            return self._leases.pop(lease.generation, None) is not None

    def cancelled(self, generation: int) -> None:
        """Lose a lease that was cancelled by hand in this process, without waiting for the beat that would tell."""
        with self._changed:
            lease = self._leases.get(generation)
            if lease is not None and lease.late is not None:
                # The beat loses it, and has its end refused and recorded.
                lease.beat_at = self._monotonic()
                self._wake_by(lease.beat_at)
                return
        if lease is not None:
            self._lose(lease, "cancelled")

    def settle_later(self, lease: Lease, settled: Settled, *, within: float, at_once: bool = False) -> bool:
        """Keep an end that could not be written, and the lease with it; False: there are too many already.

        `at_once`: it was not tried yet, since its caller has no time left for it.
        """
        with self._changed:
            waiting = [held.late for held in self._leases.values() if held.late is not None]
            size = sum(len(late.result.payload) for late in (*waiting, settled) if late.result is not None)
            if len(waiting) >= self._max_late or size > self._max_late_bytes:
                return False
            now = self._monotonic()
            lease.late, lease.late_until = settled, now + within
            lease.beat_at = now if at_once else now + lease.policy.heartbeat / _RETRIES_PER_BEAT
            self._leases[lease.generation] = lease
            self._start()
            self._wake_by(lease.beat_at)
            return True

    def unsettled(self, digest: bytes) -> Settled | None:
        """Return the end of a key that could not be written yet."""
        ends = (lease.late for lease in self.held() if lease.late is not None and lease.key.digest == digest)
        return next(ends, None)

    def held(self) -> list[Lease]:
        """Return the leases of this process."""
        with self._changed:
            return list(self._leases.values())

    def generations(self) -> set[int]:
        """Return the generations that this process runs or has yet to settle."""
        with self._changed:
            return set(self._leases)

    def close(self) -> None:
        """End the thread at its next turn."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def next_due(self) -> float:
        """Return the monotonic time at which a beat has something to do; infinite without a lease."""
        with self._changed:
            return min((self._due(lease) for lease in self._leases.values()), default=float("inf"))

    def _start(self) -> None:
        if not self._is_started:
            self._is_started = self._start_thread(self._beat_for_ever, "beat")

    def _beat_for_ever(self) -> None:
        while self._wait_for_beat():
            try:
                self.beat()
            except Exception as exc:
                # Every lease of the process depends on this thread: no surprise may end it.
                logger.exception("a beat failed")
                announce(coordination_failed, component="beat", error=type(exc).__name__)
                time.sleep(_BREATH)

    def _wait_for_beat(self) -> bool:
        """Wait until a lease is due; False when this is closed."""
        with self._changed:
            while not self._is_closed:
                due = self.next_due()
                left = due - self._monotonic()
                if left <= 0:
                    return True
                self._wakes_at = due
                self._changed.wait(None if left == float("inf") else left)
            return False

    def _wake_by(self, then: float) -> None:
        # Most leases are shorter than a beat: waking the thread for each would cost them a switch.
        if then < self._wakes_at:
            self._changed.notify()

    @staticmethod
    def _due(lease: Lease) -> float:
        return lease.beat_at if lease.late is not None else min(lease.beat_at, lease.run_until)

    def beat(self) -> None:
        """Do what is due: end hung calls, renew leases, write late settles."""
        now = self._monotonic()
        leases = self.held()
        for lease in leases:
            if lease.late is None and lease.interruption.is_gone():
                lease.on_gone(lease)
            elif lease.late is None and now >= lease.run_until:
                self._end_hung_call(lease)
        due = [
            lease
            for lease in leases
            if not lease.is_timed_out and now >= lease.beat_at - _BEATS_TOGETHER * lease.policy.heartbeat
        ]
        if due:
            self._renew(due, now)
        for lease in leases:
            if lease.late is not None:
                self._write_late(lease, now)

    def _write_late(self, lease: Lease, now: float) -> None:
        if now >= lease.late_until or self._settle_late(lease):
            self.release(lease)
        else:
            lease.beat_at = now + lease.policy.heartbeat / _RETRIES_PER_BEAT

    def _end_hung_call(self, lease: Lease) -> None:
        self.release(lease)
        lease.is_timed_out = True
        lease.interruption.request()
        lease.on_timeout(lease)

    def _renew(self, due: list[Lease], now: float) -> None:
        for lease in due:
            lease.beat_at = now + lease.policy.heartbeat / _RETRIES_PER_BEAT
        try:
            told = [lease.progress for lease in due]
            beats = [
                Beat(lease.flight_id, lease.generation, lease.policy.lease, progress)
                for lease, progress in zip(due, told, strict=True)
            ]
            renewed = self._store.renew(beats, owner=self._owner)
            missing = [lease for lease in due if lease.flight_id not in renewed]
            # A new statement: what the renewing one could have seen beside its refusals is stale.
            found = self._store.poll([lease.flight_id for lease in missing]) if missing else []
        except CoordinationUnavailable as exc:
            announce(coordination_failed, component="beat", error=type(exc).__name__)
            return
        states = {state.flight_id: state for state in found}
        for lease, progress in zip(due, told, strict=True):
            if lease.flight_id in renewed:
                lease.sent_at, lease.beat_at = now, now + lease.policy.heartbeat
                if lease.progress is progress:
                    lease.progress = None
            elif (reason := self._loss(lease, states.get(lease.flight_id))) is not None:
                self._lose(lease, reason)

    def _loss(self, lease: Lease, state: LeaseState | None) -> str | None:
        """Return why the row proves a loss; None: it was only locked, and the next beat tries again."""
        if state is None:
            return "vanished"
        if state.generation != lease.generation or (state.status == Status.RUNNING and state.owner != self._owner):
            return "superseded"
        if state.status == Status.CANCELLED:
            return "cancelled"
        return None

    def _lose(self, lease: Lease, reason: str) -> None:
        if not self.release(lease):
            return
        lease.is_lost, lease.lost_by = True, reason
        lease.on_lost(reason)
        if reason != "vanished":  # then its own value is the only one there is
            lease.interruption.request()
        announce(
            lease_lost,
            stage=lease.key.stage,
            flight_id=lease.flight_id,
            generation=lease.generation,
            reason=reason,
        )
