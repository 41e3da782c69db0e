"""`manage.py singleflight_ledger`: what flights cost and what sharing them saved, as a table, CSV or JSON."""

import json
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db.utils import Error
from django.utils import timezone

from singleflight_app.dashboard import Window, midnight
from singleflight_app.domain.sums import COLUMNS, Line, Sums, csv_lines, exact, label, total
from singleflight_app.storage import sums

_GROUPS = ("stage", "day", "hour")
_TABLE = {
    "requests": "requests",
    "calls": "calls",
    "ratio": "per call",
    "followers": "followers",
    "replays": "replays",
    "failures": "failures",
    "duplicates": "duplicates",
    "fenced": "refused",
    "wait_timeouts": "gave up",
    "tokens_saved": "tokens saved",
    "cost_spent": "spent",
    "cost_saved": "saved",
    "cost_wasted": "wasted",
}
_DAYS_MAX = 36_600


@dataclass(frozen=True, slots=True)
class _Asked:
    window: Window
    stages: list[str]
    by: tuple[str, ...]


class Command(BaseCommand):
    """Reads the ledger; each process adds to it every few seconds."""

    help = (
        "Tells what flights cost and what sharing them saved: requests, calls, tokens and money. "
        "A call is counted when it ends. Days are those of TIME_ZONE, hours are in UTC; money is exact, "
        "in the currency of your prices."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
        add = parser.add_argument
        add("--days", type=int, help="the last N days, today included (default: 30)")
        add("--since", help="from this ISO day or time on: 2026-05-01, 2026-05-01T12:00+02:00")
        add("--until", help="up to this ISO day, included, or this time, excluded (default: the end of today)")
        add("--stage", action="append", default=[], help="only this stage; may be repeated")
        add(
            "--by",
            action="append",
            choices=_GROUPS,
            help="a line for each: stage (default), day or hour; may be repeated",
        )
        add("--csv", metavar="FILE", nargs="?", const="-", help="write CSV to FILE, or to the standard output (-)")
        add("--json", action="store_true", help="print JSON; money as text, so that it stays exact")

    def handle(self, *args: Any, **options: Any) -> None:  # noqa: ANN401  (Django's signature)
        """Read, and print."""
        options_named = Namespace(**options)
        if options_named.csv and options_named.json:
            raise CommandError("--csv and --json exclude each other; give one of them")
        try:
            asked = _asked(options_named, sums.stages())
            lines = sums.lines(
                asked.stages, asked.window.since, asked.window.until, by=asked.by, zone=asked.window.zone
            )
        except Error as exc:
            problem = str(exc).strip().splitlines()[0]
            raise CommandError(f"the ledger could not be read: {problem}; is `manage.py migrate` done?") from exc
        if options_named.csv:
            self._write_csv(csv_lines(lines, by=asked.by), options_named.csv)
        elif options_named.json:
            self.stdout.write(json.dumps(_as_json(lines, asked), indent=2, ensure_ascii=False))
        else:
            self._print_table(lines, asked)

    def _write_csv(self, rows: Iterable[str], name: str) -> None:
        if name == "-":
            for row in rows:
                self.stdout.write(row, ending="")
            return
        try:
            with Path(name).open("w", encoding="utf-8", newline="") as file:
                file.writelines(rows)
        except OSError as exc:
            raise CommandError(f"{name} can't be written: {exc.strerror}") from exc
        self.stderr.write(f"written to {name}")

    def _print_table(self, lines: Sequence[Line], asked: _Asked) -> None:
        if not lines:
            self.stdout.write(
                "No flight was counted in this time: call a decorated function, wait a few seconds for its process "
                "to add what it counted, or give an earlier --since."
            )
            return
        head = [*asked.by, *_TABLE.values()]
        rows = [[*(_named(line, name) for name in asked.by), *_cells(line.sums)] for line in lines]
        foot = ["all", *[""] * (len(asked.by) - 1), *_cells(total(lines))]
        if not _print_rich(head, rows, foot, self.stdout, len(asked.by)):
            _print_plain(head, rows, foot, self.stdout, len(asked.by))


def _asked(options: Namespace, known: list[str]) -> _Asked:
    unknown = [stage for stage in options.stage if stage not in known]
    if unknown:
        there = ", ".join(known) or "none yet"
        raise CommandError(f"the ledger knows no stage {unknown[0]!r}; those that it knows: {there}")
    by = tuple(name for name in _GROUPS if name in (options.by or ["stage"]))
    if {"day", "hour"} <= set(by):
        raise CommandError("--by day and --by hour exclude each other; give one of them")
    return _Asked(_window(options), options.stage or known, by)


def _window(options: Namespace) -> Window:
    if options.days is not None and (options.since or options.until):
        raise CommandError("--days is for the last days; with --since and --until leave it out")
    days = 30 if options.days is None else options.days
    if not 1 <= days <= _DAYS_MAX:
        raise CommandError(f"--days is {days}; give a number from 1 to {_DAYS_MAX}")
    window = Window.of_days(days)
    since = _moment("--since", options.since) if options.since else window.since
    until = _moment("--until", options.until, is_end=True) if options.until else window.until
    if since >= until:
        raise CommandError(f"nothing lies between {since.isoformat()} and {until.isoformat()}; give an earlier --since")
    return Window(since, until, "hour", window.zone)


def _moment(option: str, text: str, *, is_end: bool = False) -> datetime:
    zone = timezone.get_current_timezone()
    try:
        if len(text) == len("2026-05-01"):
            day = date.fromisoformat(text)
            return midnight(datetime(day.year, day.month, day.day, tzinfo=zone), days=int(is_end))
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=zone)).astimezone(UTC)
    except (ValueError, OverflowError) as exc:
        raise CommandError(
            f"{option} {text!r} is no ISO day or time; give 2026-05-01 or 2026-05-01T12:00+02:00"
        ) from exc


