"""Reads of the ledger, through the ORM on the app's own database alias.

The rows stay for years, and their index begins with the stage: every read names the stages and the hours that it is
about, so that it walks the index and no more than that window.
"""

from collections.abc import Collection, Iterator
from datetime import datetime, timedelta, tzinfo
from typing import Any

from django.conf import settings
from django.db import connections
from django.db.models import F, QuerySet, Sum
from django.db.models.functions import TruncDay
from django.utils import timezone

from singleflight_app.conf import get_settings
from singleflight_app.domain.sums import COLUMNS, Line, Sums
from singleflight_app.domain.tally import added
from singleflight_app.models import StageStat

MOST_STAGES = 1000
_BATCH = 2000

# From each stage to the next by the index; DISTINCT would read it whole.
_STAGES = """
with recursive known as (
    (select stage from singleflight_stagestat order by stage limit 1)
    union all
    select (select s.stage from singleflight_stagestat s where s.stage > known.stage order by s.stage limit 1)
    from known where known.stage is not null
)
select stage from known where stage is not null limit %s
"""
_DURATIONS = """
select s.stage, d.name, n.place, sum(n.count::bigint)
from singleflight_stagestat s,
    lateral (values ('waits', s.waits), ('runs', s.runs)) as d (name, counts),
    lateral jsonb_array_elements_text(case jsonb_typeof(d.counts) when 'array' then d.counts else '[]' end)
        with ordinality as n (count, place)
where s.stage = any(%s) and s.hour >= %s and s.hour < %s
group by 1, 2, 3 order by 1, 2, 3
"""

Durations = dict[str, tuple[list[int], list[int]]]


def stages() -> list[str]:
    """Return the stages that the ledger knows, at most `MOST_STAGES`."""
    alias = get_settings().database
    if connections[alias].vendor != "postgresql":
        names = StageStat.objects.using(alias).order_by("stage").values_list("stage", flat=True).distinct()
        return list(names[:MOST_STAGES])
    with connections[alias].cursor() as cursor:
        cursor.execute(_STAGES, [MOST_STAGES])
        return [row[0] for row in cursor.fetchall()]


def lines(known: Collection[str], since: datetime, until: datetime, *, by: tuple[str, ...], zone: tzinfo) -> list[Line]:
    """Return the sums of stages from `since` on and before `until`, each of what `by` names: stage, hour or day.

    An hour belongs to the day, in `zone`, in which it begins.
    """
    columns: dict[str, Any] = {"stage": F("stage")} if "stage" in by else {}
    if "day" in by:
        columns["at"] = TruncDay("hour", tzinfo=zone if settings.USE_TZ else None)
    elif "hour" in by:
        columns["at"] = F("hour")
    of = {f"of_{name}": expression for name, expression in columns.items()}
    rows: Any = _rows(known, since, until).values(**of)  # of columns that only the caller knows
    rows = rows.annotate(**{f"sum_{name}": Sum(name) for name in COLUMNS}).order_by(*sorted(of))
    return [_line(row, "of_", "sum_") for row in rows]


def hours(known: Collection[str], since: datetime, until: datetime) -> Iterator[Line]:
    """Yield each stage's hours one by one, stage after stage; however many there are, few are in memory."""
    for stage in known:
        after = since
        while rows := list(_rows([stage], after, until).order_by("hour").values("stage", "hour", *COLUMNS)[:_BATCH]):
            found = [_line({**row, "at": row["hour"]}) for row in rows]
            yield from found
            if len(found) < _BATCH or found[-1].at is None:
                break
            after = found[-1].at + timedelta(hours=1)


def durations(known: Collection[str], since: datetime, until: datetime) -> Durations:
    """Return by stage how many waits, and how many durations of calls, lie between two of `DURATION_BOUNDS`."""
    alias = get_settings().database
    found: Durations = {}
    if connections[alias].vendor != "postgresql":
        for stage, waits, runs in _rows(known, since, until).values_list("stage", "waits", "runs"):
            so_far = found.get(stage, ([], []))
            found[stage] = added(so_far[0], waits), added(so_far[1], runs)
        return found
    with connections[alias].cursor() as cursor:
        cursor.execute(_DURATIONS, [list(known), _stored(since), _stored(until)])
        for stage, name, _place, count in cursor.fetchall():
            found.setdefault(stage, ([], []))[0 if name == "waits" else 1].append(int(count))
    return found


def _rows(known: Collection[str], since: datetime, until: datetime) -> QuerySet[StageStat]:
    rows = StageStat.objects.using(get_settings().database)
    return rows.filter(stage__in=list(known), hour__gte=_stored(since), hour__lt=_stored(until))


def _line(row: dict[str, Any], of: str = "", summed: str = "") -> Line:
    at = row.get(f"{of}at")
    return Line(row.get(f"{of}stage"), _aware(at), Sums(**{name: row[f"{summed}{name}"] for name in COLUMNS}))


def _stored(moment: datetime) -> datetime:
    """Return a time as this project's queries take it."""
    return moment if settings.USE_TZ else timezone.make_naive(moment, timezone.get_default_timezone())


def _aware(moment: datetime | None) -> datetime | None:
    if moment is None or timezone.is_aware(moment):
        return moment
    return timezone.make_aware(moment, timezone.get_default_timezone())
