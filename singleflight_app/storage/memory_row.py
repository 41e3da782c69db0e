"""One flight in this process's memory: what a row of the table is to PostgreSQL. Times are monotonic."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field

from singleflight_app.domain.exceptions import seconds
from singleflight_app.domain.flight import NO_RESULT, NO_USAGE, Failure, StoredResult, Usage
from singleflight_app.domain.keys import FlightKey
from singleflight_app.domain.policy import StagePolicy
from singleflight_app.domain.records import ExpiredFlight, FlightSnapshot, Forgotten, LeaseState
from singleflight_app.domain.states import Status

_ids = itertools.count(1)
_generations = itertools.count(1)
_NO_FAILURE = Failure("", "", retryable=False)


@dataclass
class MemoryRow:
    """One generation of a flight; a regrant is a new one under the old id."""

    key: FlightKey
    created_at: float
    status: Status = Status.RUNNING
    owner: str = ""
    lease_until: float | None = None
    sent_at: float = 0.0
    arguments: Mapping[str, str] | None = None
    flight_id: int = field(default_factory=lambda: next(_ids))
    generation: int = field(default_factory=lambda: next(_generations))
    attempts: int = 1
    takeovers: int = 0
    expires: float | None = None
    retry_from: float | None = None
    forgotten: bool = False
    result: StoredResult | None = None
    failure: Failure | None = None
    usage: Usage = NO_USAGE

    @property
    def size(self) -> int:
        """Bytes of the stored result."""
        return 0 if self.result is None else len(self.result.payload)

    def is_open(
        self, now: float, *, policy: StagePolicy, starts_pending: bool = False, is_fresh: bool = False, grace: float = 0
    ) -> bool:
        """Tell whether a grant may go over it: the test of `open_flight` in queries.sql."""
        if self.status is Status.RUNNING:
            return self.is_leaseless(now - grace)
        if self.status is Status.PENDING:
            return starts_pending or self.created_at <= now - seconds(policy.pending_timeout)
        is_past = _is_past(self.expires, now)
        return self.status is Status.CANCELLED or self.forgotten or is_fresh or is_past or self.is_due(now)

    def is_due(self, now: float) -> bool:
        """It failed, and may be called again."""
        return self.failure is not None and self.failure.retryable and _is_past(self.retry_from, now)

    @property
    def is_cancelled_by_hand(self) -> bool:
        """It was cancelled, and not released by its owner."""
        return self.status is Status.CANCELLED and not (self.failure is not None and self.failure.retryable)

    def is_leaseless(self, now: float) -> bool:
        """It runs, and its owner's lease is over."""
        return self.status is Status.RUNNING and _is_past(self.lease_until, now)

    def has_outcome(self, now: float) -> bool:
        """There is something to forget: a call that runs, or an end still in its TTL."""
        if self.status in {Status.PENDING, Status.CANCELLED}:
            return False
        return self.status is Status.RUNNING or not _is_past(self.expires, now)

    def moved(self, *, already: bool) -> Forgotten:
        """Return what a move by hand tells of it."""
        return Forgotten(self.flight_id, self.generation, self.key.digest, self.key.stage, already)

    def end(self, now: float, ttl: float) -> None:
        """Replay what it came to for `ttl` seconds; it needs no worker any more."""
        self.lease_until, self.arguments, self.expires = None, None, now + ttl
        failure = self.failure
        self.retry_from = now + failure.retry_after if failure is not None and failure.retryable else None

    def state(self, now: float) -> LeaseState:
        """Return what a poll reads."""
        row = self.snapshot(now)
        return LeaseState(*row[:4], row.lease_remaining, row.pending_age, row.forgotten)

    def expired(self, now: float) -> ExpiredFlight:
        """Return what the sweep reads of a flight whose lease is over."""
        expired_for = 0.0 if self.lease_until is None else now - self.lease_until
        has_arguments = self.arguments is not None
        facts = (self.flight_id, self.key.stage, self.generation, self.takeovers, has_arguments)
        return ExpiredFlight(*facts, expired_for, server_age=float("inf"))

    def snapshot(self, now: float) -> FlightSnapshot:
        """Return the row as the engine reads it."""
        failure, result = self.failure or _NO_FAILURE, self.result or NO_RESULT
        return FlightSnapshot(
            flight_id=self.flight_id,
            generation=self.generation,
            status=self.status.value,
            owner=self.owner,
            attempts=self.attempts,
            takeovers=self.takeovers,
            lease_remaining=_left(self.lease_until, now),
            outcome_remaining=_left(self.expires, now),
            retry_remaining=_left(self.retry_from, now),
            pending_age=now - self.created_at if self.status is Status.PENDING else None,
            server_age=float("inf"),
            forgotten=self.forgotten,
            payload=result.payload if self.result else None,
            encoding=result.encoding,
            checksum=result.checksum if self.result else None,
            size=result.size if self.result else failure.size or None,
            error_type=failure.error_type,
            error_message=failure.message,
            retryable=failure.retryable,
            model=self.usage.model,
            input_tokens=self.usage.input_tokens,
            output_tokens=self.usage.output_tokens,
            cost=self.usage.cost,
            has_arguments=self.arguments is not None,
        )


def _left(until: float | None, now: float) -> float | None:
    return None if until is None else until - now


def _is_past(until: float | None, now: float) -> bool:
    return until is None or until <= now
