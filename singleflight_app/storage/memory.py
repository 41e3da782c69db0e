"""Flights of one process, for local mode: the moves of queries.sql on a dict, on the monotonic clock.

Bounded: the oldest settled flights go first, running ones never.
"""

import itertools
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from singleflight_app.domain.exceptions import seconds
from singleflight_app.domain.flight import NO_USAGE, OWNER_LOST, Failure, Settled, StoredResult, Usage
from singleflight_app.domain.keys import FlightKey
from singleflight_app.domain.policy import StagePolicy
from singleflight_app.domain.records import Beat, FlightSnapshot, Forgotten, Full, LeaseState
from singleflight_app.domain.states import Claim, Status

_ids = itertools.count(1)
_generations = itertools.count(1)
_AGAIN = {Claim.OWNER_TAKEOVER, Claim.OWNER_RETRY}


@dataclass
class _Row:
    key: FlightKey
    owner: str
    lease_until: float | None
    flight_id: int = field(default_factory=lambda: next(_ids))
    generation: int = field(default_factory=lambda: next(_generations))
    status: Status = Status.RUNNING
    attempts: int = 1
    takeovers: int = 0
    expires: float | None = None
    retry_from: float | None = None
    forgotten: bool = False
    result: StoredResult | None = None
    failure: Failure | None = None
    usage: Usage = NO_USAGE