def _named(line: Line, name: str) -> str:
    # A terminal runs no formula.
    return line.stage or "" if name == "stage" else label(line, name)


def _cells(of: Sums) -> list[str]:
    special = {"ratio": "-" if of.merge_ratio is None else f"{of.merge_ratio:.2f}", "duplicates": str(of.duplicates)}
    return [special.get(name) or exact(getattr(of, name)) for name in _TABLE]


def _as_json(lines: Sequence[Line], asked: _Asked) -> dict[str, Any]:
    return {
        "since": asked.window.since.isoformat(),
        "until": asked.window.until.isoformat(),
        "lines": [{**{name: _named(line, name) for name in asked.by}, **_numbers(line.sums)} for line in lines],
        "total": _numbers(total(lines)),
    }


def _numbers(of: Sums) -> dict[str, int | str]:
    values = zip(COLUMNS, astuple(of), strict=True)
    return {name: value if isinstance(value, int) else exact(value) for name, value in values}


def _print_plain(head: list[str], rows: list[list[str]], foot: list[str], out: Any, texts: int) -> None:  # noqa: ANN401
    """Print columns that stand under each other, the first `texts` to the left and numbers to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(head, *rows, foot, strict=True)]
    for row in (head, *rows, foot):
        cells = [
            cell.ljust(width) if place < texts else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        out.write("  ".join(cells).rstrip())


def _print_rich(head: list[str], rows: list[list[str]], foot: list[str], out: Any, texts: int) -> bool:  # noqa: ANN401
    """Print a table if `rich` is installed and somebody looks; False: neither."""
    try:
        from rich.console import Console  # noqa: PLC0415  (an extra)
        from rich.table import Table  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415
    except ImportError:
        return False
    console = Console(file=out)
    if not console.is_terminal:
        return False
    table = Table(show_footer=True, header_style="bold", footer_style="bold")
    for place, (title, last) in enumerate(zip(head, foot, strict=True)):
        table.add_column(title, Text(last), justify="left" if place < texts else "right", no_wrap=place >= texts)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)
    return True
