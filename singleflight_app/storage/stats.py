"""The ledger's sums, added to the database, and what is live right now.

Each batch is sent once: a statement that got no reply may have been committed, and sent again it would
be counted twice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields

import psycopg

from singleflight_app.domain.exceptions import CoordinationUnavailable
from singleflight_app.domain.tally import LiveFlights, StageTally
from singleflight_app.storage.pool import Database
from singleflight_app.storage.queries import query

_COLUMNS = tuple(field.name for field in fields(StageTally))


class StageStats:
    """Adds to `StageStat` rows and to the flights' `joins`; no answer is CoordinationUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add_tallies(self, tallies: Sequence[StageTally]) -> None:
        """Add each tally to the row of its stage and hour."""
        columns = {name: [getattr(tally, name) for tally in tallies] for name in _COLUMNS}
        self._add("add_tallies", columns)

    def add_joins(self, joins: Mapping[tuple[int, int], int]) -> None:
        """Add joins by (flight id, generation); a flight that moved on or is locked keeps its number."""
        flight_ids, generations = [run[0] for run in joins], [run[1] for run in joins]
        values = {"flight_ids": flight_ids, "generations": generations, "joins": list(joins.values())}
        self._add("add_joins", values)

    def live_flights(self) -> list[LiveFlights]:
        """Return the number of live flights by stage."""
        return [LiveFlights._make(row) for row in self._database.run(query("live_flights"), {})]

    def _add(self, name: str, columns: Mapping[str, Sequence[object]]) -> None:
        try:
            self._database.run(query(name), columns, once=True)
        except psycopg.Error as exc:
            # A sum past its column's range, a table of another release: no reason to end the caller's thread.
            raise CoordinationUnavailable(f"PostgreSQL refused the ledger's batch: {exc}") from exc
