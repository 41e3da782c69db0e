"""`manage.py purge_flights`: delete expired outcomes and old audit rows.

Safe to run at any time, beside a running cluster, twice at once, and to stop anywhere.
"""

import re
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import connections

from singleflight_app.conf import Settings, get_settings
from singleflight_app.domain.exceptions import CoordinationUnavailable
from singleflight_app.domain.purging import SETTLED, Purged, PurgePlan
from singleflight_app.domain.states import Status
from singleflight_app.engine.large import LargeResults
from singleflight_app.engine.maintenance import purge
from singleflight_app.storage.blobs import PostgresBlobNotes
from singleflight_app.storage.pool import Database
from singleflight_app.storage.purging import ExpiredRows
from singleflight_app.wiring import blobs_of

_DURATION = re.compile(r"(\d{1,8})([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_OLDEST = timedelta(days=3653)


class Command(BaseCommand):
    """Deletes in short batches, passing over locked rows; live flights and unexpired outcomes stay."""

    help = (
        "Deletes settled flights whose outcome has expired, and audit rows past EVENT_RETENTION. "
        "A flight stays for the longest wait_timeout past its expiry: followers may still come for it. "
        "With a BLOB_STORAGE, files of results that no flight needs go too."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
        add = parser.add_argument
        add("--older-than", default="0s", help="expired at least this long ago: 30m, 12h, 7d (default: 0s)")
        add("--stage", action="append", default=[], help="only this stage; may be repeated")
        add("--status", action="append", default=[], help="only this status of flights; may be repeated")
        add("--batch-size", type=int, default=1000, help="rows per statement and commit (default: 1000)")
        add("--max-seconds", type=float, help="begin no batch after this time")
        add("--dry-run", action="store_true", help="count, delete nothing")
        add("--database", help="alias (default: the DATABASE of SINGLEFLIGHT)")

    def handle(self, *args: Any, **options: Any) -> None:  # noqa: ANN401  (Django's signature)
        """Purge, or count, and print one line."""
        settings = _settings(options["database"])
        plan = _plan(options, settings)
        with closing(Database(settings)) as database, _explained():
            rows = ExpiredRows(database)
            if options["dry_run"]:
                self.stdout.write(_would_purge(rows.count(plan)))
                return
            started_at = time.monotonic()
            large = LargeResults(PostgresBlobNotes(database), blobs_of(settings))
            purged = self._watch(purge(rows, large, plan))
            self.stdout.write(_purged(purged, time.monotonic() - started_at))

    def _watch(self, progress: Iterable[Purged]) -> Purged:
        """Run a purge to its end, telling how far it is where somebody watches."""
        with _status(self.stdout) as tell:
            last = Purged(0, 0, 0, is_complete=False)
            for last in progress:
                tell(f"purged {_counted(last)}")
            return last


def _settings(alias: str | None) -> Settings:
    settings = get_settings()
    settings = replace(settings, database=alias or settings.database)
    if settings.database not in connections.settings:
        known = ", ".join(sorted(connections.settings))
        raise CommandError(f"--database {settings.database!r} is no alias of DATABASES; use one of: {known}")
    vendor = connections[settings.database].vendor
    if vendor != "postgresql":
        raise CommandError(
            f"database {settings.database!r} is {vendor}, and flights are kept in PostgreSQL only; "
            "name a PostgreSQL alias with --database"
        )
    return settings


def _plan(options: dict[str, Any], settings: Settings) -> PurgePlan:
    if options["batch_size"] < 1:
        raise CommandError(f"--batch-size is {options['batch_size']}; give a number from 1 on, such as 1000")
    max_seconds = options["max_seconds"]
    if max_seconds is not None and not 0 < max_seconds < float("inf"):
        raise CommandError(f"--max-seconds is {max_seconds:g}; give a number of seconds above zero")
    return PurgePlan(
        older_than=_duration(options["older_than"]),
        wait_timeout_max=settings.wait_timeout_max,
        event_retention=settings.event_retention,
        stages=tuple(options["stage"]),
        statuses=tuple(_status_named(name) for name in options["status"]) or SETTLED,
        batch_size=options["batch_size"],
        max_seconds=max_seconds,
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
def _explained() -> Iterator[None]:
    try:
        yield
    except CoordinationUnavailable as exc:
        raise CommandError(f"{exc} (what was purged before stays purged; run the command again)") from exc


@contextmanager
def _status(stream: Any) -> Iterator[Callable[[str], None]]:  # noqa: ANN401  (Django's OutputWrapper passes on what it wraps)
    """Give a function that shows a changing line on a terminal with `rich`, and shows nothing elsewhere."""
    try:
        from rich.console import Console  # noqa: PLC0415  (not needed to purge)
    except ImportError:
        yield lambda _text: None
        return
    console = Console(file=stream)
    if not console.is_terminal:
        yield lambda _text: None
        return
    with console.status("purging") as status:
        yield status.update


def _purged(purged: Purged, seconds: float) -> str:
    line = f"purged {_counted(purged)} in {seconds:.1f} s"
    return line if purged.is_complete else f"{line}; time was up, more may remain"


def _counted(purged: Purged) -> str:
    files = f", and deleted {purged.blobs} files of results" if purged.blobs else ""
    return f"{purged.flights} flights and {purged.events} audit rows{files}"


def _would_purge(counted: Purged) -> str:
    line = f"would purge {_counted(counted)}"
    return line if counted.is_complete else f"{line}, or more: counting stopped there"
