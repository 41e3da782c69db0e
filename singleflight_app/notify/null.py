"""Stands in where no Redis is configured: followers rely on the poll."""

from collections.abc import Collection, Sequence

from singleflight_app.domain.records import Hint


class NullNotifier:
    """Sends nothing and hears nothing."""

    is_listening = False

    def publish(self, hints: Sequence[tuple[str, Hint]]) -> bool:
        """Send nothing, since nobody listens."""
        return True

    def open(self, stage: str, *, back: float = 0.0) -> bool:
        """Have no position to remember."""
        return False

    def close(self) -> None:
        """Have nothing to let go of."""

    def read(self, stages: Collection[str], timeout: float) -> list[Hint]:
        """Hear nothing; never called, since `is_listening` is False."""
        return []
