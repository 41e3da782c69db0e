"""A trace that nobody records: one object stands for every span, so that not tracing costs nothing."""

from types import TracebackType
from typing import Self


class NoSpan:
    """Takes everything and does nothing; there is one, and no call makes another."""

    __slots__ = ()
    trace_parent = ""

    def tell(
        self,
        *,
        role: str | None = None,
        layer: str | None = None,
        flight_id: int | None = None,
        generation: int | None = None,
        status: str | None = None,
    ) -> None:
        """Forget it."""

    def link(self, trace_parent: str) -> None:
        """Point to nothing."""

    def become_call(self) -> None:
        """Stay what it is."""

    def current(self) -> "NoSpan":
        """Return a block in which nothing is current."""
        return self

    def end(self, error: BaseException | None = None) -> None:
        """Stay what it is."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Let what happened in the block go on up."""


NO_SPAN = NoSpan()


class NoTracing:
    """Has only the one span."""

    is_on = False

    def claim(self, stage: str) -> NoSpan:
        """Return the one span."""
        return NO_SPAN

    call = wait = settle = claim


NO_TRACING = NoTracing()
