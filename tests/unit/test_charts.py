"""The geometry of the dashboard's charts."""

from itertools import pairwise

import pytest

from singleflight_app.admin.charts import BOTTOM, HEIGHT, LEFT, TOP, WIDTH, Chart, Series, compact, stacked, ticks

FLOOR = HEIGHT - BOTTOM


def _chart(*values: list[float]) -> Chart:
    labels = [f"day {number}" for number in range(len(values[0]))]
    return stacked(labels, [Series(f"part {number}", part) for number, part in enumerate(values, start=1)])


def test_parts_stand_on_each_other_without_a_gap() -> None:
    """The highest bar is as high as its sum on the axis."""
    first, second = _chart([4.0], [6.0]).bars

    assert first.y + first.height == pytest.approx(FLOOR)
    assert second.y + second.height == pytest.approx(first.y)
    assert second.y == pytest.approx(TOP)
    assert (first.height / second.height) == pytest.approx(4 / 6, rel=1e-3)
    assert (first.series, second.series) == (1, 2)
    assert second.text == "day 0: part 2 6"


def test_bars_stay_apart_and_inside() -> None:
    """However many there are."""
    for count in (1, 7, 24, 31):
        bars = _chart([1.0] * count).bars

        assert all(left.x + left.width < right.x for left, right in pairwise(bars))
        assert bars[0].x >= LEFT
        assert bars[-1].x + bars[-1].width <= WIDTH


def test_nothing_is_drawn_for_nothing() -> None:
    """No bar of no height, and an axis all the same."""
    chart = _chart([0.0, 0.0])

    assert chart.bars == []
    assert [tick.text for tick in chart.up] == ["0", "1"]
    assert _chart([]).across == []


def test_labels_leave_room_for_each_other() -> None:
    """Of thirty days some are named."""
    across = _chart([1.0] * 30).across

    assert across[0].text == "day 0"
    assert all(right.at - left.at >= 46 for left, right in pairwise(across))
    assert len(_chart([1.0] * 7).across) == 7


@pytest.mark.parametrize("highest", [1e-9, 0.003, 0.7, 1, 3, 9.99, 10, 26, 101, 4999, 1e7])
def test_an_axis_has_few_round_numbers_and_ends_just_above(highest: float) -> None:
    """The bars take more than a half of it."""
    found = ticks(highest)

    assert found[0] == 0
    assert highest * (1 - 1e-9) <= found[-1] < 2.1 * highest
    assert 2 <= len(found) <= 6


def test_numbers_on_an_axis_are_short() -> None:
    """A money amount of fractions of a cent too."""
    assert [compact(value) for value in (0, 0.0025, 0.00005, 12, 950, 1500, 2e7, 3e9)] == [
        *("0", "0.0025", "5e-05", "12", "950", "1.5k", "20M", "3G")
    ]
