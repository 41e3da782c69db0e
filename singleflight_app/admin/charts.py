"""The geometry of bar charts: plain numbers in, coordinates out. A template draws them."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, log10

WIDTH, HEIGHT = 720, 240
LEFT, RIGHT, TOP, BOTTOM = 64, 8, 12, 46
_GAP = 0.2  #: part of a step that stays free
_MOST_WIDE = 48.0
_LABEL_WIDTH = 46.0  #: what a label below the bars takes
_STEPS = (1, 2, 2.5, 5, 10)
_SMALL = 1e-4  #: below it, digits after the point are no help
_UNITS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True, slots=True)
class Series:
    """One part of each bar: its name, and a value for each step, none below zero."""

    name: str
    values: Sequence[float]


@dataclass(frozen=True, slots=True)
class Bar:
    """A rectangle; `series` is its number, from 1 on, and `text` says what it stands for."""

    x: float
    y: float
    width: float
    height: float
    series: int
    text: str


@dataclass(frozen=True, slots=True)
class Tick:
    """A place on an axis and what is written there."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Chart:
    """Stacked bars in a box of `WIDTH` x `HEIGHT`."""

    bars: list[Bar]
    across: list[Tick]
    up: list[Tick]
    legend: list[tuple[int, str]]

    #: The edges of the plot, for the template.
    width, height, left, right, top, bottom = WIDTH, HEIGHT, LEFT, WIDTH - RIGHT, TOP, HEIGHT - BOTTOM


def stacked(
    labels: Sequence[str],
    series: Sequence[Series],
    texts: Sequence[Sequence[str]] | None = None,
    *,
    short: Sequence[str] | None = None,
) -> Chart:
    """Return bars whose parts stand on each other, one bar for each label; `short` labels are for the axis.

    `texts` are the values as a person reads them, series by series; without, they are plain numbers.
    """
    sums = [sum(values) for values in zip(*(one.values for one in series), strict=True)]
    steps = ticks(max(sums, default=0.0))
    top = steps[-1]
    plot, step = HEIGHT - TOP - BOTTOM, (WIDTH - LEFT - RIGHT) / max(len(labels), 1)
    width = min(step * (1 - _GAP), _MOST_WIDE)
    bars, heights = [], [0.0] * len(labels)
    for number, one in enumerate(series, start=1):
        for index, value in enumerate(one.values):
            if value > 0:
                height = plot * value / top
                x = LEFT + step * (index + 0.5) - width / 2
                y = HEIGHT - BOTTOM - heights[index] - height
                text = texts[number - 1][index] if texts else compact(value)
                told = f"{labels[index]}: {one.name} {text}"
                bars.append(Bar(round(x, 2), round(y, 2), round(width, 2), round(height, 2), number, told))
                heights[index] += height
    every = max(1, -int(-_LABEL_WIDTH // step))
    across = [
        Tick(round(LEFT + step * (index + 0.5), 2), label)
        for index, label in enumerate(short or labels)
        if index % every == 0
    ]
    up = [Tick(round(HEIGHT - BOTTOM - plot * value / top, 2), compact(value)) for value in steps]
    return Chart(bars, across, up, [(number, one.name) for number, one in enumerate(series, start=1)])


def ticks(highest: float, most: int = 5) -> list[float]:
    """Return round numbers from 0 to at least `highest`, at most `most` + 1 of them."""
    if highest <= 0:
        return [0.0, 1.0]
    size = 10.0 ** floor(log10(highest / most))
    step = next(size * factor for factor in _STEPS if size * factor * most >= highest * (1 - 1e-9))
    count = -int(-highest * (1 - 1e-9) // step)
    return [round(step * number, 12) for number in range(count + 1)]


def compact(value: float) -> str:
    """Return a number as short as an axis wants it: 950, 1.5k, 20M, 0.004."""
    for unit, letter in _UNITS:
        if value >= unit:
            return f"{value / unit:.3g}{letter}"
    return f"{value:.3g}" if value >= _SMALL or value == 0 else f"{value:.0e}"
