"""What the dashboard and the ledger's command tell, gathered by a few bounded reads; no page is made here."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, NamedTuple

from django.db.models import Aggregate, Count, DurationField, ExpressionWrapper, F, Max, Q
from django.db.models.functions import Now
from django.utils import timezone

from singleflight_app.conf import Settings, get_settings
from singleflight_app.domain.exceptions import seconds
from singleflight_app.domain.states import LIVE, Status
from singleflight_app.domain.sums import Line, Sums, total
from singleflight_app.domain.tally import percentile
from singleflight_app.health import Finding, glance
from singleflight_app.models import Flight
from singleflight_app.storage import sums

WINDOWS = {"today": 1, "7d": 7, "30d": 30}  #: days, the current one included
MOST_STAGES_LIVE = 100
HEALTH_FOR = 5.0  #: seconds that a look at the servers is shown
_HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Window:
    """From `since` on and before `until` (both UTC), in steps of an hour, or of a day in `zone`."""

    since: datetime
    until: datetime
    by: str
    zone: tzinfo

    @classmethod
    def of_days(cls, days: int, now: datetime | None = None) -> "Window":
        """Return the last days up to the end of today, in the current time zone; one day goes by hours."""
        zone = timezone.get_current_timezone()
        today = (now or datetime.now(UTC)).astimezone(zone)
        return cls(midnight(today, days=1 - days), midnight(today, days=1), "hour" if days == 1 else "day", zone)

    def steps(self) -> Iterator[datetime]:
        """Yield where each step begins, in UTC: a day has 23 hours or 25 when the clock is changed."""
        step = self.since
        while step < self.until:
            yield step
            step = step + _HOUR if self.by == "hour" else midnight(step.astimezone(self.zone), days=1)


def midnight(moment: datetime, *, days: int = 0) -> datetime:
    """Return, in UTC, the beginning of the day of an aware time, or of one so many days later in its time zone."""
    day = moment.replace(hour=0, minute=0, second=0, microsecond=0, fold=0) + timedelta(days=days)
    return day.astimezone(UTC)


class LiveStage(NamedTuple):
    """A stage's flights in flight, by the database clock."""

    stage: str
    running: int
    stuck: int  #: of the running ones: the lease is over and nobody took over
    pending: int
    is_overdue: bool  #: no worker came in time for a pending one
    longest_run: timedelta | None
    longest_overdue: timedelta | None  #: since the lease ended
    longest_pending: timedelta | None


@dataclass(frozen=True, slots=True)
class StageLine:
    """One line of the table of stages; durations are seconds, infinite above the last bound, None without any."""

    stage: str
    sums: Sums
    wait_p50: float | None = None
    wait_p95: float | None = None
    run_p50: float | None = None
    run_p95: float | None = None


@dataclass(frozen=True)
class Dashboard:
    """All that the page shows."""

    window: Window
    tiles: dict[str, Sums]
    stages: list[StageLine]
    whole: Sums
    steps: list[tuple[datetime, Sums]]
    live: list[LiveStage] = field(default_factory=list)


def gathered(name: str, now: datetime | None = None) -> Dashboard:
    """Return the dashboard of one of `WINDOWS`."""
    known = sums.stages()
    windows = {tile: Window.of_days(days, now) for tile, days in WINDOWS.items()}
    chosen, longest = windows[name], windows["30d"]
    days = sums.lines(known, longest.since, longest.until, by=("day",), zone=longest.zone)
    hours = [] if chosen.by == "day" else sums.lines(known, chosen.since, chosen.until, by=("hour",), zone=chosen.zone)
    by_stage = sums.lines(known, chosen.since, chosen.until, by=("stage",), zone=chosen.zone)
    spread = sums.durations(known, chosen.since, chosen.until)
    return Dashboard(
        window=chosen,
        tiles={tile: _since(days, of.since) for tile, of in windows.items()},
        stages=[_stage_line(line, *spread.get(line.stage or "", ([], []))) for line in by_stage],
        whole=total(by_stage),
        steps=_filled(chosen, days if chosen.by == "day" else hours),
        live=live(),
    )


def _since(days: list[Line], since: datetime) -> Sums:
    return total(day for day in days if day.at is not None and day.at >= since)


def _stage_line(line: Line, waits: list[int], runs: list[int]) -> StageLine:
    shares = [percentile(counts, share) for counts in (waits, runs) for share in (0.5, 0.95)]
    return StageLine(line.stage or "", line.sums, *shares)


def _filled(chosen: Window, found: list[Line]) -> list[tuple[datetime, Sums]]:
    """Return every step of the window, empty ones too; an hour that begins inside a step belongs to it."""
    steps = {step: Sums() for step in chosen.steps()}
    for line in found:
        begun = [step for step in steps if line.at is not None and step <= line.at < chosen.until]
        if begun:
            steps[begun[-1]] += line.sums
    return list(steps.items())


def live() -> list[LiveStage]:
    """Return the stages that have flights in flight, those with the most first."""
    running, pending = (Q(status=status.value) for status in (Status.RUNNING, Status.PENDING))
    rows = (
        Flight.objects.using(get_settings().database)
        .filter(status__in=sorted(status.value for status in LIVE))
        .values("stage")
        .annotate(
            running=Count("pk", filter=running),
            pending=Count("pk", filter=pending),
            stuck=Count("pk", filter=running & Q(lease_expires_at__lte=Now())),
            longest_run=_longest("started_at", running),
            longest_overdue=_longest("lease_expires_at", running),
            longest_pending=_longest("created_at", pending),
        )
        .order_by("-running", "-pending", "stage")[:MOST_STAGES_LIVE]
    )
    return [_live_stage(dict(row)) for row in rows]


def _longest(column: str, rows: Q) -> Aggregate:
    return Max(ExpressionWrapper(Now() - F(column), output_field=DurationField()), filter=rows)


def _live_stage(row: dict[str, Any]) -> LiveStage:
    patience = timedelta(seconds=seconds(get_settings().policy(row["stage"]).pending_timeout))
    longest = row["longest_pending"]
    return LiveStage(**row, is_overdue=longest is not None and longest >= patience)


class _Looked:
    """What was found when somebody looked last."""

    settings: Settings | None = None
    until = float("-inf")
    found: Sequence[Finding] = ()


def health() -> Sequence[Finding]:
    """Return what the servers say of themselves, the worst first; looked at every few seconds, however many watch."""
    settings = get_settings()
    if settings is not _Looked.settings or time.monotonic() >= _Looked.until:
        found = sorted(glance(), key=lambda finding: -finding.level.rank)
        _Looked.settings, _Looked.until, _Looked.found = settings, time.monotonic() + HEALTH_FOR, found
    return _Looked.found
