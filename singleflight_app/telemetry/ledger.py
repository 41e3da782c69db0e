"""What the flights cost and what sharing them saved, summed per stage and hour.

The sums grow in memory, fed by the signals, and are added to the database `FLUSH_INTERVAL` seconds after
the first of them, and when the runtime closes. A crash loses what was counted since the last flush; a
flush that got no answer is not repeated, for it may have been stored; one that never reached the server is
kept for the next. So the ledger may say less than happened, never more. Memory is bounded: past `MAX_TALLIES`
and `MAX_JOINS` new entries go uncounted until the next flush.

A call is counted by the process that ends its generation's running: each generation stops running once, in one
commit, so each call is counted once, and one whose owner was killed by whoever takes its flight away. Spent is
counted when an end is stored, wasted when it is refused, and saved per request that was answered without a
call of its own.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from django.dispatch import Signal

from singleflight_app.domain.exceptions import CoordinationUnavailable
from singleflight_app.domain.flight import Usage
from singleflight_app.domain.states import Layer, Role, Status
from singleflight_app.domain.tally import StageTally
from singleflight_app.telemetry import signals

FLUSH_INTERVAL = 5.0
MAX_TALLIES = 1000
MAX_JOINS = 10_000
_HOUR = 3600
_LAST_TRIES = 50  #: at the end of a runtime, for flights that other processes hold just then
_BREATH = 0.02  #: seconds between them
P = ParamSpec("P")
T = TypeVar("T")
logger = logging.getLogger("singleflight_app")
FlightRun = tuple[int, int]  #: flight id, generation
Uses = tuple[int, int]  #: joins, replays


class Store(Protocol):
    """Where the sums go; either method raises `CoordinationUnavailable` when the database does not answer."""

    def add_tallies(self, tallies: Sequence[StageTally], /) -> None:
        """Add to the stages' rows, in one statement."""

    def add_joins(self, uses: Mapping[FlightRun, Uses], /) -> set[int]:
        """Add to the joins and replays of flights that still are at that generation, in one statement.

        Returns the ids of those that were locked: they are to be tried again.
        """


def _run_later(flush: Callable[[], None]) -> None:
    # A thread of its own: a slow database must not hold up the heartbeat, which may also be asleep.
    timer = threading.Timer(FLUSH_INTERVAL, flush)
    timer.daemon, timer.name = True, "singleflight-ledger"
    try:
        timer.start()
    except RuntimeError:
        logger.debug("no thread can start any more: the flush of the closing runtime will do")


