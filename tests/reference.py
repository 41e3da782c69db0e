"""A flight store to compare others with: the table of docs/protocol.md on a dict, on a clock that is moved by hand.

Written to be seen right: a move is the row that it demands and the row that it leaves, for one caller at a time.
Long, since each move is here once, and nothing of it is shared with the stores that it judges.
"""

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from singleflight_app.domain.exceptions import seconds
from singleflight_app.domain.flight import BY_HAND, NO_USAGE, OWNER_LOST, Failure, Settled
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

_KINDS = {Claim.OWNER_TAKEOVER: "taken_over", Claim.OWNER_RETRY: "retried"}
_NEVER = float("inf")


class Event(NamedTuple):
    """What the audit says of one move."""

    flight_id: int
    generation: int
    kind: str


@dataclass(frozen=True, kw_only=True)
class Row:
    """A flight; times are those of the clock, and `_NEVER` where the table has null."""

    key: FlightKey
    flight_id: int
    generation: int
    status: Status
    owner: str = ""
    attempts: int = 0
    takeovers: int = 0
    lease_until: float = _NEVER
    expires_at: float = _NEVER
    retry_at: float = _NEVER
    pending_since: float = _NEVER
    sent_at: float = _NEVER
    forgotten: bool = False
    arguments: Mapping[str, str] | None = None
    end: Settled | None = None
    trace_parent: str = ""


