"""`manage.py purge_flights`: delete expired outcomes and old audit rows; erase what a person asks to have erased.

Safe to run at any time, beside a running cluster, twice at once, and to stop anywhere.
"""

import json
import re
import time
from argparse import ArgumentParser
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from singleflight_app.conf import Settings
from singleflight_app.domain.exceptions import CoordinationUnavailable
from singleflight_app.domain.purging import NOTHING, SETTLED, Purged, PurgePlan
from singleflight_app.domain.states import Status
from singleflight_app.engine.erasing import Floors
from singleflight_app.engine.large import LargeResults
from singleflight_app.engine.maintenance import purge
from singleflight_app.management.databases import settings_with
from singleflight_app.storage.blobs import PostgresBlobNotes
from singleflight_app.storage.pool import Database
from singleflight_app.storage.purging import ExpiredRows
from singleflight_app.wiring import blobs_of, redis_of

INTERRUPTED = 130  #: exit code after Ctrl-C, as shells know it
_DURATION = re.compile(r"(\d{1,8})([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_OLDEST = timedelta(days=3653)


class Command(BaseCommand):
    """Deletes in short batches, passing over locked rows; live flights stay, unexpired outcomes unless told."""

    help = (
        "Deletes settled flights whose outcome has expired, and audit rows past EVENT_RETENTION. "
        "A flight stays for the longest wait_timeout past its expiry: followers may still come for it. "
        "With a BLOB_STORAGE, files of results that no flight needs go too. "
        "To erase what is kept of one person: --scope SCOPE --unexpired. "
        "Exit code 0: done, or time was up; 1: a server gave no answer; 130: stopped by Ctrl-C. "
        "Whatever the code, what was purged stays purged, and the command can be run again."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
        add = parser.add_argument
        add(
            "--older-than",
            default="0s",
            help="expired at least this long ago: 30m, 12h, 7d (default: 0s); with --unexpired, settled so long ago",
        )
        add("--stage", action="append", default=[], help="only this stage; may be repeated")
        add("--status", action="append", default=[], help="only this status of flights; may be repeated")
        add(
            "--scope",
            help="only flights of exactly this scope, and no audit rows, which hold none; there is no index on scopes, "
            "so this walks through all flights, in bounded statements",
        )
        add(
            "--unexpired",
            action="store_true",
            help="also outcomes in their TTL, from Redis and the memory of processes too; live flights stay",
        )
        add("--batch-size", type=int, default=1000, help="rows per statement and commit (default: 1000)")
        add("--max-seconds", type=float, help="begin no batch after this time")
        add("--dry-run", action="store_true", help="count, delete nothing")
        add("--json", action="store_true", help="print one JSON object instead of the line, and no progress")
        add("--database", help="alias (default: the DATABASE of SINGLEFLIGHT)")

    def handle(self, *args: Any, **options: Any) -> None:  # noqa: ANN401  (Django's signature)
        """Purge, or count, and say in the end what was done."""
        settings = settings_with(options["database"])
        plan = _plan(options, settings)
        started_at = time.monotonic()
        done, is_stopped = NOTHING, False
        with closing(Database(settings)) as database:
            try:
                with closing(self._steps(database, settings, plan, options)) as steps:
                    for step in steps:
                        done = step
            except KeyboardInterrupt:
                is_stopped = True
            except CoordinationUnavailable as exc:
                raise CommandError(
                    f"{exc} (until then {_counted(done)} were purged, and stay so; run the command again)"
                ) from exc
        self._say(done, time.monotonic() - started_at, options, is_stopped=is_stopped)
        if is_stopped:
            raise SystemExit(INTERRUPTED)

    def _steps(
        self, database: Database, settings: Settings, plan: PurgePlan, options: dict[str, Any]
    ) -> Generator[Purged, None, None]:
        """Yield the sum so far, showing it where somebody watches."""
        rows = ExpiredRows(database)
        if options["dry_run"]:
            yield rows.count(plan)
            return
        large = LargeResults(PostgresBlobNotes(database), blobs_of(settings))
        floors = Floors(*redis_of(settings))
        with closing(floors.notifier), _progress(None if options["json"] else self.stdout, rows, plan) as show:
            for done in purge(rows, large, plan, floors=floors):
                show(done)
                yield done

    def _say(self, done: Purged, seconds: float, options: dict[str, Any], *, is_stopped: bool) -> None:
        is_dry = options["dry_run"]
        if options["json"]:
            facts = {"flights": done.flights, "events": done.events, "blobs": done.blobs, "seconds": round(seconds, 3)}
            left = {"left": done.left} if options["scope"] is not None else {}
            self.stdout.write(json.dumps({**facts, "complete": done.is_complete, "dry_run": is_dry, **left}))
        elif is_dry:
            self.stdout.write(_would_purge(done) + _left(done))
        else:
            self.stdout.write(_purged(done, seconds, is_stopped=is_stopped) + _left(done))


def _plan(options: dict[str, Any], settings: Settings) -> PurgePlan:
    if options["batch_size"] < 1:
        raise CommandError(f"--batch-size is {options['batch_size']}; give a number from 1 on, such as 1000")
    max_seconds = options["max_seconds"]
    if max_seconds is not None and not 0 < max_seconds < float("inf"):
        raise CommandError(f"--max-seconds is {max_seconds:g}; give a number of seconds above zero")
    if options["scope"] == "":
        raise CommandError("--scope is empty, and no flight has an empty scope; give the scope as the flight has it")
    return PurgePlan(
        older_than=_duration(options["older_than"]),
        wait_timeout_max=settings.wait_timeout_max,
        event_retention=settings.event_retention,
        stages=tuple(options["stage"]),
        statuses=tuple(_status_named(name) for name in options["status"]) or SETTLED,
        batch_size=options["batch_size"],
        max_seconds=max_seconds,
        unexpired=options["unexpired"],
        scope=options["scope"],
    )


def _duration(text: str) -> timedelta:
    found = _DURATION.fullmatch(text)
    if found is None:
        raise CommandError(f"--older-than {text!r} is no duration; give a number and a unit: 45s, 30m, 12h or 7d")
    duration = timedelta(**{_UNITS[found[2]]: int(found[1])})
    if duration > _OLDEST:
        raise CommandError(f"--older-than {text!r} is more than ten years; give a shorter time")
    return duration


def _status_named(name: str) -> Status:
    if name in SETTLED:
        return Status(name)
    raise CommandError(f"--status {name!r} can't be purged; use one of: {', '.join(SETTLED)}")


@contextmanager
def _progress(stream: Any, rows: ExpiredRows, plan: PurgePlan) -> Iterator[Callable[[Purged], None]]:  # noqa: ANN401  (Django's OutputWrapper passes on what it wraps)
    """Give a function that shows a bar on a terminal with `rich`, and shows nothing elsewhere."""
    try:
        from rich.console import Console  # noqa: PLC0415  (not needed to purge)
        from rich.progress import Progress  # noqa: PLC0415
    except ImportError:
        yield lambda _done: None
        return
    console = Console(file=stream)
    if stream is None or not console.is_terminal:
        yield lambda _done: None
        return
    with Progress(*_columns(), console=console, transient=True) as progress:
        task = progress.add_task("purging", total=_total(rows, plan))
        yield lambda done: progress.update(
            task, completed=done.flights + done.events, description=f"purged {_counted(done)}"
        )


def _columns() -> tuple[Any, ...]:
    from rich import progress  # noqa: PLC0415

    bar, count = progress.BarColumn(), progress.MofNCompleteColumn()
    return progress.TextColumn("{task.description}"), bar, count, progress.TimeElapsedColumn()


def _total(rows: ExpiredRows, plan: PurgePlan) -> int | None:
    """Return how many rows will go, where one short statement tells; None: the bar moves without an end."""
    if plan.walks:
        return None
    counted = rows.count(plan)
    return counted.flights + counted.events if counted.is_complete else None


def _purged(purged: Purged, seconds: float, *, is_stopped: bool) -> str:
    line = f"purged {_counted(purged)} in {seconds:.1f} s"
    if is_stopped:
        return f"stopped: {line}, and the batch that was under way, or not; more may remain, run the command again"
    return line if purged.is_complete else f"{line}; time was up, more may remain"


def _counted(purged: Purged) -> str:
    files = f", and deleted {purged.blobs} files of results" if purged.blobs else ""
    return f"{purged.flights} flights and {purged.events} audit rows{files}"


def _left(purged: Purged) -> str:
    if not purged.left:
        return ""
    return f"; {purged.left} flights of the scope stay: live, in use, or kept back by the options; run it again later"


def _would_purge(counted: Purged) -> str:
    line = f"would purge {_counted(counted)}"
    return line if counted.is_complete else f"{line}, or more: counting stopped there"
