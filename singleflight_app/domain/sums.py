"""The ledger's rows added up, and what people read in them: ratios, percentiles, and tables that can be exported."""

import csv
import io
from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, fields
from datetime import UTC, datetime
from decimal import Decimal

#: What a spreadsheet takes for the beginning of a formula.
_FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n")


@dataclass(frozen=True, slots=True)
class Sums:
    """What was counted in some hours; the fields are the columns of `StageStat`."""

    requests: int = 0
    calls: int = 0
    followers: int = 0
    replays: int = 0
    replays_process: int = 0
    replays_cache: int = 0
    failures: int = 0
    takeovers: int = 0
    fenced: int = 0
    degraded: int = 0
    wait_timeouts: int = 0
    tokens_spent: int = 0
    tokens_saved: int = 0
    tokens_wasted: int = 0
    cost_spent: Decimal = Decimal(0)
    cost_saved: Decimal = Decimal(0)
    cost_wasted: Decimal = Decimal(0)

    def __add__(self, other: "Sums") -> "Sums":
        """Return the sums of both."""
        return Sums(*(one + more for one, more in zip(astuple(self), astuple(other), strict=True)))

    @property
    def shared(self) -> int:
        """Requests that were answered without a call of their own."""
        return self.followers + self.replays

    @property
    def replays_database(self) -> int:
        """Replays that came from the row."""
        return self.replays - self.replays_process - self.replays_cache

    @property
    def merge_ratio(self) -> float | None:
        """Requests per call; None: there was no call."""
        return self.requests / self.calls if self.calls else None

    @property
    def duplicates(self) -> int:
        """Calls that began although one of their key had begun before, or may have: takeovers, and degraded calls."""
        return self.takeovers + self.degraded


COLUMNS = tuple(field.name for field in fields(Sums))


@dataclass(frozen=True, slots=True)
class Line:
    """Sums of one stage, of one time, or of one stage in one time; None where they are of all."""

    stage: str | None
    at: datetime | None
    sums: Sums


def total(lines: Iterable[Line]) -> Sums:
    """Return the sums of all lines."""
    whole = Sums()
    for line in lines:
        whole += line.sums
    return whole


def csv_lines(lines: Iterable[Line], *, by: tuple[str, ...]) -> Iterator[str]:
    """Yield a header and a line of CSV (RFC 4180) for each; `by` are the leading columns: stage, hour, day.

    Hours are in UTC, a day is a date, money is exact, and no text begins a formula.
    """
    yield _written([*by, *COLUMNS])
    for line in lines:
        yield _written([*(label(line, name) for name in by), *(exact(value) for value in astuple(line.sums))])


def label(line: Line, name: str) -> str:
    """Return what a line is of: its stage, its hour (UTC) or its day."""
    if name == "stage":
        stage = line.stage or ""
        return f"'{stage}" if stage.startswith(_FORMULAS) else stage
    if line.at is None:
        return ""
    return line.at.astimezone(UTC).strftime("%Y-%m-%dT%H:%MZ") if name == "hour" else line.at.date().isoformat()


def exact(value: Decimal | int) -> str:
    """Return a number in plain digits, without zeros at its end."""
    if isinstance(value, int):
        return str(value)
    text = format(value, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


def _written(cells: Iterable[str]) -> str:
    out = io.StringIO()
    csv.writer(out).writerow(cells)
    return out.getvalue()