class ReferenceFlights:
    """Answers as every FlightStore and FlightQueue should; `events` is the audit, oldest first."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events: list[Event] = []
        self._rows: dict[int, Row] = {}
        self._ids, self._generations = itertools.count(1), itertools.count(1)

    def find(self, digest: bytes) -> FlightSnapshot | None:
        row = self._of(digest)
        return None if row is None else self._snapshot(row)

    def read(self, flight_id: int) -> FlightSnapshot | None:
        row = self._rows.get(flight_id)
        return None if row is None else self._snapshot(row)

    def poll(self, flight_ids: Collection[int]) -> list[LeaseState]:
        rows = [self._snapshot(self._rows[flight_id]) for flight_id in set(flight_ids) if flight_id in self._rows]
        return [
            LeaseState(r.flight_id, r.generation, r.status, r.owner, r.lease_remaining, r.pending_age, r.forgotten)
            for r in rows
        ]

    def claim(
        self, key: FlightKey, *, label: str, owner: str, policy: StagePolicy, trace_parent: str = ""
    ) -> tuple[bool, FlightSnapshot] | Full | None:
        """Nothing -> running, where there is room."""
        row = self._of(key.digest)
        if row is not None:
            return False, self._snapshot(row)
        if self._is_full(key.stage, policy):
            return Full.of("max_concurrency", key.stage, policy)
        return True, self._put(
            "granted",
            Row(
                key=key,
                flight_id=next(self._ids),
                generation=next(self._generations),
                status=Status.RUNNING,
                owner=owner,
                attempts=1,
                lease_until=self.now + policy.lease,
                trace_parent=trace_parent,
            ),
        )

    def submit(self, key: FlightKey, *, label: str, arguments: Mapping[str, str]) -> tuple[bool, FlightSnapshot] | None:
        """Nothing -> pending."""
        row = self._of(key.digest)
        if row is not None:
            return False, self._snapshot(row)
        return True, self._put(
            "submitted",
            Row(
                key=key,
                flight_id=next(self._ids),
                generation=next(self._generations),
                status=Status.PENDING,
                pending_since=self.now,
                sent_at=self.now,
                arguments=arguments,
            ),
        )

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
        """Whatever is open -> running, where there is room."""
        was = self._open(row, policy, starts_pending=starts_pending, is_fresh=is_fresh)
        if was is None:
            return None
        if self._is_full(stage, policy):
            return Full.of("max_concurrency", stage, policy)
        new = replace(
            self._emptied(was),
            status=Status.RUNNING,
            owner=owner,
            attempts=was.attempts + 1 if claim in _KINDS else 1,
            lease_until=self.now + policy.lease,
            trace_parent=trace_parent,
        )
        return self._put(_KINDS.get(claim, "granted"), new)

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
        """Whatever is open -> pending."""
        was = self._open(row, policy, grace=grace, is_fresh=is_fresh)
        if was is None:
            return None
        new = replace(
            self._emptied(was),
            status=Status.PENDING,
            pending_since=self.now,
            sent_at=self.now,
            arguments=was.arguments if arguments is None else arguments,
        )
        return self._put(kind, new)

    def renew(self, beats: Sequence[Beat], *, owner: str) -> set[int]:
        """Running, of this owner and generation -> the same with a new lease."""
        held = [(row, beat) for beat in beats if (row := self._held(beat.flight_id, beat.generation, owner))]
        for row, beat in held:
            self._rows[row.flight_id] = replace(row, lease_until=self.now + beat.lease)
        return {row.flight_id for row, _ in held}

    def settle(self, settled: Settled, *, owner: str, ttl: float) -> bool | None:
        """Running, of this owner and generation -> settled, whether or not its lease is over."""
        row = self._held(settled.flight_id, settled.generation, owner)
        if row is None:
            return None
        self._put("settled", self._ended(row, settled, ttl))
        return row.forgotten

    def record_fence(self, flight_id: int, generation: int, *, owner: str) -> None:
        event = Event(flight_id, generation, "fenced")
        if flight_id in self._rows and event not in self.events:
            self.events.append(event)

    def lose(self, flight_id: int, generation: int, *, ttl: float, message: str, grace: float = 0.0) -> bool:
        """Running, with its lease over for the grace -> failed."""
        row = self._rows.get(flight_id)
        if row is None or (row.generation, row.status) != (generation, Status.RUNNING):
            return False
        if self.now < row.lease_until + grace:
            return False
        failure = Failure(OWNER_LOST, message, retryable=False)
        self._put("lost", self._ended(row, Settled(flight_id, generation, Status.FAILED, failure=failure), ttl))
        return True

    def forget(
        self,
        *,
        digest: bytes | None = None,
        flight_id: int | None = None,
        generation: int | None = None,
        actor: str = "",
    ) -> Forgotten | None:
        """Running, or settled with an outcome in its TTL -> the same, forgotten."""
        row = self._of(digest) if digest is not None else self._rows.get(flight_id or 0)
        if row is None or generation not in {None, row.generation}:
            return None
        if row.status in {Status.PENDING, Status.CANCELLED} or self.now >= row.expires_at:
            return None
        if not row.forgotten:
            self._put("forgotten", replace(row, forgotten=True))
        return Forgotten(row.flight_id, row.generation, row.key.digest, row.key.stage, row.forgotten)

    def expire_lease(self, flight_id: int, generation: int, *, actor: str) -> Forgotten | None:
        """Running, of this generation -> running, with its lease over and no owner; one that is so already stays."""
        row = self._rows.get(flight_id)
        if row is None or row.status is not Status.RUNNING or row.generation != generation:
            return None
        already = not row.owner
        if not already:
            self._put("expired", replace(row, lease_until=self.now, owner=""))
        return Forgotten(row.flight_id, row.generation, row.key.digest, row.key.stage, already)

    def cancel(self, flight_id: int, generation: int, *, actor: str, ttl: float) -> Forgotten | None:
        """Pending or running, of this generation -> cancelled; one that is so already, and not released, stays."""
        row = self._rows.get(flight_id)
        if row is None or row.generation != generation:
            return None
        failure = row.end.failure if row.end else None
        already = row.status is Status.CANCELLED and not (failure is not None and failure.retryable)
        if row.status not in LIVE and not already:
            return None
        if not already:
            self._put("cancelled", self._ended(row, Settled(0, 0, Status.CANCELLED, failure=BY_HAND), ttl))
        return Forgotten(row.flight_id, row.generation, row.key.digest, row.key.stage, already)

    def allow_retry(self, flight_id: int, generation: int, *, actor: str) -> Forgotten | None:
        """Failed or timed out, of this generation, in its TTL, not forgotten -> the same, to be retried now."""
        row = self._rows.get(flight_id)
        if row is None or row.generation != generation or not row.status.is_failure or row.forgotten:
            return None
        if self.now >= row.expires_at:
            return None
        already = row.retry_at <= self.now
        if not already and row.end is not None and row.end.failure is not None:
            end = replace(row.end, failure=replace(row.end.failure, retryable=True))
            self._put("retry_allowed", replace(row, end=end, retry_at=self.now))
        return Forgotten(row.flight_id, row.generation, row.key.digest, row.key.stage, already)

    def send_again(self, flight_id: int, generation: int, *, actor: str) -> bool:
        """Pending, of this generation -> pending, sent now."""
        row = self._rows.get(flight_id)
        if row is None or (row.generation, row.status) != (generation, Status.PENDING):
            return False
        self._put("sent_again", replace(row, sent_at=self.now))
        return True

    def expired(self, limit: int) -> list[ExpiredFlight]:
        over = [row for row in self._rows.values() if row.status is Status.RUNNING and row.lease_until <= self.now]
        return [
            ExpiredFlight(
                row.flight_id,
                row.key.stage,
                row.generation,
                row.takeovers,
                has_arguments=row.arguments is not None,
                expired_for=self.now - row.lease_until,
                server_age=_NEVER,
            )
            for row in sorted(over, key=lambda row: row.lease_until)[:limit]
        ]

    def unsent(self, *, spacing: float, limit: int) -> list[int]:
        """Pending, not sent for so long -> pending, sent now."""
        due = [
            flight_id
            for flight_id, row in sorted(self._rows.items())
            if row.status is Status.PENDING and row.sent_at + spacing <= self.now
        ][:limit]
        for flight_id in due:
            self._rows[flight_id] = replace(self._rows[flight_id], sent_at=self.now)
        return due

    def arguments(self, flight_id: int) -> StoredArguments | None:
        row = self._rows.get(flight_id)
        if row is None or row.arguments is None:
            return None
        return StoredArguments(row.key.stage, row.key.scope, row.key.digest, dict(row.arguments))

    def purge(self, flight_id: int) -> None:
        """Any -> gone."""
        del self._rows[flight_id]

    def may_take_over(self, lease: float) -> bool:
        return True

    def close(self) -> None:
        pass

    def _of(self, digest: bytes) -> Row | None:
        return next((row for row in self._rows.values() if row.key.digest == digest), None)

    def _held(self, flight_id: int | None, generation: int | None, owner: str) -> Row | None:
        row = self._rows.get(flight_id or 0)
        is_held = row is not None and (row.generation, row.owner, row.status) == (generation, owner, Status.RUNNING)
        return row if is_held else None

    def _open(
        self,
        seen: FlightSnapshot,
        policy: StagePolicy,
        *,
        grace: float = 0.0,
        starts_pending: bool = False,
        is_fresh: bool = False,
    ) -> Row | None:
        """Return the row that was seen, if it is still there and open to a new generation."""
        row = self._rows.get(seen.flight_id)
        if row is None or (row.generation, row.status) != (seen.generation, seen.status):
            return None
        if row.status is Status.RUNNING:
            is_open = row.lease_until + grace <= self.now
        elif row.status is Status.PENDING:
            is_open = starts_pending or row.pending_since + seconds(policy.pending_timeout) <= self.now
        else:
            is_past = min(row.expires_at, row.retry_at) <= self.now
            is_open = row.status is Status.CANCELLED or row.forgotten or is_fresh or is_past
        return row if is_open else None

    def _is_full(self, stage: str, policy: StagePolicy) -> bool:
        running = [
            row
            for row in self._rows.values()
            if (row.key.stage, row.status) == (stage, Status.RUNNING) and row.lease_until > self.now
        ]
        return policy.max_concurrency is not None and len(running) >= policy.max_concurrency

    def _emptied(self, was: Row) -> Row:
        """Return the row under a new generation: of the old one it has its key, its count and what a worker needs."""
        takeovers = was.takeovers + (was.status is Status.RUNNING) if was.status in LIVE else 0
        return Row(
            key=was.key,
            flight_id=was.flight_id,
            generation=next(self._generations),
            status=was.status,
            attempts=was.attempts,
            takeovers=takeovers,
            arguments=was.arguments,
        )

    def _ended(self, row: Row, end: Settled, ttl: float) -> Row:
        failure = end.failure
        return replace(
            row,
            status=end.status,
            attempts=row.attempts + end.retries,
            lease_until=_NEVER,
            expires_at=self.now + ttl,
            retry_at=self.now + failure.retry_after if failure is not None and failure.retryable else _NEVER,
            arguments=None,
            end=end,
        )

    def _put(self, kind: str, row: Row) -> FlightSnapshot:
        self._rows[row.flight_id] = row
        self.events.append(Event(row.flight_id, row.generation, kind))
        return self._snapshot(row)

    def _snapshot(self, row: Row) -> FlightSnapshot:
        result = row.end.result if row.end else None
        failure = (row.end.failure if row.end else None) or Failure("", "", retryable=False)
        usage = row.end.usage if row.end else NO_USAGE
        return FlightSnapshot(
            flight_id=row.flight_id,
            generation=row.generation,
            status=row.status.value,
            owner=row.owner,
            attempts=row.attempts,
            takeovers=row.takeovers,
            lease_remaining=self._left(row.lease_until),
            outcome_remaining=self._left(row.expires_at),
            retry_remaining=self._left(row.retry_at),
            pending_age=self.now - row.pending_since if row.status is Status.PENDING else None,
            server_age=_NEVER,
            forgotten=row.forgotten,
            payload=result.payload if result else None,
            encoding=result.encoding if result else "",
            checksum=result.checksum if result else None,
            size=result.size if result else failure.size or None,
            error_type=failure.error_type,
            error_message=failure.message,
            retryable=failure.retryable,
            model=usage.model,
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            cost=usage.cost,
            has_arguments=row.arguments is not None,
            trace_parent=row.trace_parent,
        )

    def _left(self, until: float) -> float | None:
        return None if until == _NEVER else until - self.now
