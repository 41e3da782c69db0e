"""Plain text for a terminal or a log: columns, durations, and names that can't move the cursor."""

from collections.abc import Sequence

_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return lines in which each column is as wide as its widest cell."""
    table = [head, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(head))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]


def duration(seconds: float | None) -> str:
    """Return a duration as two digits or more, such as 4.2 s, 75 s, 12 min, 3.5 h or 9 d; None: a dash."""
    if seconds is None:
        return "-"
    size, sign = abs(seconds), "-" if seconds < 0 else ""
    if size < 10:  # noqa: PLR2004  (below, a tenth counts)
        return f"{sign}{size:.1f} s"
    if size < 2 * _MINUTE:
        return f"{sign}{size:.0f} s"
    if size < 2 * _HOUR:
        return f"{sign}{size / _MINUTE:.0f} min"
    if size < 2 * _DAY:
        return f"{sign}{size / _HOUR:.1f} h"
    return f"{sign}{size / _DAY:.0f} d"


def printable(text: str, most: int = 60) -> str:
    """Return a text from a row in one line, cut, and without what a terminal would obey."""
    clean = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
    return clean if len(clean) <= most else f"{clean[: most - 1]}…"
