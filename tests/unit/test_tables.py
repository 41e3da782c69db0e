"""What commands print: durations that read at a glance, columns, and text that can't move a cursor."""

import pytest

from singleflight_app.management.tables import columns, duration, printable


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0.04, "0.0 s"),
        (9.94, "9.9 s"),
        (75, "75 s"),
        (-90, "-90 s"),
        (150, "2 min"),
        (12_600, "3.5 h"),
        (800_000, "9 d"),
    ],
)
def test_a_duration_has_the_unit_that_suits_it(seconds: float | None, text: str) -> None:
    """Two digits are enough at night."""
    assert duration(seconds) == text


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    """And nothing trails behind the last one."""
    assert columns(("id", "stage"), [("1", "calm"), ("1000", "a")]) == ["id    stage", "1     calm", "1000  a"]


def test_a_text_from_a_row_stays_in_its_line() -> None:
    """No control character reaches the terminal, and a long text is cut."""
    assert printable("a\nb\x1b[2Jc\u202e") == "a\ufffdb\ufffd[2Jc\ufffd"
    assert printable("x" * 100, 10) == "x" * 9 + "…"
    assert printable("访谈评分") == "访谈评分"