class Ledger:
    """The sums of one process; methods may be called from any thread."""

    def __init__(
        self,
        *,
        now: Callable[[], float] = time.time,
        flush_later: Callable[[Callable[[], None]], None] = _run_later,
    ) -> None:
        self._now, self._flush_later = now, flush_later
        self._store: Store | None = None
        self.reset()

    def reset(self) -> None:
        """Start empty; a forked child calls this, for the parent will flush what it inherited."""
        # Reentrant: a signal handler that settles flights may interrupt a count of its own thread.
        self._lock, self._writing = threading.RLock(), threading.RLock()
        # By stage and hours since 1970: a datetime is slow to make, to hash and to compare, once for every caller.
        self._tallies: dict[tuple[str, int], StageTally] = {}
        self._uses: dict[FlightRun, Uses] = {}
        self._is_full = self._is_scheduled = False

    def connect(self, store: Store) -> None:
        """Begin to count for `store`; called again, the newest store counts."""
        self._store = store
        for signal, receiver in self._receivers():
            signal.connect(receiver, weak=False)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Count nothing until the block ends: what happens in it is a test's."""
        for signal, receiver in self._receivers():
            signal.disconnect(receiver)
        try:
            yield
        finally:
            if self._store is not None:
                self.connect(self._store)

    def disconnect(self) -> None:
        """Stop counting, flush, and let go of the store; call it before the store's connections close."""
        for signal, receiver in self._receivers():
            signal.disconnect(receiver)
        with self._writing:
            for _ in range(_LAST_TRIES):
                if not self._flush():
                    break
                time.sleep(_BREATH)
            self._store = None

    def flush(self) -> None:
        """Add what was counted to the database; what may have been stored without an answer is not sent again."""
        self._flush()

    def _flush(self) -> bool:
        """Return whether flights were locked, so that their joins and replays are left for the next flush."""
        with self._lock:
            self._is_scheduled = False
            tallies, self._tallies = self._tallies, {}
            uses, self._uses = self._uses, {}
            was_full, self._is_full = self._is_full, False
        if was_full:
            signals.announce(signals.coordination_failed, component="ledger", error="LedgerFull")
        with self._writing:
            if self._store is None:
                return False
            if tallies and not self._is_out(self._store.add_tallies, list(tallies.values())):
                self._keep(tallies, {})
            return bool(uses) and self._add_uses(self._store, uses)

    def _add_uses(self, store: Store, uses: dict[FlightRun, Uses]) -> bool:
        locked: set[int] = set()
        if self._is_out(lambda batch: locked.update(store.add_joins(batch)), uses):
            uses = {run: used for run, used in uses.items() if run[0] in locked}
        self._keep({}, uses)
        return bool(locked)

    @staticmethod
    def _is_out(add: Callable[[T], object], batch: T) -> bool:
        """Send a batch; False: it certainly was not stored, and may be sent again."""
        try:
            add(batch)
        except CoordinationUnavailable as exc:
            signals.announce(signals.coordination_failed, component="ledger", error=type(exc).__name__)
            # Sent again, a batch whose reply was lost would be counted twice.
            return exc.was_sent
        return True

    def _keep(self, tallies: dict[tuple[str, int], StageTally], uses: dict[FlightRun, Uses]) -> None:
        """Take back what is to be sent with the next flush."""
        if not tallies and not uses:
            return
        with self._lock:
            for (stage, hour), tally in tallies.items():
                if (kept := self._tally(stage, hour)) is not None:
                    kept.add(tally)
            for run, used in uses.items():
                self._use(run, used)
        self._schedule()

    def _receivers(self) -> tuple[tuple[Signal, Callable[..., None]], ...]:
        return (
            (signals.request_answered, self._count_answer),
            (signals.wait_timed_out, self._count_given_up),
            (signals.flight_degraded, self._count_degraded),
            (signals.lease_taken_over, self._count_takeover),
            (signals.flight_lost, self._count_lost),
            (signals.flight_settled, self._count_settled),
            (signals.flight_fenced, self._count_fenced),
        )

    def _count_answer(
        self,
        *,
        stage: str,
        role: Role,
        layer: Layer,
        waited: float,
        flight_id: int | None,
        generation: int | None,
        usage: Usage,
        **_: object,
    ) -> None:
        self._count(stage, StageTally.count_answer, role, layer, waited, usage, is_stored=flight_id is not None)
        if role is not Role.OWNER and flight_id is not None and generation is not None:
            with self._lock:
                self._use((flight_id, generation), (1, 0) if role is Role.FOLLOWER else (0, 1))

    def _count_given_up(self, *, stage: str, waited: float, **_: object) -> None:
        self._count(stage, StageTally.count_given_up, waited)

    def _count_degraded(self, *, stage: str, **_: object) -> None:
        self._count(stage, StageTally.count_degraded)

    def _count_takeover(self, *, stage: str, **_: object) -> None:
        self._count(stage, StageTally.count_lost, is_begun_again=True)

    def _count_lost(self, *, stage: str, reason: str, **_: object) -> None:
        self._count(stage, StageTally.count_lost, is_begun_again=reason == "requeued")

    def _count_settled(
        self,
        *,
        stage: str,
        status: Status,
        seconds: float | None,
        usage: Usage,
        is_call: bool = True,
        **_: object,
    ) -> None:
        self._count(stage, StageTally.count_end, status, seconds, usage, is_call=is_call)

    def _count_fenced(self, *, stage: str, usage: Usage, **_: object) -> None:
        self._count(stage, StageTally.count_refused, usage)

    def _count(
        self, stage: str, count: Callable[Concatenate[StageTally, P], None], *args: P.args, **kwargs: P.kwargs
    ) -> None:
        with self._lock:
            tally = self._tally(stage, int(self._now() // _HOUR))
            if tally is None:
                return
            count(tally, *args, **kwargs)
        self._schedule()

    def _tally(self, stage: str, hour: int) -> StageTally | None:
        """Return the sums of a stage and hour; None: there is no room for more."""
        tally = self._tallies.get((stage, hour))
        if tally is None:
            if len(self._tallies) >= MAX_TALLIES:
                self._is_full = True
                return None
            tally = self._tallies[stage, hour] = StageTally(stage, datetime.fromtimestamp(hour * _HOUR, UTC))
        return tally

    def _use(self, run: FlightRun, used: Uses) -> None:
        known = self._uses.get(run)
        if known is None and len(self._uses) >= MAX_JOINS:
            self._is_full = True
            return
        joins, replays = known or (0, 0)
        self._uses[run] = (joins + used[0], replays + used[1])

    def _schedule(self) -> None:
        with self._lock:
            is_first, self._is_scheduled = not self._is_scheduled, True
        if is_first:
            self._flush_later(self.flush)


_LEDGER = Ledger()
connect = _LEDGER.connect
disconnect = _LEDGER.disconnect
paused = _LEDGER.paused
flush = _LEDGER.flush
reset = _LEDGER.reset

os.register_at_fork(after_in_child=reset)
