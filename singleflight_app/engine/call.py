"""One caller's request, and what the steps of the protocol hand to each other."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from singleflight_app.domain.flight import Settled
from singleflight_app.domain.keys import FlightKey
from singleflight_app.domain.policy import StagePolicy
from singleflight_app.domain.records import FlightSnapshot
from singleflight_app.domain.states import Claim, Layer, Role
from singleflight_app.engine.ports import Codec

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Call(Generic[R]):
    """A request with everything the engine needs; `wait_timeout` is the caller's budget in seconds."""

    key: FlightKey
    policy: StagePolicy
    function: Callable[[], R]
    codec: Codec[R]
    wait_timeout: float
    label: str = ""
    #: The pending flight that a worker came for; it runs that one or nothing.
    pending: int | None = None

    @property
    def may_replay_memory(self) -> bool:
        """The process's memory may answer; a worker looks at the row that it came for."""
        return self.policy.replay_memory and self.pending is None

    @property
    def may_replay_cache(self) -> bool:
        """The replay cache may answer; a worker looks at the row that it came for."""
        return self.policy.replay_cache and self.pending is None


@dataclass(frozen=True, slots=True)
class Granted:
    """The lease is this caller's. `sent_at` is monotonic, from before the grant was sent."""

    row: FlightSnapshot
    claim: Claim
    sent_at: float


@dataclass(frozen=True, slots=True)
class Found:
    """A stored outcome answers. `read_at` is monotonic, from before the row was read."""

    settled: Settled
    remaining: float
    read_at: float


@dataclass(frozen=True, slots=True)
class Follow:
    """Somebody runs the flight; without a row, a rival's claim is not visible yet."""

    row: FlightSnapshot | None


@dataclass(frozen=True, slots=True)
class Ended(Generic[R]):
    """How a leader's turn ended.

    `error` is the exception that the leader's own function raised: its own caller sees that one. `copy`
    holds the leader's decoded value, where it has been decoded already.
    """

    settled: Settled
    role: Role
    layer: Layer
    error: Exception | None = None
    copy: tuple[R] | None = None
    #: `forget` came while the flight ran: its end answers this caller, who asked before, and nobody after.
    is_forgotten: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a settle.

    Stored; or refused, and `row` says by whom (None: gone); or detached, when another process owns the flight;
    or none of these: not written yet.
    """

    is_stored: bool = False
    is_forgotten: bool = False
    is_refused: bool = False
    is_detached: bool = False
    row: FlightSnapshot | None = None
