"""`manage.py singleflight_ledger`: what it counts, in which form, and what it says to nonsense."""

import csv
import io
import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.utils import timezone
from pytest_django.fixtures import Settings

from tests.rows import stat_row

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("empty_tables")]

MAY = ("--since", "2026-05-01", "--until", "2026-05-31")


def _told(*arguments: str) -> str:
    out = io.StringIO()
    call_command("singleflight_ledger", *arguments, stdout=out, stderr=io.StringIO())
    return out.getvalue()


def _json(*arguments: str) -> dict[str, Any]:
    return json.loads(_told("--json", *arguments))  # type: ignore[no-any-return]


def _at(day: int, hour: int, month: int = 5) -> datetime:
    return datetime(2026, month, day, hour, tzinfo=UTC)


@pytest.fixture
def may() -> None:
    """Three hours of one stage, one of another, and rows around the month."""
    stat_row(stage="score", hour=_at(1, 0), requests=10, calls=2, followers=8, cost_saved=Decimal("0.000000001"))
    stat_row(stage="score", hour=_at(1, 23), requests=5, calls=5, cost_spent=Decimal("1.5"))
    stat_row(stage="score", hour=_at(31, 23), requests=1, replays=1, cost_saved=Decimal("0.000000002"), takeovers=1)
    stat_row(stage="report", hour=_at(1, 23), requests=100, calls=50, followers=50)
    stat_row(stage="score", hour=_at(30, 23, month=4), requests=1000)
    stat_row(stage="score", hour=_at(1, 0, month=6), requests=1000)


def test_a_month_by_stage(may: None) -> None:
    """The first and the last day belong to it, and money is exact."""
    told = _json(*MAY)

    by_stage = {line["stage"]: line for line in told["lines"]}
    assert {stage: line["requests"] for stage, line in by_stage.items()} == {"report": 100, "score": 16}
    assert by_stage["score"]["cost_saved"] == "0.000000003"
    assert (told["total"]["requests"], told["total"]["calls"], told["total"]["cost_spent"]) == (116, 57, "1.5")


def test_by_day_and_by_hour(may: None) -> None:
    """A stage can be left out, and two groups make finer lines."""
    days = [(line["day"], line["requests"]) for line in _json(*MAY, "--by", "day")["lines"]]
    hours = [(line["hour"], line["requests"]) for line in _json(*MAY, "--by", "hour", "--stage", "score")["lines"]]
    both = _json(*MAY, "--by", "day", "--by", "stage")["lines"]

    assert days == [("2026-05-01", 115), ("2026-05-31", 1)]
    assert hours == [("2026-05-01T00:00Z", 10), ("2026-05-01T23:00Z", 5), ("2026-05-31T23:00Z", 1)]
    assert {(line["stage"], line["day"]): line["requests"] for line in both}[("score", "2026-05-01")] == 15


def test_days_are_those_of_the_time_zone(may: None) -> None:
    """In Berlin the last hour of May the first belongs to the second."""
    with timezone.override("Europe/Berlin"):
        days = [(line["day"], line["requests"]) for line in _json(*MAY, "--by", "day")["lines"]]

    assert days == [("2026-05-01", 1010), ("2026-05-02", 105)]


def test_times_are_exact(may: None) -> None:
    """From a time on, and before another."""
    told = _json("--since", "2026-05-01T01:00+01:00", "--until", "2026-05-01T23:00Z")

    assert told["total"]["requests"] == 10


def test_the_last_days_are_the_default() -> None:
    """Today included."""
    now = timezone.now().replace(minute=0, second=0, microsecond=0)
    stat_row(hour=now, requests=1)
    stat_row(hour=now - timedelta(days=29), requests=2)
    stat_row(hour=now - timedelta(days=31), requests=4)

    assert _json()["total"]["requests"] == 3
    assert _json("--days", "1")["total"]["requests"] == 1


def test_a_table_has_columns_under_each_other_and_a_last_line(may: None) -> None:
    """Plain where nobody looks: it can be read by eye and by awk."""
    head, report, score, whole = _told(*MAY).splitlines()

    assert head.split()[:3] == ["stage", "requests", "calls"]
    assert report.split()[:4] == ["report", "100", "50", "2.00"]
    assert score.split()[:4] == ["score", "16", "7", "2.29"]
    assert whole.split()[:4] == ["all", "116", "57", "2.04"]
    assert score.split()[-2] == "0.000000003"
    assert len({len(line) for line in (head, report, score, whole)}) == 1


def test_csv_goes_to_the_output_or_to_a_file(may: None, tmp_path: Path) -> None:
    """The same lines, which a spreadsheet takes."""
    file = tmp_path / "may.csv"

    printed = _told(*MAY, "--csv")
    _told(*MAY, "--csv", str(file))

    assert file.read_bytes().decode() == printed
    rows = list(csv.DictReader(io.StringIO(printed)))
    assert [(row["stage"], row["requests"], row["cost_saved"]) for row in rows] == [
        ("report", "100", "0"),
        ("score", "16", "0.000000003"),
    ]


def test_an_empty_ledger_says_what_to_do() -> None:
    """It is no error."""
    assert "call a decorated function" in _told()
    assert _json()["lines"] == []


def test_it_works_without_time_zones(may: None, settings: Settings) -> None:
    """A project with USE_TZ off reads the same hours."""
    settings.USE_TZ = False
    settings.TIME_ZONE = "Europe/Berlin"
    connection.close()
    try:
        days = [(line["day"], line["requests"]) for line in _json(*MAY, "--by", "day")["lines"]]
        hours = [line["hour"] for line in _json(*MAY, "--by", "hour")["lines"]]
    finally:
        connection.close()

    assert days == [("2026-05-01", 1010), ("2026-05-02", 105)]
    assert hours[:2] == ["2026-04-30T23:00Z", "2026-05-01T00:00Z"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--since", "yesterday"], "--since 'yesterday' is no ISO day or time; give 2026-05-01"),
        (["--since", "2026-13-01"], "is no ISO day or time"),
        (["--since", "2026-05-02", "--until", "2026-05-01"], "nothing lies between"),
        (["--days", "3", "--since", "2026-05-02"], "--days is for the last days"),
        (["--days", "0"], "--days is 0; give a number from 1"),
        (["--stage", "unheard-of"], "knows no stage 'unheard-of'; those that it knows: report, score"),
        (["--by", "day", "--by", "hour"], "exclude each other"),
        (["--csv", "--json"], "exclude each other"),
        (["--csv", "/nonexistent/may.csv"], "can't be written"),
    ],
)
def test_nonsense_is_told_with_the_repair(may: None, arguments: list[str], problem: str) -> None:
    """In one line, without a traceback."""
    with pytest.raises(CommandError, match=problem):
        _told(*arguments)
