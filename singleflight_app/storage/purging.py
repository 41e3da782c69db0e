"""Deletes expired rows, one short statement per batch, and counts what a purge would delete."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from singleflight_app.domain.purging import Purged, PurgedBatch, PurgePlan, Retired, RetiredBatch
from singleflight_app.storage.pool import Database
from singleflight_app.storage.queries import query

#: a dry run counts no further, so that it stays one short statement
COUNT_MAX = 100_000
#: a walk looks at this many rows for each that it may delete
WINDOW = 10
#: who forgot an outcome, in its audit row
ACTOR = "purge_flights"


class ExpiredRows:
    """The flights past their expiry and the audit rows past their retention."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def purge_flights(self, plan: PurgePlan, since: datetime | None) -> PurgedBatch:
        """Delete the flights that expired first, from `since` on, in one commit."""
        values = {**_flight_values(plan), "since": since, "limit": plan.batch_size}
        ((deleted, until, locations),) = self._database.run(query("purge_flights"), values)
        return PurgedBatch(deleted, until, tuple(locations))

    def purge_events(self, plan: PurgePlan, since: datetime | None) -> PurgedBatch:
        """Delete the oldest audit rows, from `since` on, in one commit."""
        values = {**_event_values(plan), "since": since, "limit": plan.batch_size}
        ((deleted, until),) = self._database.run(query("purge_events"), values)
        return PurgedBatch(deleted, until)

    def retire(self, plan: PurgePlan, after: int) -> RetiredBatch:
        """Mark the next flights that `plan` names as forgotten, from an id on, in one commit."""
        rows = self._database.run(query("retire_flights"), {**_walk_values(plan), "after": after, "actor": ACTOR})
        until, matched, *_ = rows[0]
        return RetiredBatch(until, matched, tuple(Retired._make(row[2:]) for row in rows if row[2] is not None))

    def erase(self, flights: Sequence[Retired]) -> PurgedBatch:
        """Delete flights that are still at their generation, in one commit."""
        if not flights:
            return PurgedBatch(0, None)
        values = {"flight_ids": [f.flight_id for f in flights], "generations": [f.generation for f in flights]}
        ((deleted, locations),) = self._database.run(query("erase_flights"), values)
        return PurgedBatch(deleted, None, tuple(locations))

    def count(self, plan: PurgePlan) -> Purged:
        """Return what a purge would delete now, each count up to `COUNT_MAX`; a walk is counted to its end."""
        limit = {"limit": COUNT_MAX}
        events = flights = left = 0
        if plan.scope is None:
            ((events,),) = self._database.run(query("count_expired_events"), {**_event_values(plan), **limit})
        if plan.walks:
            flights, left = self._count_by_walking(plan)
        else:
            ((flights,),) = self._database.run(query("count_expired_flights"), {**_flight_values(plan), **limit})
        is_complete = events < COUNT_MAX and (plan.walks or flights < COUNT_MAX)
        return Purged(flights, events, 0, is_complete, left)

    def _count_by_walking(self, plan: PurgePlan) -> tuple[int, int]:
        total = left = 0
        after: int | None = 0
        while after is not None:
            values = {**_walk_values(plan), "after": after}
            ((after, matched, doomed),) = self._database.run(query("count_doomed_flights"), values)
            total += doomed
            left += matched - doomed if plan.scope is not None else 0
        return total, left


def _flight_values(plan: PurgePlan) -> Mapping[str, Any]:
    return {
        "keep": plan.keep,
        "stages": list(plan.stages) or None,
        "statuses": [status.value for status in plan.statuses],
    }


def _walk_values(plan: PurgePlan) -> Mapping[str, Any]:
    return {
        **_flight_values(plan),
        "scope": plan.scope,
        "unexpired": plan.unexpired,
        "older_than": plan.older_than,
        "window": WINDOW * plan.batch_size,
        "limit": plan.batch_size,
    }


def _event_values(plan: PurgePlan) -> Mapping[str, Any]:
    return {"retention": plan.event_retention, "stages": list(plan.stages) or None}
