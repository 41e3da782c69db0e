"""The trace that nobody records costs nothing, and a traceparent that is none leads nowhere."""

import pytest

from singleflight_app.domain.spans import NO_SPAN, NO_TRACING
from singleflight_app.telemetry.tracing import _context_of

GOOD = f"00-{'a' * 32}-{'b' * 16}-01"


def test_without_tracing_every_span_is_the_same_object() -> None:
    """No call makes another one."""
    begun = {NO_TRACING.claim("a"), NO_TRACING.call("b"), NO_TRACING.wait("c"), NO_TRACING.settle("d")}

    assert begun == {NO_SPAN}
    assert NO_SPAN.current() is NO_SPAN
    assert not hasattr(NO_SPAN, "__dict__")


def test_a_block_of_the_null_span_lets_errors_through() -> None:
    """It stands where real ones would end."""
    with pytest.raises(KeyError), NO_SPAN:
        raise KeyError


def test_a_traceparent_names_a_span() -> None:
    """As another process wrote it."""
    context = _context_of(GOOD)

    assert context is not None
    assert (context.trace_id, context.span_id) == (int("a" * 32, 16), int("b" * 16, 16))
    assert context.trace_flags.sampled
    assert context.is_remote


@pytest.mark.parametrize(
    "text", ["", "-", "00", GOOD[:-1], GOOD.replace("a", "x"), f"00-{'0' * 32}-{'b' * 16}-01", f"{GOOD}-more", "-" * 55]
)
def test_what_is_no_traceparent_names_none(text: str) -> None:
    """An older node's row, or one that somebody wrote by hand."""
    assert _context_of(text) is None
