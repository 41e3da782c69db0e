"""What a purge may delete: settled flights past their expiry, and audit rows past their retention."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from singleflight_app.domain.states import LIVE, Status

SETTLED = tuple(status for status in Status if status not in LIVE)


@dataclass(frozen=True, kw_only=True)
class PurgePlan:
    """Which rows to delete, and in what portions. Live flights and outcomes still in their TTL never are."""

    older_than: timedelta = timedelta(0)  #: since the outcome expired
    wait_timeout_max: float  #: seconds; a follower may still come for its outcome this long after the expiry
    event_retention: timedelta
    stages: tuple[str, ...] = ()  #: of flights and audit rows; empty: all
    statuses: tuple[Status, ...] = SETTLED
    batch_size: int = 1000
    max_seconds: float | None = None  #: begin no batch later than this

    @property
    def keep(self) -> timedelta:
        """How long past its expiry a flight stays (rule R8)."""
        return max(self.older_than, timedelta(seconds=self.wait_timeout_max))


class PurgedBatch(NamedTuple):
    """What one statement deleted, and where the next one may begin."""

    deleted: int
    until: datetime | None  #: the latest expiry (or event time) among them; None: there was nothing
    locations: tuple[str, ...] = ()  #: files that held their results


class Purged(NamedTuple):
    """What a purge has deleted so far, or would delete."""

    flights: int
    events: int
    blobs: int  #: files of results
    is_complete: bool  #: everything was seen; False at the end: time was up, or counting stopped at its limit

    def plus(self, more: "Purged") -> "Purged":
        """Return the sum."""
        return Purged(self.flights + more.flights, self.events + more.events, self.blobs + more.blobs, more.is_complete)