class MemoryFlights:
    """Implements FlightStore without a server; nothing is shared beyond this process."""

    def __init__(self, *, entries: int, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._max_entries, self._monotonic = entries, monotonic
        self._lock = threading.RLock()
        self._rows: dict[bytes, _Row] = {}
        self._by_id: dict[int, _Row] = {}

    def claim(
        self, key: FlightKey, *, label: str, owner: str, policy: StagePolicy
    ) -> tuple[bool, FlightSnapshot] | Full | None:
        """Insert a running row, or return the one there is."""
        with self._lock:
            row = self._rows.get(key.digest)
            if row is not None:
                return False, self._snapshot(row)
            if self._is_full(key.stage, policy):
                return Full.of("max_concurrency", key.stage, policy)
            self._make_room()
            row = self._rows[key.digest] = _Row(key, owner, self._monotonic() + policy.lease)
            self._by_id[row.flight_id] = row
            return True, self._snapshot(row)

    def grant(
        self,
        row: FlightSnapshot,
        claim: Claim,
        *,
        owner: str,
        stage: str,
        policy: StagePolicy,
        starts_pending: bool = False,
        is_fresh: bool = False,
    ) -> FlightSnapshot | Full | None:
        """Grant a new generation over `row`; None: the row moved."""
        with self._lock:
            held = self._by_id.get(row.flight_id)
            if (
                held is None
                or (held.generation, held.status) != (row.generation, row.status)
                or not self._is_open(held, is_fresh=is_fresh)
            ):
                return None
            if self._is_full(stage, policy):
                return Full.of("max_concurrency", stage, policy)
            was_running = held.status is Status.RUNNING
            new = _Row(held.key, owner, self._monotonic() + seconds(policy.lease_timeout), held.flight_id)
            new.attempts = held.attempts + 1 if claim in _AGAIN else 1
            new.takeovers = held.takeovers + 1 if was_running else 0
            self._rows[held.key.digest] = self._by_id[held.flight_id] = new
            return self._snapshot(new)

    def find(self, digest: bytes) -> FlightSnapshot | None:
        """Return the key's row, or None when there is none."""
        with self._lock:
            row = self._rows.get(digest)
            return None if row is None else self._snapshot(row)

    def read(self, flight_id: int) -> FlightSnapshot | None:
        """Return the row, or None when it is gone."""
        with self._lock:
            row = self._by_id.get(flight_id)
            return None if row is None else self._snapshot(row)

    def poll(self, flight_ids: Collection[int]) -> list[LeaseState]:
        """Return where these flights are; one that is gone is missing."""
        with self._lock:
            rows = [self._snapshot(self._by_id[flight_id]) for flight_id in flight_ids if flight_id in self._by_id]
        return [
            LeaseState(row.flight_id, row.generation, row.status, row.owner, row.lease_remaining, None, row.forgotten)
            for row in rows
        ]

    def renew(self, beats: Sequence[Beat], *, owner: str) -> set[int]:
        """Renew leases; the ids that come back were renewed."""
        renewed = set()
        with self._lock:
            for beat in beats:
                row = self._held(beat.flight_id, beat.generation, owner)
                if row is not None:
                    row.lease_until = self._monotonic() + beat.lease
                    renewed.add(beat.flight_id)
        return renewed

    def settle(self, settled: Settled, *, owner: str, ttl: float) -> bool | None:
        """Write the end of a generation; None: refused."""
        with self._lock:
            row = self._held(settled.flight_id, settled.generation, owner)
            if row is None:
                return None
            row.status, row.result, row.failure, row.usage = (
                settled.status,
                settled.result,
                settled.failure,
                settled.usage,
            )
            row.attempts += settled.retries
            self._end(row, ttl)
            return row.forgotten

    def record_fence(self, flight_id: int, generation: int, *, owner: str) -> None:
        """Keep no audit: the process's signals tell of it."""

    def lose(self, flight_id: int, generation: int, *, ttl: float, message: str, grace: float = 0.0) -> bool:
        """Settle an expired flight as lost; False: it moved."""
        with self._lock:
            row = self._by_id.get(flight_id)
            if row is None or row.generation != generation or row.status is not Status.RUNNING:
                return False
            if self._left(row.lease_until) > -grace:
                return False
            row.status, row.failure = Status.FAILED, Failure(OWNER_LOST, message, retryable=False)
            self._end(row, ttl)
            return True

    def forget(
        self,
        *,
        digest: bytes | None = None,
        flight_id: int | None = None,
        generation: int | None = None,
        actor: str = "",
    ) -> Forgotten | None:
        """Mark an outcome as forgotten; None: there is none to drop."""
        with self._lock:
            row = self._rows.get(digest) if digest is not None else self._by_id.get(flight_id or 0)
            if row is None or (generation is not None and row.generation != generation):
                return None
            if row.status is Status.CANCELLED or (row.status.is_settled and self._left(row.expires) <= 0):
                return None
            already, row.forgotten = row.forgotten, True
            return Forgotten(row.flight_id, row.generation, row.key.digest, row.key.stage, already)

    def may_take_over(self, lease: float) -> bool:
        """Return True: a process can't lose touch with itself."""
        return True

    def close(self) -> None:
        """Have nothing to let go of."""

    def _end(self, row: _Row, ttl: float) -> None:
        now = self._monotonic()
        row.lease_until, row.expires = None, now + ttl
        failure = row.failure
        row.retry_from = now + failure.retry_after if failure is not None and failure.retryable else None

    def _held(self, flight_id: int | None, generation: int | None, owner: str) -> _Row | None:
        row = self._by_id.get(flight_id or 0)
        if row is None or (row.generation, row.owner, row.status) != (generation, owner, Status.RUNNING):
            return None
        return row

    def _is_full(self, stage: str, policy: StagePolicy) -> bool:
        most = policy.max_concurrency
        if most is None:
            return False
        running = (row for row in self._rows.values() if row.key.stage == stage and row.status is Status.RUNNING)
        return sum(1 for row in running if self._left(row.lease_until) > 0) >= most

    def _is_open(self, row: _Row, *, is_fresh: bool) -> bool:
        if row.status is Status.RUNNING:
            return self._left(row.lease_until) <= 0
        retryable = row.failure is not None and row.failure.retryable and self._left(row.retry_from) <= 0
        is_past = row.forgotten or is_fresh or self._left(row.expires) <= 0
        return row.status is Status.CANCELLED or is_past or retryable

    def _left(self, until: float | None) -> float:
        return 0.0 if until is None else until - self._monotonic()

    def _make_room(self) -> None:
        if len(self._rows) < self._max_entries:
            return
        for digest, row in list(self._rows.items()):
            if row.status.is_settled:
                del self._rows[digest], self._by_id[row.flight_id]
                return

    def _snapshot(self, row: _Row) -> FlightSnapshot:
        failure = row.failure or Failure("", "", retryable=False)
        result = row.result
        return FlightSnapshot(
            flight_id=row.flight_id,
            generation=row.generation,
            status=row.status.value,
            owner=row.owner,
            attempts=row.attempts,
            takeovers=row.takeovers,
            lease_remaining=None if row.lease_until is None else self._left(row.lease_until),
            outcome_remaining=None if row.expires is None else self._left(row.expires),
            retry_remaining=None if row.retry_from is None else self._left(row.retry_from),
            pending_age=None,
            server_age=float("inf"),
            forgotten=row.forgotten,
            payload=None if result is None else result.payload,
            encoding="" if result is None else result.encoding,
            checksum=None if result is None else result.checksum,
            size=failure.size if result is None else result.size,
            error_type=failure.error_type,
            error_message=failure.message,
            retryable=failure.retryable,
            model=row.usage.model,
            input_tokens=row.usage.input_tokens,
            output_tokens=row.usage.output_tokens,
            cost=row.usage.cost,
            has_arguments=False,
        )
