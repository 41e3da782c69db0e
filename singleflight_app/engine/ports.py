"""What the engine needs from the outside; `api` puts the real things in.

Stores raise CoordinationUnavailable when they can't answer. Caches and notifiers only make things
faster: they never raise, and a failure of theirs is announced by themselves.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Protocol, Self, TypeVar

from singleflight_app.domain.flight import Settled, StoredResult
from singleflight_app.domain.keys import FlightKey
from singleflight_app.domain.policy import StagePolicy
from singleflight_app.domain.records import (
    Beat,
    ExpiredFlight,
    FlightSnapshot,
    Forgotten,
    Full,
    Hint,
    Kept,
    LeaseState,
    Looked,
    NotedBlob,
    StoredArguments,
)
from singleflight_app.domain.states import Claim

R = TypeVar("R")


class FlightStore(Protocol):
    """Flight rows and their moves. None is an ordinary refusal: the row is not as the caller saw it."""

    def claim(
        self, key: FlightKey, *, label: str, owner: str, policy: StagePolicy, trace_parent: str = ""
    ) -> tuple[bool, FlightSnapshot] | Full | None:
        """Insert a running row and return (True, row), or return (False, row as it is); None: ask again.

        `trace_parent` names the span of the call. Full: there is no row, and `max_concurrency` calls of the stage run.
        """

    def find(self, digest: bytes) -> FlightSnapshot | None:
        """Return the key's row as it is; None: there is none."""

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
        """Grant a new generation over `row`, with `is_fresh` also over an outcome still in its TTL."""

    def read(self, flight_id: int) -> FlightSnapshot | None:
        """Return the row as it is."""

    def poll(self, flight_ids: Collection[int]) -> list[LeaseState]:
        """Return where these flights are; one that is gone is missing from the list."""

    def renew(self, beats: Sequence[Beat], *, owner: str) -> set[int]:
        """Renew leases and return the ids of those renewed."""

    def settle(self, settled: Settled, *, owner: str, ttl: float) -> bool | None:
        """Write the end of a generation; return whether the flight was forgotten meanwhile."""

    def record_fence(self, flight_id: int, generation: int, *, owner: str) -> None:
        """Leave the audit row of a refused settle."""

    def lose(self, flight_id: int, generation: int, *, ttl: float, message: str, grace: float = 0.0) -> bool:
        """Settle an expired flight as lost; False: it moved meanwhile."""

    def forget(
        self,
        *,
        digest: bytes | None = None,
        flight_id: int | None = None,
        generation: int | None = None,
        actor: str = "",
    ) -> Forgotten | None:
        """Mark an outcome as forgotten."""

    def may_take_over(self, lease: float) -> bool:
        """Tell whether this process has had the store in reach for one lease (rule R18)."""

    def close(self) -> None:
        """Let go of connections."""


class FlightQueue(Protocol):
    """Background flights: rows that wait for a worker, and those that lost theirs."""

    def find(self, digest: bytes) -> FlightSnapshot | None:
        """Return the key's row as it is; None: there is none."""

    def submit(self, key: FlightKey, *, label: str, arguments: Mapping[str, str]) -> tuple[bool, FlightSnapshot] | None:
        """Insert a pending row and return (True, row), or return (False, row as it is); None: ask again."""

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
        """Make a settled or expired flight pending again."""

    def read(self, flight_id: int) -> FlightSnapshot | None:
        """Return the row as it is."""

    def lose(self, flight_id: int, generation: int, *, ttl: float, message: str, grace: float = 0.0) -> bool:
        """Settle an expired flight as lost; False: it moved meanwhile."""

    def expire_lease(self, flight_id: int, generation: int, *, actor: str) -> Forgotten | None:
        """End the lease of a running generation by hand; None: it is not running."""

    def cancel(self, flight_id: int, generation: int, *, actor: str, ttl: float) -> Forgotten | None:
        """End a pending or running generation by hand; None: it has ended otherwise, or moved."""

    def allow_retry(self, flight_id: int, generation: int, *, actor: str) -> Forgotten | None:
        """Let whoever asks next call again after a failure; None: it is past, forgotten or replaced."""

    def send_again(self, flight_id: int, generation: int, *, actor: str) -> bool:
        """Mark a pending generation as sent again; False: it needs no worker any more."""

    def expired(self, limit: int) -> list[ExpiredFlight]:
        """Return running flights whose lease is over, oldest first."""

    def unsent(self, *, spacing: float, limit: int) -> list[int]:
        """Mark pending flights as sent again and return their ids."""

    def arguments(self, flight_id: int) -> StoredArguments | None:
        """Return what a worker needs to run a flight."""

    def may_take_over(self, lease: float) -> bool:
        """Tell whether this process has had the store in reach for one lease (rule R18)."""


