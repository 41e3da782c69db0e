"""What a purge may delete: settled flights past their expiry, and audit rows past their retention."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from singleflight_app.domain.states import LIVE, Status

SETTLED = tuple(status for status in Status if status not in LIVE)


@dataclass(frozen=True, kw_only=True)
class PurgePlan:
    """Which rows to delete, and in what portions. Live flights never are; outcomes in their TTL only if `unexpired`."""

    older_than: timedelta = timedelta(0)  #: since the outcome expired; with `unexpired`, since the flight was settled
    wait_timeout_max: float  #: seconds; a follower may still come for its outcome this long after the expiry
    event_retention: timedelta
    stages: tuple[str, ...] = ()  #: of flights and audit rows; empty: all
    statuses: tuple[Status, ...] = SETTLED
    batch_size: int = 1000
    max_seconds: float | None = None  #: begin no batch later than this
    unexpired: bool = False  #: outcomes in their TTL too, and those that a follower may still come for
    scope: str | None = None  #: flights of this scope alone, and no audit rows

    @property
    def walks(self) -> bool:
        """Whether the rows are found by walking all of them: no index knows a scope, or when a flight was settled."""
        return self.unexpired or self.scope is not None

    @property
    def keep(self) -> timedelta:
        """How long past its expiry a flight stays (rule R8)."""
        return max(self.older_than, timedelta(seconds=self.wait_timeout_max))


class PurgedBatch(NamedTuple):
    """What one statement deleted, and where the next one may begin."""

    deleted: int
    until: datetime | None  #: the latest expiry (or event time) among them; None: there was nothing
    locations: tuple[str, ...] = ()  #: files that held their results


class Retired(NamedTuple):
    """A settled flight that is about to be erased: whoever asks from now on gets a new call."""

    flight_id: int
    generation: int
    digest: bytes
    is_replayable: bool  #: in its TTL: it may lie in Redis and in the memory of processes


class RetiredBatch(NamedTuple):
    """The next stretch of a walk over all flights."""

    until: int | None  #: the last id that was looked at; None: there was no row any more
    matched: int  #: flights of the scope and the stages, whatever their status
    flights: tuple[Retired, ...]


class Purged(NamedTuple):
    """What a purge has deleted so far, or would delete."""

    flights: int
    events: int
    blobs: int  #: files of results
    is_complete: bool  #: everything was seen; False at the end: time was up, or counting stopped at its limit
    left: int = 0  #: flights of the plan's scope that stay: live, in somebody's hands, or in their TTL

    def plus(self, more: "Purged") -> "Purged":
        """Return the sum."""
        return Purged(
            self.flights + more.flights,
            self.events + more.events,
            self.blobs + more.blobs,
            more.is_complete,
            self.left + more.left,
        )


NOTHING = Purged(0, 0, 0, is_complete=False)
