"""The ledger's sums, added to the database, and what is live right now.

Each batch is sent once: a statement that got no reply may have been committed, and sent again it would
be counted twice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields

import psycopg
from psycopg.types.json import Jsonb

from singleflight_app.domain.exceptions import CoordinationUnavailable
from singleflight_app.domain.tally import LiveFlights, StageTally
from singleflight_app.storage.pool import Database, Rows
from singleflight_app.storage.queries import query

_COLUMNS = tuple(field.name for field in fields(StageTally))


class StageStats:
    """Adds to `StageStat` rows and to the flights' `joins` and `replays`; no answer is CoordinationUnavailable."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add_tallies(self, tallies: Sequence[StageTally]) -> None:
        """Add each tally to the row of its stage and hour."""
        columns: dict[str, Sequence[object]]
        columns = {name: [getattr(tally, name) for tally in tallies] for name in _COLUMNS}
        columns |= {name: [Jsonb(counts) for counts in columns[name]] for name in ("waits", "runs")}
        self._add("add_tallies", columns)

    def add_joins(self, uses: Mapping[tuple[int, int], tuple[int, int]]) -> set[int]:
        """Add joins and replays by (flight id, generation), and return the ids of flights that were locked.

        A flight that moved on keeps its numbers.
        """
        flight_ids, generations = [run[0] for run in uses], [run[1] for run in uses]
        joins, replays = [used[0] for used in uses.values()], [used[1] for used in uses.values()]
        values = {"flight_ids": flight_ids, "generations": generations, "joins": joins, "replays": replays}
        return {row[0] for row in self._add("add_joins", values)}

    def live_flights(self) -> list[LiveFlights]:
        """Return the number of live flights by stage."""
        return [LiveFlights._make(row) for row in self._database.run(query("live_flights"), {})]

    def _add(self, name: str, columns: Mapping[str, Sequence[object]]) -> Rows:
        try:
            return self._database.run(query(name), columns, once=True)
        except psycopg.Error as exc:
            # A sum past its column's range, a table of another release: no reason to end the caller's thread.
            raise CoordinationUnavailable(f"PostgreSQL refused the ledger's batch: {exc}") from exc
