"""Deletes expired rows, one short statement per batch, and counts what a purge would delete."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from singleflight_app.domain.purging import Purged, PurgedBatch, PurgePlan
from singleflight_app.storage.pool import Database
from singleflight_app.storage.queries import query

#: a dry run counts no further, so that it stays one short statement
COUNT_MAX = 100_000


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

    def count(self, plan: PurgePlan) -> Purged:
        """Return what a purge would delete now, each count up to `COUNT_MAX`."""
        limit = {"limit": COUNT_MAX}
        ((flights,),) = self._database.run(query("count_expired_flights"), {**_flight_values(plan), **limit})
        ((events,),) = self._database.run(query("count_expired_events"), {**_event_values(plan), **limit})
        return Purged(flights, events, 0, is_complete=max(flights, events) < COUNT_MAX)


def _flight_values(plan: PurgePlan) -> Mapping[str, Any]:
    return {
        "keep": plan.keep,
        "stages": list(plan.stages) or None,
        "statuses": [status.value for status in plan.statuses],
    }


def _event_values(plan: PurgePlan) -> Mapping[str, Any]:
    return {"retention": plan.event_retention, "stages": list(plan.stages) or None}
