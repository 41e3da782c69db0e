"""A time axis that spends its width on what happened: long idle stretches are cut to a mark of fixed width."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import NamedTuple

Span = tuple[datetime, datetime]

BREAK_WIDTH = 44
TICK_SPACING = 84
_IDLE_SHARE = 0.5  #: of all busy time; a longer idle stretch is cut
_LEAST_IDLE = timedelta(seconds=1)
_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_LEAST_TOTAL = 0.001
_STEPS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400, 604800)


class Tick(NamedTuple):
    """A labelled time below the picture."""

    x: int
    label: str


class Break(NamedTuple):
    """An idle stretch that was cut out."""

    x: int
    width: int
    idle: timedelta

    @property
    def middle(self) -> int:
        """The middle of it."""
        return self.x + self.width // 2

    @property
    def label(self) -> str:
        """How long it was, in the largest unit: 45 s, 3 min, 2 h, 4 d."""
        seconds = self.idle.total_seconds()
        size, unit = next(((size, unit) for size, unit in _UNITS if seconds >= size), _UNITS[-1])
        return f"{seconds / size:.0f} {unit}"


class Stretch(NamedTuple):
    """A part of the axis with one scale."""

    start: datetime
    end: datetime
    x: float


class Axis:
    """Where a time lies between `left` and `left + width`; the spans are what there is to show, in any order."""

    def __init__(self, spans: Sequence[Span], *, left: int, width: int) -> None:
        busy = _merged(spans)
        breaks = len(busy) - 1
        seconds = max(sum((end - start).total_seconds() for start, end in busy), _LEAST_TOTAL)
        self.scale = (width - breaks * BREAK_WIDTH) / seconds  #: pixels of a second
        self.left, self.right = left, left + width
        self._stretches: list[Stretch] = []
        x = float(left)
        for start, end in busy:
            self._stretches.append(Stretch(start, end, x))
            x += (end - start).total_seconds() * self.scale + BREAK_WIDTH

    def x(self, at: datetime) -> int:
        """Return the place of a time, moved to the nearest one that is shown."""
        for stretch in self._stretches:
            if at <= stretch.end:
                return round(stretch.x + max((at - stretch.start).total_seconds(), 0.0) * self.scale)
        return self._end(self._stretches[-1])

    @property
    def breaks(self) -> list[Break]:
        """What was cut out."""
        return [Break(self._end(one), BREAK_WIDTH, after.start - one.end) for one, after in pairwise(self._stretches)]

    @property
    def ticks(self) -> list[Tick]:
        """The start of each stretch and round times in it, as far apart as their labels need."""
        step = next((step for step in _STEPS if step * self.scale >= TICK_SPACING), _STEPS[-1])
        ticks: list[Tick] = []
        day = self._stretches[0].start.date()
        for at in self._times(step):
            x = self.x(at)
            if ticks and x - ticks[-1].x < TICK_SPACING:
                continue
            label = _time(at, is_fine=step < 1)
            ticks.append(Tick(x, label if at.date() == day else f"{at:%m-%d} {label}"))
            day = at.date()
        return ticks

    def _times(self, step: float) -> Iterator[datetime]:
        for stretch in self._stretches:
            yield stretch.start
            midnight = stretch.start.replace(hour=0, minute=0, second=0, microsecond=0)
            number = int((stretch.start - midnight).total_seconds() / step) + 1
            while (at := midnight + timedelta(seconds=number * step)) < stretch.end:
                yield at
                number += 1

    def _end(self, stretch: Stretch) -> int:
        return round(stretch.x + (stretch.end - stretch.start).total_seconds() * self.scale)


def _merged(spans: Iterable[Span]) -> list[Span]:
    """Return the busy stretches in order: spans that overlap, or have but a short idle time between them, are one."""
    joined = _joined(spans, timedelta(0))
    busy = sum(((end - start) for start, end in joined), timedelta(0))
    return _joined(joined, max(busy * _IDLE_SHARE, _LEAST_IDLE))


def _joined(spans: Iterable[Span], idle: timedelta) -> list[Span]:
    found: list[Span] = []
    for start, end in sorted(spans):
        if found and start - found[-1][1] <= idle:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def _time(at: datetime, *, is_fine: bool) -> str:
    return f"{at:%H:%M:%S}.{at.microsecond // 100_000}" if is_fine else f"{at:%H:%M:%S}"
