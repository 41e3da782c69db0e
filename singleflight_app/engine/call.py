"""One caller's request, and what the steps of the protocol hand to each other."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from singleflight_app.domain.exceptions import StillRunning
from singleflight_app.domain.flight import Settled
from singleflight_app.domain.keys import FlightKey
from singleflight_app.domain.policy import StagePolicy
from singleflight_app.domain.records import FlightSnapshot
from singleflight_app.domain.spans import NO_SPAN
from singleflight_app.domain.states import Claim, Layer, Role
from singleflight_app.engine.local import LocalFlight
from singleflight_app.engine.ports import Codec, Span
from singleflight_app.engine.rim import Bell, Rim
from singleflight_app.telemetry.signals import announce, wait_timed_out

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Call(Generic[R]):
    """A request with everything the engine needs; `wait_timeout` is the caller's budget in seconds.

    `function` returns a value, or something to await for it. `accept` looks at the value and may raise Rejected.
    `is_fresh`: only a call that begins after the caller asked answers it.
    """

    key: FlightKey
    policy: StagePolicy
    function: Callable[[], Any]
    codec: Codec[R]
    wait_timeout: float
    label: str = ""
    #: The pending flight that a worker came for; it runs that one or nothing.
    pending: int | None = None
    is_fresh: bool = False
    accept: Callable[[Any], object] | None = None

    @property
    def may_replay(self) -> bool:
        """A stored answer will do; a worker looks at the row that it came for, a fresh caller at what is newer."""
        return self.pending is None and not self.is_fresh


@dataclass(eq=False, slots=True)
class Asked(Generic[R]):
    """What one caller asked for: its call, its process's flight, where it waits, and its wait budget (monotonic)."""

    call: Call[R]
    flight: LocalFlight
    rim: Rim
    started: float
    #: Makes the handle that tells a caller whose wait ended where to look again, from flight id and generation.
    handle: Callable[[int | None, int | None], object]
    bell: Bell = field(init=False)
    #: Of a fresh caller: the generation that the row had when it asked; only a higher one answers. Of any caller: the
    #: generation of a stored outcome that this process can't open.
    above: int | None = None
    has_left: bool = False  #: cancelled, while its turn as leader goes on
    wait_for: Callable[[str], None] | None = None  #: names the limit that it stands in line for
    span: Span = NO_SPAN  #: of its last claim; once that is granted, of its call

    def __post_init__(self) -> None:
        self.bell = self.rim.bell()

    @property
    def deadline(self) -> float:
        """When the caller's wait budget ends."""
        return self.started + self.call.wait_timeout

    @property
    def is_fresh(self) -> bool:
        """What the row has is no answer, and may be granted over."""
        return self.call.is_fresh or self.above is not None

    def mark(self) -> None:
        """Note who asked before the next statement; for fresh callers only its answer can tell (`Leading`)."""
        if not self.is_fresh:
            self.flight.mark()

    def leave(self) -> None:
        """Let the turn of a caller that was cancelled end, unless its call runs."""
        self.has_left = True
        self.bell.ring()

    def still_running(self, now: float) -> StillRunning:
        """Return the exception for a caller whose budget ended."""
        announce(wait_timed_out, stage=self.call.key.stage, waited=now - self.started)
        return StillRunning(self.handle(self.flight.flight_id, self.flight.generation), now - self.started)


class CallerLeft(Exception):
    """The caller whose turn this is was cancelled: the next in line leads."""


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
    """Somebody runs the flight; without a row, a rival's claim is not visible yet.

    `waits_out`: its end is no answer for this caller, who claims again after it.
    """

    row: FlightSnapshot | None
    waits_out: bool = False


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

    @property
    def refusal(self) -> str:
        """Return in a word why it is not stored."""
        return "fenced" if self.is_refused else "detached" if self.is_detached else "unwritten"
