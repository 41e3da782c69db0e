"""`manage.py flights`: who is in the air just now, by the database's clock, and what is stuck."""

import json
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from singleflight_app.domain.exceptions import CoordinationUnavailable
from singleflight_app.domain.watching import LiveFlight, Watched
from singleflight_app.management.databases import settings_with
from singleflight_app.management.tables import columns, duration, printable
from singleflight_app.storage.pool import Database
from singleflight_app.storage.watching import watch

EVERY = 2.0  #: seconds between two looks
_LEAST, _MOST = 0.1, 3600.0
_HEAD = (
    *("id", "stage", "status", "owner", "age", "last beat", "lease left", "generation", "attempts", "joins"),
    *("progress", ""),
)
Look = Callable[[], Watched]
Show = Callable[[str], None]


class Command(BaseCommand):
    help = (
        "Shows the flights that run or wait for a worker, stuck ones first: their lease is over and nobody took over, "
        "or no worker came within pending_timeout. Scopes are not shown, for they may name a person."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
        add = parser.add_argument
        add("--stage", action="append", default=[], help="only this stage; may be repeated")
        add("--stuck", action="store_true", help="only stuck ones")
        add("--limit", type=int, default=100, help="at most so many (default: 100)")
        add("--json", action="store_true", help="print one JSON object, with --watch one a line and look")
        add("--watch", nargs="?", type=float, const=EVERY, metavar="SECONDS", help="look again, until Ctrl-C")
        add("--database", help="alias (default: the DATABASE of SINGLEFLIGHT)")

    def handle(self, *args: Any, **options: Any) -> None:  # noqa: ANN401  (Django's signature)
        """Show the live flights once, or again and again."""
        settings = settings_with(options["database"])
        if options["limit"] < 1:
            raise CommandError(f"--limit is {options['limit']}; give a number from 1 on, such as 100")
        every = options["watch"]
        if every is not None and not _LEAST <= every <= _MOST:
            raise CommandError(f"--watch is {every:g}; give a number of seconds from {_LEAST:g} to {_MOST:g}")
        with closing(Database(settings)) as database:
            chosen = {"stages": options["stage"], "only_stuck": options["stuck"], "limit": options["limit"]}
            look = partial(watch, database, policies=settings.stages, defaults=settings.defaults, **chosen)
            if every is not None:
                self._watch(look, every, as_json=options["json"])
                return
            try:
                watched = look()
            except CoordinationUnavailable as exc:
                raise CommandError(f"{exc}; `manage.py singleflight_doctor` looks for the reason") from exc
            self.stdout.write(_json(watched) if options["json"] else _text(watched))

    def _watch(self, look: Look, every: float, *, as_json: bool) -> None:
        """Look until Ctrl-C, an outage of the database included."""
        with _shown(None if as_json else self.stdout, self._write) as show:
            try:
                while True:
                    show(_looked(look, every, as_json=as_json))
                    time.sleep(every)
            except KeyboardInterrupt:
                return

    def _write(self, block: str) -> None:
        self.stdout.write(block)
        self.stdout.flush()  # a pipe's reader waits for it


def _looked(look: Look, every: float, *, as_json: bool) -> str:
    try:
        watched = look()
    except CoordinationUnavailable as exc:
        if as_json:
            return json.dumps({"error": str(exc)})
        # This machine's clock: the database's is out of reach.
        return f"{_clock(datetime.now(UTC))}  {exc}; trying again in {duration(every)}\n"
    return _json(watched) if as_json else _text(watched)


@contextmanager
def _shown(stream: Any, write: Show) -> Iterator[Show]:  # noqa: ANN401  (Django's OutputWrapper passes on what it wraps)
    """Give a function that shows a block in place of the last one on a terminal with `rich`, and below it elsewhere."""
    try:
        from rich.console import Console  # noqa: PLC0415  (an extra)
        from rich.live import Live  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415
    except ImportError:
        yield write
        return
    console = Console(file=stream)
    if stream is None or not console.is_terminal:
        yield write
        return
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:

        def show(block: str) -> None:
            text = Text(block, no_wrap=True)
            text.highlight_regex(r"(?m)^.*stuck: .*$", "bold red")
            live.update(text, refresh=True)

        yield show


def _text(watched: Watched) -> str:
    stuck = sum(1 for flight in watched.flights if flight.is_stuck)
    count = f"{'more than ' if watched.is_cut else ''}{len(watched.flights)} live flights"
    lines = [f"{_clock(watched.at)}  {count}, {stuck} stuck"]
    if watched.flights:
        lines += columns(_HEAD, [_cells(flight) for flight in watched.flights])
    if watched.is_cut:
        lines.append(f"cut after {len(watched.flights)}: narrow it by --stage or --stuck, or raise --limit")
    return "\n".join(lines) + "\n"


def _clock(at: datetime) -> str:
    return f"{timezone.localtime(at):%Y-%m-%d %H:%M:%S %Z}"


def _cells(flight: LiveFlight) -> tuple[str, ...]:
    return (
        str(flight.flight_id),
        printable(flight.stage),
        flight.status.value,
        printable(flight.node) or "-",
        *(duration(seconds) for seconds in (flight.age, flight.since_beat, flight.lease_left)),
        *(str(number) for number in (flight.generation, flight.attempts, flight.joins)),
        _progress(flight.progress),
        flight.trouble,
    )


def _progress(progress: dict[str, Any] | None) -> str:
    if not progress:
        return "-"
    fraction, text = progress.get("fraction"), printable(str(progress.get("text") or ""), 40)
    percent = f"{fraction:.0%}" if isinstance(fraction, int | float) else ""
    return f"{percent} {text}".strip() or "-"


def _json(watched: Watched) -> str:
    return json.dumps(
        {
            "at": watched.at.isoformat(),
            "flights": [
                {
                    "id": flight.flight_id,
                    "stage": flight.stage,
                    "status": flight.status.value,
                    "stuck": flight.is_stuck,
                    "owner": flight.owner,
                    "age": flight.age,
                    "since_beat": flight.since_beat,
                    "lease_left": flight.lease_left,
                    "generation": flight.generation,
                    "attempts": flight.attempts,
                    "joins": flight.joins,
                    "progress": flight.progress,
                }
                for flight in watched.flights
            ],
            "cut": watched.is_cut,
        }
    )
