"""Values that cross a port: rows as the database clock saw them, hints, tickets.

Durations are seconds. A `remaining` was computed by the database and is as of the moment the statement
ran; no wall-clock time of this process enters.
"""

from dataclasses import dataclass
from decimal import Decimal
from typing import NamedTuple

from singleflight_app.domain.flight import Failure, Settled, StoredResult, Usage
from singleflight_app.domain.policy import StagePolicy
from singleflight_app.domain.states import Status


class FlightSnapshot(NamedTuple):
    """A row as one statement saw it. The field order is that of `flight_columns` in queries.sql."""

    flight_id: int
    generation: int
    status: str
    owner: str
    attempts: int
    takeovers: int
    lease_remaining: float | None  #: seconds until the lease ends; below 0: over
    outcome_remaining: float | None  #: seconds of the TTL left; below 0: past
    retry_remaining: float | None  #: seconds until a retryable failure may be retried
    pending_age: float | None  #: seconds since `submit()` made it pending
    server_age: float  #: seconds since the database server started
    forgotten: bool
    payload: bytes | None
    encoding: str
    checksum: bytes | None
    size: int | None
    error_type: str
    error_message: str
    retryable: bool
    model: str
    input_tokens: int
    output_tokens: int
    cost: Decimal
    has_arguments: bool  #: `submit()` stored what a worker needs
    location: str = ""  #: where the result lies, if not in the row

    @property
    def is_settled(self) -> bool:
        """The generation has ended."""
        return Status(self.status).is_settled

    @property
    def usage(self) -> Usage:
        """What the call consumed."""
        return Usage(self.model, self.input_tokens, self.output_tokens, self.cost)

    def settled(self) -> Settled:
        """Return the end that the row tells of; the row must be settled."""
        status = Status(self.status)
        result = failure = None
        if status is Status.SUCCEEDED:
            payload, checksum = self.payload or b"", self.checksum or b""
            result = StoredResult(payload, self.encoding, checksum, self.size or 0, self.location)
        else:
            failure = Failure(self.error_type, self.error_message, self.retryable, self.size or 0)
        return Settled(self.flight_id, self.generation, status, result, failure, self.usage)


class LeaseState(NamedTuple):
    """What the batched poll and the beat read of a flight: no result in it."""

    flight_id: int
    generation: int
    status: str
    owner: str
    lease_remaining: float | None
    pending_age: float | None
    forgotten: bool


class Progress(NamedTuple):
    """How far a call says it is."""

    fraction: float  #: from 0 to 1
    text: str


@dataclass(frozen=True, slots=True)
class Full:
    """No room for one more running call: by which limit, in a sentence, and after how many seconds to ask again.

    `is_final`: waiting for room would be in vain. `is_brief`: there may be room in a moment, as others only look.
    """

    limit: str
    reason: str
    retry_after: float
    is_final: bool = False
    is_brief: bool = False

    @classmethod
    def of(cls, limit: str, stage: str, policy: StagePolicy) -> "Full":
        """Return the refusal by one of a stage's limits."""
        where = "in this process" if limit == "max_local_calls" else "in the cluster"
        reason = f"{getattr(policy, limit)} calls of stage {stage} run {where}, the most that may ({limit})"
        return cls(limit, reason, policy.heartbeat)


class Beat(NamedTuple):
    """One lease to renew, for `lease` seconds from now; `progress` replaces what the row has, None leaves it."""

    flight_id: int
    generation: int
    lease: float
    progress: Progress | None = None


class Forgotten(NamedTuple):
    """A flight that was moved by hand: which, and where who follows it looks. Of `forget`: the floor to raise."""

    flight_id: int
    generation: int
    digest: bytes
    stage: str
    already: bool  #: it was moved so before; a floor may not have been confirmed, a hint not have been sent


class ExpiredFlight(NamedTuple):
    """A running flight whose lease is over."""

    flight_id: int
    stage: str
    generation: int
    takeovers: int
    has_arguments: bool
    expired_for: float  #: seconds
    server_age: float  #: seconds


class StoredArguments(NamedTuple):
    """What `submit()` stored for the worker."""

    stage: str
    scope: str
    digest: bytes
    arguments: dict[str, str]  #: JSON text by parameter name


class Ticket(NamedTuple):
    """Permission to write one cache entry: what Redis said before the row was read (rule R15)."""

    epoch: bytes
    redis_ahead: float  #: a lower bound of Redis time minus this process's monotonic clock, seconds


class Looked(NamedTuple):
    """What the replay cache had: an outcome with the seconds left of it, or a ticket for writing one, or neither."""

    settled: Settled | None = None
    remaining: float = 0.0
    ticket: Ticket | None = None


class Kept(NamedTuple):
    """A success offered to the replay cache: `remaining` seconds of TTL, read or settled at monotonic `as_of`."""

    digest: bytes
    settled: Settled
    ticket: Ticket | None
    remaining: float
    as_of: float


class NotedBlob(NamedTuple):
    """A file of the storage that was noted."""

    blob_id: int
    location: str
    is_needed: bool  #: a flight has its result there, or may yet


class Hint(NamedTuple):
    """A stream message: look at the database."""

    digest: bytes
    generation: int
    #: Outcomes up to this generation are nobody's answer any more: they were forgotten or replaced.
    is_floor: bool = False


FLOORS = "*floors"  #: the stream of hints that are floors; no stage can have this name
