"""What the flights cost and what sharing them saved, summed per stage and hour.

The sums grow in memory, fed by the signals, and are added to the database `FLUSH_INTERVAL` seconds after
the first of them, and when the runtime closes. A crash loses what was counted since the last flush; a
flush that got no answer is not repeated, for it may have been stored. So the ledger may say less than
happened, never more. Memory is bounded: past `MAX_TALLIES` and `MAX_JOINS` new entries go uncounted until
the next flush.

Spent is counted when an end is stored, wasted when it is refused, and saved per request that was
answered without a call of its own.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from typing import Protocol, TypeVar

from django.dispatch import Signal

from singleflight_app.domain.exceptions import CoordinationUnavailable
from singleflight_app.domain.flight import NO_USAGE, Usage
from singleflight_app.domain.states import Role, Status
from singleflight_app.domain.tally import StageTally
from singleflight_app.telemetry import signals

FLUSH_INTERVAL = 5.0
MAX_TALLIES = 1000
MAX_JOINS = 10_000
_HOUR = 3600
B = TypeVar("B")
logger = logging.getLogger("singleflight_app")
FlightRun = tuple[int, int]  #: flight id, generation


class Store(Protocol):
    """Where the sums go; either method raises `CoordinationUnavailable` when the database does not answer."""

    def add_tallies(self, tallies: Sequence[StageTally], /) -> None:
        """Add to the stages' rows, in one statement."""

    def add_joins(self, joins: Mapping[FlightRun, int], /) -> None:
        """Add to the join counts of flights that still are at that generation, in one statement."""


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
        self._joins: dict[FlightRun, int] = {}
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
            self.flush()
            self._store = None

    def flush(self) -> None:
        """Add what was counted to the database; without an answer it is dropped and announced."""
        with self._lock:
            self._is_scheduled = False
            tallies, self._tallies = self._tallies, {}
            joins, self._joins = self._joins, {}
            was_full, self._is_full = self._is_full, False
        if was_full:
            signals.announce(signals.coordination_failed, component="ledger", error="LedgerFull")
        with self._writing:
            if tallies and self._store is not None:
                self._write(self._store.add_tallies, list(tallies.values()))
            if joins and self._store is not None:
                self._write(self._store.add_joins, joins)

    @staticmethod
    def _write(add: Callable[[B], None], batch: B) -> None:
        try:
            add(batch)
        except CoordinationUnavailable as exc:
            # Sent again, a batch whose reply was lost would be counted twice.
            signals.announce(signals.coordination_failed, component="ledger", error=type(exc).__name__)

    def _receivers(self) -> tuple[tuple[Signal, Callable[..., None]], ...]:
        return (
            (signals.request_answered, self._count_answer),
            (signals.lease_granted, self._count_call),
            (signals.flight_degraded, self._count_call),
            (signals.lease_taken_over, self._count_takeover),
            (signals.flight_settled, self._count_settled),
            (signals.flight_fenced, self._count_fenced),
        )

    def _count_answer(
        self,
        *,
        stage: str,
        role: Role,
        flight_id: int | None,
        generation: int | None,
        usage: Usage,
        **_: object,
    ) -> None:
        if role is Role.OWNER:
            # Without a flight there is no stored end to tell what the call took.
            spent = usage if flight_id is None else NO_USAGE
            self._count(stage, requests=1, tokens_spent=spent.tokens, cost_spent=spent.cost)
            return
        kind = "followers" if role is Role.FOLLOWER else "replays"
        self._count(stage, requests=1, tokens_saved=usage.tokens, cost_saved=usage.cost, **{kind: 1})
        if role is Role.FOLLOWER and flight_id is not None and generation is not None:
            self._count_join((flight_id, generation))

    def _count_call(self, *, stage: str, **_: object) -> None:
        self._count(stage, calls=1)

    def _count_takeover(self, *, stage: str, **_: object) -> None:
        self._count(stage, takeovers=1)

    def _count_settled(self, *, stage: str, status: Status, usage: Usage, **_: object) -> None:
        failures = int(status.is_failure)
        self._count(stage, failures=failures, tokens_spent=usage.tokens, cost_spent=usage.cost)

    def _count_fenced(self, *, stage: str, usage: Usage, **_: object) -> None:
        self._count(stage, tokens_wasted=usage.tokens, cost_wasted=usage.cost)

    def _count(self, stage: str, **amounts: int | Decimal) -> None:
        hour = int(self._now() // _HOUR)
        with self._lock:
            tally = self._tallies.get((stage, hour))
            if tally is None:
                if len(self._tallies) >= MAX_TALLIES:
                    self._is_full = True
                    return
                tally = self._tallies[stage, hour] = StageTally(stage, datetime.fromtimestamp(hour * _HOUR, UTC))
            for name, amount in amounts.items():
                if amount:
                    setattr(tally, name, getattr(tally, name) + amount)
            is_first, self._is_scheduled = not self._is_scheduled, True
        if is_first:
            self._flush_later(self.flush)

    def _count_join(self, run: FlightRun) -> None:
        with self._lock:
            if run not in self._joins and len(self._joins) >= MAX_JOINS:
                self._is_full = True
                return
            self._joins[run] = self._joins.get(run, 0) + 1


_LEDGER = Ledger()
connect = _LEDGER.connect
disconnect = _LEDGER.disconnect
paused = _LEDGER.paused
flush = _LEDGER.flush
reset = _LEDGER.reset

os.register_at_fork(after_in_child=reset)
