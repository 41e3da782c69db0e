"""Work on flights that no caller asks for any more.

`purge` deletes settled rows whose outcome has expired. It goes in short batches, each committed by
itself and passing over locked rows, so that it can run beside everything else, be stopped anywhere and
be run by two at once.
"""

import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Protocol

from singleflight_app.domain.purging import Purged, PurgedBatch, PurgePlan

DeleteBatch = Callable[[PurgePlan, datetime | None], PurgedBatch]


class PurgeStore(Protocol):
    """Deletes one batch in one commit, oldest first, from `since` on, passing over locked rows."""

    def purge_flights(self, plan: PurgePlan, since: datetime | None, /) -> PurgedBatch:
        """Delete up to `plan.batch_size` flights."""

    def purge_events(self, plan: PurgePlan, since: datetime | None, /) -> PurgedBatch:
        """Delete up to `plan.batch_size` audit rows."""


def purge(
    store: PurgeStore, plan: PurgePlan, *, monotonic: Callable[[], float] = time.monotonic
) -> Iterator[Purged]:
    """Delete what `plan` names; yields the sum before the first batch and after each one."""
    ends_at = float("inf") if plan.max_seconds is None else monotonic() + plan.max_seconds
    flights = events = 0
    yield Purged(flights, events, is_complete=False)
    for count in _batches(store.purge_flights, plan):
        flights += count
        yield Purged(flights, events, is_complete=False)
        if monotonic() >= ends_at:
            return
    for count in _batches(store.purge_events, plan):
        events += count
        yield Purged(flights, events, is_complete=False)
        if monotonic() >= ends_at:
            return
    yield Purged(flights, events, is_complete=True)


def _batches(delete: DeleteBatch, plan: PurgePlan) -> Iterator[int]:
    since: datetime | None = None
    while True:
        # From where the last batch ended: the index entries before it are dead, but still there to be walked.
        batch = delete(plan, since)
        yield batch.deleted
        if batch.deleted < plan.batch_size:
            return
        since = batch.until
