"""Flights of one process, for local mode and for tests: the moves of queries.sql on a dict, on the monotonic clock.

Bounded in flights and in bytes of results: the flights that settled first go first, running and pending ones never.
One class of many short moves, in the order of queries.sql, so that the two can be read beside each other.
"""

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from singleflight_app.domain.flight import BY_HAND, OWNER_LOST, Failure, Settled
from singleflight_app.domain.keys import FlightKey
from singleflight_app.domain.policy import StagePolicy
from singleflight_app.domain.records import (
    Beat,
    ExpiredFlight,
    FlightSnapshot,
    Forgotten,
    Full,
    LeaseState,
    StoredArguments,
)
from singleflight_app.domain.states import LIVE, Claim, Status
from singleflight_app.storage.memory_row import MemoryRow

_AGAIN = {Claim.OWNER_TAKEOVER, Claim.OWNER_RETRY}


class MemoryFlights:
    """Implements FlightStore and FlightQueue without a server; nothing is shared beyond this process."""

    def __init__(
        self, *, entries: int, size: int = 64_000_000, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._max_entries, self._max_size, self._monotonic = entries, size, monotonic
        self._lock = threading.RLock()
        self._rows: dict[bytes, MemoryRow] = {}
        self._by_id: dict[int, MemoryRow] = {}
        self._settled: dict[int, None] = {}  # ids, in the order of their ends
        self._size = 0

    def claim(
        self, key: FlightKey, *, label: str, owner: str, policy: StagePolicy, trace_parent: str = ""
    ) -> tuple[bool, FlightSnapshot] | Full | None:
        """Insert a running row, or return the one there is."""
        with self._lock:
            held, now = self._rows.get(key.digest), self._monotonic()
            if held is not None:
                return False, held.snapshot(now)
            if self._is_full(key.stage, policy):
                return Full.of("max_concurrency", key.stage, policy)
            lease_until = now + policy.lease
            row = MemoryRow(key, now, owner=owner, lease_until=lease_until, trace_parent=trace_parent)
            return True, self._put(row)

    def submit(self, key: FlightKey, *, label: str, arguments: Mapping[str, str]) -> tuple[bool, FlightSnapshot] | None:
        """Insert a pending row, or return the one there is."""
        with self._lock:
            held, now = self._rows.get(key.digest), self._monotonic()
            if held is not None:
                return False, held.snapshot(now)
            row = MemoryRow(key, now, Status.PENDING, sent_at=now, arguments=dict(arguments), attempts=0)
            return True, self._put(row)

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
        trace_parent: str = "",
    ) -> FlightSnapshot | Full | None:
        """Grant a new generation over `row`; None: the row moved."""
        with self._lock:
            held, now = self._unmoved(row), self._monotonic()
            if held is None or not held.is_open(now, policy=policy, starts_pending=starts_pending, is_fresh=is_fresh):
                return None
            if self._is_full(stage, policy):
                return Full.of("max_concurrency", stage, policy)
            is_again = claim in _AGAIN
            new = self._over(held, now, created_at=held.created_at if is_again or _is_pending(held) else now)
            new.owner, new.lease_until, new.arguments = owner, now + policy.lease, held.arguments
            new.attempts, new.trace_parent = held.attempts + 1 if is_again else 1, trace_parent
            return self._put(new)

    def queue(
        self,
        row: FlightSnapshot,
        *,
        kind: str,
        policy: StagePolicy,
        arguments: Mapping[str, str] | None = None,
        grace: float = 0.0,
        is_fresh: bool = False,
        actor: str = "",
    ) -> FlightSnapshot | None:
        """Make a settled or expired flight pending again; None: it moved."""
        with self._lock:
            held, now = self._unmoved(row), self._monotonic()
            if held is None or not held.is_open(now, policy=policy, grace=grace, is_fresh=is_fresh):
                return None
            new = self._over(held, now, created_at=now)
            new.status, new.sent_at, new.attempts = Status.PENDING, now, held.attempts
            new.arguments = held.arguments if arguments is None else dict(arguments)
            return self._put(new)

    def find(self, digest: bytes) -> FlightSnapshot | None:
        """Return the key's row, or None when there is none."""
        with self._lock:
            row = self._rows.get(digest)
            return None if row is None else row.snapshot(self._monotonic())

    def read(self, flight_id: int) -> FlightSnapshot | None:
        """Return the row, or None when it is gone."""
        with self._lock:
            row = self._by_id.get(flight_id)
            return None if row is None else row.snapshot(self._monotonic())

    def poll(self, flight_ids: Collection[int]) -> list[LeaseState]:
        """Return where these flights are; one that is gone is missing."""
        with self._lock:
            now = self._monotonic()
            return [self._by_id[flight_id].state(now) for flight_id in flight_ids if flight_id in self._by_id]

    def renew(self, beats: Sequence[Beat], *, owner: str) -> set[int]:
        """Renew leases; the ids that come back were renewed. Progress is told to nobody."""
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
            row.status, row.usage = settled.status, settled.usage
            row.result, row.failure = settled.result, settled.failure
            row.attempts += settled.retries
            self._end(row, ttl)
            return row.forgotten

    def record_fence(self, flight_id: int, generation: int, *, owner: str) -> None:
        """Keep no audit: the process's signals tell of it."""

    def lose(self, flight_id: int, generation: int, *, ttl: float, message: str, grace: float = 0.0) -> bool:
        """Settle an expired flight as lost; False: it moved."""
        with self._lock:
            row = self._by_id.get(flight_id)
            if row is None or row.generation != generation or not row.is_leaseless(self._monotonic() - grace):
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
            if not row.has_outcome(self._monotonic()):
                return None
            already, row.forgotten = row.forgotten, True
            return row.moved(already=already)

    def expire_lease(self, flight_id: int, generation: int, *, actor: str) -> Forgotten | None:
        """End the lease of a running generation by hand; None: it is not running."""
        with self._lock:
            row = self._at(flight_id, generation)
            if row is None or row.status is not Status.RUNNING:
                return None
            already = not row.owner
            if not already:
                row.lease_until, row.owner = self._monotonic(), ""
            return row.moved(already=already)

    def cancel(self, flight_id: int, generation: int, *, actor: str, ttl: float) -> Forgotten | None:
        """End a pending or running generation by hand; None: it has ended otherwise, or moved."""
        with self._lock:
            row = self._at(flight_id, generation)
            if row is None or (row.status not in LIVE and not row.is_cancelled_by_hand):
                return None
            already = row.is_cancelled_by_hand
            if not already:
                row.status, row.failure = Status.CANCELLED, BY_HAND
                self._end(row, ttl)
            return row.moved(already=already)

    def allow_retry(self, flight_id: int, generation: int, *, actor: str) -> Forgotten | None:
        """Let whoever asks next call again after a failure; None: it is past, forgotten or replaced."""
        with self._lock:
            row, now = self._at(flight_id, generation), self._monotonic()
            if row is None or not row.status.is_failure or row.forgotten or not row.has_outcome(now):
                return None
            already = row.is_due(now)
            if not already and row.failure is not None:
                row.failure, row.retry_from = replace(row.failure, retryable=True), now
            return row.moved(already=already)

    def send_again(self, flight_id: int, generation: int, *, actor: str) -> bool:
        """Mark a pending generation as sent again; False: it needs no worker any more."""
        with self._lock:
            row = self._at(flight_id, generation)
            if row is None or not _is_pending(row):
                return False
            row.sent_at = self._monotonic()
            return True

    def expired(self, limit: int) -> list[ExpiredFlight]:
        """Return running flights whose lease is over, oldest first."""
        with self._lock:
            now = self._monotonic()
            over = [row.expired(now) for row in self._rows.values() if row.is_leaseless(now)]
        return sorted(over, key=lambda flight: -flight.expired_for)[:limit]

    def unsent(self, *, spacing: float, limit: int) -> list[int]:
        """Mark pending flights as sent again and return their ids."""
        with self._lock:
            now = self._monotonic()
            due = [row for row in self._rows.values() if _is_pending(row) and row.sent_at <= now - spacing]
            due = sorted(due, key=lambda row: row.flight_id)[:limit]
            for row in due:
                row.sent_at = now
        return [row.flight_id for row in due]

    def arguments(self, flight_id: int) -> StoredArguments | None:
        """Return what a worker needs to run a flight; None: it needs none any more."""
        with self._lock:
            row = self._by_id.get(flight_id)
            if row is None or row.arguments is None:
                return None
            return StoredArguments(row.key.stage, row.key.scope, row.key.digest, dict(row.arguments))

    def may_take_over(self, lease: float) -> bool:
        """Return True: a process can't lose touch with itself."""
        return True

    def close(self) -> None:
        """Have nothing to let go of."""

    def _put(self, row: MemoryRow) -> FlightSnapshot:
        if row.key.digest not in self._rows:
            self._make_room()
        self._rows[row.key.digest] = self._by_id[row.flight_id] = row
        return row.snapshot(self._monotonic())

    def _over(self, held: MemoryRow, now: float, *, created_at: float) -> MemoryRow:
        """Return the next generation of a flight, which leaves behind what the last one came to."""
        if held.flight_id in self._settled:
            del self._settled[held.flight_id]
            self._size -= held.size
        takeovers = {Status.RUNNING: held.takeovers + 1, Status.PENDING: held.takeovers}.get(held.status, 0)
        return MemoryRow(held.key, created_at, flight_id=held.flight_id, takeovers=takeovers)

    def _end(self, row: MemoryRow, ttl: float) -> None:
        row.end(self._monotonic(), ttl)
        self._settled[row.flight_id] = None
        self._size += row.size
        # The newest stays, however large it is: its followers are on their way to it.
        while self._size > self._max_size and len(self._settled) > 1:
            self._drop_oldest()

    def _make_room(self) -> None:
        while len(self._rows) >= self._max_entries and self._settled:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        row = self._by_id.pop(next(iter(self._settled)))
        del self._settled[row.flight_id], self._rows[row.key.digest]
        self._size -= row.size

    def _unmoved(self, row: FlightSnapshot) -> MemoryRow | None:
        held = self._by_id.get(row.flight_id)
        if held is None or (held.generation, held.status) != (row.generation, row.status):
            return None
        return held

    def _at(self, flight_id: int, generation: int) -> MemoryRow | None:
        row = self._by_id.get(flight_id)
        return None if row is None or row.generation != generation else row

    def _held(self, flight_id: int | None, generation: int | None, owner: str) -> MemoryRow | None:
        row = self._by_id.get(flight_id or 0)
        if row is None or (row.generation, row.owner, row.status) != (generation, owner, Status.RUNNING):
            return None
        return row

    def _is_full(self, stage: str, policy: StagePolicy) -> bool:
        most, now = policy.max_concurrency, self._monotonic()
        if most is None:
            return False
        running = (row for row in self._rows.values() if row.key.stage == stage and row.status is Status.RUNNING)
        return sum(1 for row in running if not row.is_leaseless(now)) >= most


def _is_pending(row: MemoryRow) -> bool:
    return row.status is Status.PENDING
