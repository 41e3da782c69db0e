"""Deletes settled flights before their time: a person asked for it.

An outcome in its TTL may lie in Redis and in the memory of any process. So a flight is marked as forgotten first, then
the floors are raised over it, and only then does its row go: from the mark on nobody is answered by it, and a stop
anywhere leaves nothing that a second run would not end.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from singleflight_app.domain.exceptions import CoordinationUnavailable
from singleflight_app.domain.purging import NOTHING, Purged, PurgedBatch, PurgePlan, Retired, RetiredBatch
from singleflight_app.domain.records import FLOORS, Hint
from singleflight_app.engine.large import LargeResults
from singleflight_app.engine.ports import Notifier, ReplayCache


class EraseStore(Protocol):
    """Walks over all flights, a bounded number of rows in each commit, passing over locked ones."""

    def retire(self, plan: PurgePlan, after: int, /) -> RetiredBatch:
        """Mark the next flights that `plan` names as forgotten, from an id on."""

    def erase(self, flights: Sequence[Retired], /) -> PurgedBatch:
        """Delete flights that are still at their generation."""


@dataclass(frozen=True)
class Floors:
    """What stands between a flight and a replay of it after its end: Redis, and the memories of all processes."""

    cache: ReplayCache
    notifier: Notifier

    def raise_over(self, flights: Sequence[Retired]) -> None:
        """Have no layer replay these; CoordinationUnavailable: Redis did not confirm it."""
        for flight in flights:
            self.cache.raise_floor(flight.digest, flight.generation)
        hints = [(FLOORS, Hint(flight.digest, flight.generation, is_floor=True)) for flight in flights]
        if not self.notifier.publish(hints):
            problem = "Redis did not take the message that makes every process forget the outcomes"
            raise CoordinationUnavailable(problem, is_outage=False)


def erase(store: EraseStore, floors: Floors, large: LargeResults, plan: PurgePlan) -> Iterator[Purged]:
    """Delete what `plan` names among all flights, and yields what each stretch of them came to."""
    after = 0
    while True:
        batch = store.retire(plan, after)
        floors.raise_over([flight for flight in batch.flights if flight.is_replayable])
        gone = store.erase(batch.flights)
        left = batch.matched - gone.deleted if plan.scope is not None else 0
        yield NOTHING._replace(flights=gone.deleted, blobs=large.remove(gone.locations), left=left)
        if batch.until is None:
            return
        after = batch.until
