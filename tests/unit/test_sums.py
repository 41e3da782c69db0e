"""Percentiles of counted durations, sums, and what becomes of them in a file for spreadsheets."""

import csv
from datetime import UTC, datetime
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest
from django.utils import timezone

from singleflight_app.admin import shown
from singleflight_app.dashboard import Window
from singleflight_app.domain.flight import Usage
from singleflight_app.domain.states import Layer, Role, Status
from singleflight_app.domain.sums import Line, Sums, csv_lines, exact, total
from singleflight_app.domain.tally import DURATION_BOUNDS, StageTally, added, percentile

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
BUCKETS = len(DURATION_BOUNDS) + 1


def _counts(**places: int) -> list[int]:
    counts = [0] * BUCKETS
    for place, count in places.items():
        counts[int(place.removeprefix("at_"))] = count
    return counts


def test_a_percentile_lies_inside_its_bucket() -> None:
    """Ten durations from 2.5 to 5 s: half of them up to the middle."""
    counts = _counts(at_8=10)

    assert percentile(counts, 0.5) == pytest.approx(3.75)
    assert percentile(counts, 1.0) == pytest.approx(5)
    assert percentile(_counts(at_0=99, at_8=1), 0.5) == pytest.approx(0.01 * 50 / 99)


def test_a_percentile_above_the_last_bound_is_infinite() -> None:
    """The page says "> 300 s" and invents nothing."""
    counts = _counts(at_0=1, at_15=9)

    assert percentile(counts, 0.5) == float("inf")
    assert percentile(counts, 0.05) is not None
    assert shown.duration(percentile(counts, 0.5)) == "> 300 s"


def test_nothing_counted_has_no_percentile() -> None:
    """Nor has a row of an older node, which has no list."""
    assert percentile([], 0.5) is None
    assert percentile([0] * BUCKETS, 0.95) is None


def test_tallies_that_are_added_are_as_if_counted_together() -> None:
    """A batch that was not sent goes with the next one."""
    one, other, both = (StageTally("score", NOON) for _ in range(3))
    usage = Usage("m", 1, 2, Decimal("0.1"))
    for tally in (one, both):
        tally.count_answer(Role.REPLAY, Layer.REDIS, 0.02, usage, is_stored=True)
        tally.count_end(Status.FAILED, 3.0, usage, is_call=True)
    for tally in (other, both):
        tally.count_lost(is_begun_again=True)
        tally.count_refused(usage)
        tally.count_given_up(400.0)
        tally.count_degraded()

    one.add(other)

    assert one == both


def test_lists_of_different_length_are_added() -> None:
    """The shorter one ends with zeros."""
    assert added([1], [2, 3]) == [3, 3]
    assert added([], [4]) == [4]


def test_a_stage_that_looks_like_a_formula_is_text_in_a_spreadsheet() -> None:
    """A name comes from code, but a file of numbers must not run anything."""
    names = ["=cmd|' /C calc'!A0", "+1", "-1", "@sum", "\t=1", 'plain, "quoted"']
    lines = [Line(name, NOON, Sums(requests=1)) for name in names]

    rows = list(csv.reader(csv_lines(lines, by=("stage", "hour"))))

    assert rows[0][:4] == ["stage", "hour", "requests", "calls"]
    assert [row[0] for row in rows[1:]] == [f"'{name}" for name in names[:-1]] + names[-1:]
    assert {row[1] for row in rows[1:]} == {"2026-05-01T12:00Z"}


def test_money_is_exact_in_a_file() -> None:
    """No exponent, no rounding, no zeros at the end."""
    assert [
        exact(value) for value in (Decimal("1E-9"), Decimal("1200.500000000"), Decimal("0E-9"), Decimal(300), 7)
    ] == [*("0.000000001", "1200.5", "0", "300", "7")]


def test_sums_tell_what_was_shared() -> None:
    """Ratios come from the sums, not from an average of ratios."""
    whole = total(
        [Line("a", None, Sums(requests=10, calls=1, followers=9)), Line("b", None, Sums(requests=2, calls=2))]
    )

    assert (whole.merge_ratio, whole.shared) == (4.0, 9)
    assert Sums().merge_ratio is None
    assert Sums(takeovers=2, degraded=3).duplicates == 5


def test_money_is_shown_by_the_cent_and_below_by_what_it_says() -> None:
    """A fraction of a cent is not nothing."""
    assert [shown.money(Decimal(value)) for value in ("1234.5678", "0.01", "0", "0.00012345", "0.000000001")] == [
        *("1,234.57", "0.01", "0.00", "0.00012", "0.0000000010")
    ]


def test_numbers_are_rounded_and_not_cut_off() -> None:
    """Six calls for nineteen requests are 3.2 each, as the ledger's command says too."""
    assert [shown.ratio(value) for value in (19 / 6, 2.96, 249.7, None)] == ["3.2", "3.0", "250", "-"]
    assert [shown.duration(value) for value in (1.26, 12.6)] == ["1.3 s", "13 s"]
    assert shown.money(Decimal("0.00459")) == "0.0046"


@pytest.mark.parametrize(("day", "hours"), [("2026-03-29", 23), ("2026-10-25", 25), ("2026-05-01", 24)])
def test_a_day_has_its_hours_when_the_clock_is_changed(day: str, hours: int) -> None:
    """Days are those of the reader's time zone, hours those of the rows."""
    with timezone.override(ZoneInfo("Europe/Berlin")):
        window = Window.of_days(1, datetime.fromisoformat(f"{day}T12:00+00:00"))
        steps = list(window.steps())

        assert len(steps) == hours
        assert len(set(steps)) == hours
        week = list(Window.of_days(7, datetime.fromisoformat(f"{day}T12:00+00:00")).steps())
        assert [step.astimezone(window.zone).hour for step in week] == [0] * 7
