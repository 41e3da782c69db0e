"""Notes of the files that hold large results, so that none is forgotten; each method is one statement."""

from collections.abc import Sequence

from singleflight_app.domain.records import NotedBlob
from singleflight_app.storage.pool import Database
from singleflight_app.storage.queries import query


class PostgresBlobNotes:
    """Rows of the table `singleflight_blob`; implements BlobNotes."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def note(self, flight_id: int, generation: int, location: str) -> None:
        """Note a name before anything is written under it."""
        values = {"flight_id": flight_id, "generation": generation, "location": location}
        self._database.run(query("note_blob"), values)

    def erase(self, locations: Sequence[str]) -> None:
        """Forget names whose files are gone."""
        self._database.run(query("erase_blobs"), {"locations": list(locations)})

    def noted(self, *, after: int, grace: float, limit: int) -> list[NotedBlob]:
        """Return the next names that were noted more than `grace` seconds ago, from an id on."""
        rows = self._database.run(query("noted_blobs"), {"after": after, "grace": grace, "limit": limit})
        return [NotedBlob._make(row) for row in rows]


class NoBlobNotes:
    """Stands in where flights are in memory, and every result with them."""

    def note(self, flight_id: int, generation: int, location: str) -> None:
        """Note nothing."""

    def erase(self, locations: Sequence[str]) -> None:
        """Have nothing to forget."""

    def noted(self, *, after: int, grace: float, limit: int) -> list[NotedBlob]:
        """Have no files."""
        return []
