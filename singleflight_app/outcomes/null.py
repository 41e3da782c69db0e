"""Stands in where no Redis is configured: every look is a miss."""

from collections.abc import Sequence

from singleflight_app.domain.records import Kept, Looked


class NoReplayCache:
    """Keeps nothing and has nothing."""

    def look(self, digest: bytes) -> Looked:
        """Return a miss without a ticket."""
        return Looked()

    def keep(self, offered: Sequence[Kept]) -> None:
        """Keep nothing."""

    def raise_floor(self, digest: bytes, generation: int) -> None:
        """Have nothing to refuse."""