class ReplayCache(Protocol):
    """Outcomes near the caller."""

    def look(self, digest: bytes) -> Looked:
        """Return the outcome of the key, or the ticket for writing one."""

    def keep(self, offered: Sequence[Kept]) -> None:
        """Offer outcomes; those without a ticket, and failures, are passed over."""

    def raise_floor(self, digest: bytes, generation: int) -> None:
        """Refuse generations up to this one; raise CoordinationUnavailable if that can't be confirmed."""


class Blobs(Protocol):
    """Files for results that are too large for a row."""

    #: Whether there is a storage at all.
    is_there: bool

    def put(self, name: str, payload: bytes) -> str | None:
        """Write a file and return the name that it got; None: the storage did not take it."""

    def get(self, location: str, *, most: int, within: float) -> bytes | None:
        """Return a file, cut off after `most` bytes; None: it is gone.

        CoordinationUnavailable: no answer `within` seconds.
        """

    def delete(self, location: str) -> bool:
        """Delete a file, if it is there; False: the storage did not do it."""


class BlobNotes(Protocol):
    """The names of all files that were ever begun, until they are deleted."""

    def note(self, flight_id: int, generation: int, location: str) -> None:
        """Note a name before anything is written under it."""

    def erase(self, locations: Sequence[str]) -> None:
        """Forget names whose files are gone."""

    def noted(self, *, after: int, grace: float, limit: int) -> list[NotedBlob]:
        """Return the next names that were noted more than `grace` seconds ago, from an id on."""


class Memory(Protocol):
    """Outcomes inside this process; times are monotonic."""

    #: How long after a floor was raised an outcome from before it may still be remembered, here or elsewhere.
    floor_seconds: float

    def look(self, digest: bytes) -> Settled | None:
        """Return the outcome of a key, if it is still fresh."""

    def keep(self, digest: bytes, settled: Settled, *, until: float) -> None:
        """Offer a success until a monotonic time."""

    def raise_floor(self, digest: bytes, generation: int) -> None:
        """Drop the key's outcome up to `generation` and refuse it from now on."""


class Notifier(Protocol):
    """Hints from owner to follower, across processes."""

    #: Whether hints can arrive at all; without, followers rely on the poll.
    is_listening: bool

    def publish(self, hints: Sequence[tuple[str, Hint]]) -> bool:
        """Send hints to every process that listens to their stages; False: the stream is out of reach."""

    def open(self, stage: str, *, back: float = 0.0) -> bool:
        """Begin to remember the stage's position, `back` seconds before its last hint; True: none was known before."""

    def close(self) -> None:
        """Let go of connections."""

    def read(self, stages: Collection[str], timeout: float) -> list[Hint]:
        """Wait up to `timeout` seconds for hints; raise ConnectionError when the stream is out of reach."""


class Codec(Protocol[R]):
    """Turns results into stored bytes and back; these belong to the flight key of one digest."""

    def encode(self, value: R, digest: bytes) -> StoredResult:
        """Return the stored form; a value that has none is ResultUnreadable."""

    def decode(self, stored: StoredResult, digest: bytes) -> R:
        """Return a fresh copy; damaged bytes are ResultUnreadable, those of a newer release UnknownEnvelope."""


class Span(Protocol):
    """One step of a caller's way, as a trace shows it. No method raises; as a block it is ended by it."""

    @property
    def trace_parent(self) -> str:
        """Return the W3C traceparent by which others find the span; "" if nobody records it."""

    def tell(
        self,
        *,
        role: str | None = None,
        layer: str | None = None,
        flight_id: int | None = None,
        generation: int | None = None,
        status: str | None = None,
    ) -> None:
        """Say what is known by now."""

    def link(self, trace_parent: str) -> None:
        """Point to the call that answers, in whatever trace it is; "" points to nothing."""

    def become_call(self) -> None:
        """Turn the span of a claim that was granted into that of the call."""

    def current(self) -> AbstractContextManager[object]:
        """Have the spans that the user's function begins in the block under this one."""

    def end(self, error: BaseException | None = None) -> None:
        """End it, with the type of an error; a second end changes nothing."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...


class Tracing(Protocol):
    """Begins the spans of a project that traces; each is under the caller's own."""

    @property
    def is_on(self) -> bool:
        """Whether anybody records spans."""

    def claim(self, stage: str, /) -> Span:
        """Begin the span of a claim; it becomes the call's if the claim is granted."""

    def call(self, stage: str, /) -> Span:
        """Begin the span of a call that nobody granted (degraded)."""

    def wait(self, stage: str, /) -> Span:
        """Begin the span of a follower's wait."""

    def settle(self, stage: str, /) -> Span:
        """Begin the span of writing an end."""
