"""Reads for people and dashboards, through the ORM on the app's own database alias.

Nothing here is needed to coordinate, and no read is unbounded: lists reach back a fixed number of rows,
counts stop at a limit, and what no index finds is looked for among the newest rows only.
"""

import re
from collections.abc import Collection
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypedDict

from django.db import connections
from django.db.models import DurationField, ExpressionWrapper, F, QuerySet
from django.db.models.functions import Now

from singleflight_app.conf import get_settings
from singleflight_app.domain.states import LIVE, Status
from singleflight_app.models import Flight, FlightEvent, StageStat

if TYPE_CHECKING:
    from django_stubs_ext import WithAnnotations

#: a list of settled flights reaches back this many rows per status
VIEW_DEPTH = 10_000
#: a search by scope looks at the live flights and at this many of the newest rows
SEARCH_DEPTH = 100_000
SEARCH_MATCHES = 1000
EVENTS_SHOWN = 200
#: above, a count is the planner's estimate; no view of some statuses reaches it
EXACT_COUNT_MAX = 3 * VIEW_DEPTH

_DIGEST_HEX = re.compile("[0-9a-fA-F]{64}")
_ID = re.compile("[0-9]{1,18}")


class HeartbeatAge(TypedDict):
    """What `flights` adds to a row."""

    heartbeat_age: timedelta | None  #: by the database clock, which judges the lease


def flights() -> "QuerySet[WithAnnotations[Flight, HeartbeatAge]]":
    """Return all flights without the bytes of their results and arguments."""
    age = ExpressionWrapper(Now() - F("heartbeat_at"), output_field=DurationField())
    rows = Flight.objects.using(get_settings().database)
    return rows.defer("result", "arguments").annotate(heartbeat_age=age)


def having(rows: QuerySet[Flight], statuses: Collection[Status]) -> QuerySet[Flight]:
    """Return those of `rows` that are among the newest `VIEW_DEPTH` of each status."""
    # One short walk down the (status, -generation) index per status. Left to filter by several statuses in the order
    # of ids, PostgreSQL may walk the whole table when the matching rows are old.
    newest = [_rows().filter(status=status).order_by("-generation").values("pk")[:VIEW_DEPTH] for status in statuses]
    if not connections[get_settings().database].features.supports_slicing_ordering_in_compound:
        return rows.filter(status__in=statuses)
    return rows.filter(pk__in=newest[0].union(*newest[1:], all=True))


def matching(rows: QuerySet[Flight], text: str) -> QuerySet[Flight]:
    """Return those of `rows` whose id, key digest (hexadecimal) or scope (in `SEARCH_DEPTH`) is `text`."""
    found = set(_of_scope(text))
    if _ID.fullmatch(text):
        found.add(int(text))
    if _DIGEST_HEX.fullmatch(text):
        found.update(_rows().filter(digest=bytes.fromhex(text)).values_list("pk", flat=True))
    return rows.filter(pk__in=found)


def events_of(flight_id: int) -> QuerySet[FlightEvent]:
    """Return the newest audit rows of a flight, newest first."""
    events = FlightEvent.objects.using(get_settings().database).filter(flight_id=flight_id)
    return events.order_by("-id")[:EVENTS_SHOWN]


def stage_stats() -> QuerySet[StageStat]:
    """Return the ledger's rows."""
    return StageStat.objects.using(get_settings().database)


def count(rows: QuerySet[Any]) -> int:
    """Return how many rows there are: exact up to `EXACT_COUNT_MAX`, the table's estimate above."""
    exact = rows.order_by().values("pk")[: EXACT_COUNT_MAX + 1].count()
    connection, table = connections[rows.db], rows.model._meta.db_table
    if exact <= EXACT_COUNT_MAX or connection.vendor != "postgresql":
        return exact
    with connection.cursor() as cursor:
        cursor.execute("select reltuples from pg_class where oid = %s::regclass", [table])
        return max(exact, int(cursor.fetchone()[0]))


def _rows() -> QuerySet[Flight]:
    return Flight.objects.using(get_settings().database)


def _of_scope(scope: str) -> list[int]:
    """Return the flights of a scope; it has no index, so two parts that have one are looked through."""
    newest = _rows().order_by("-id").values_list("pk", flat=True).first() or 0
    parts = (_rows().filter(status__in=LIVE), _rows().filter(pk__gt=newest - SEARCH_DEPTH))
    return [
        pk
        for part in parts
        for pk in part.filter(scope=scope).order_by("-id").values_list("pk", flat=True)[:SEARCH_MATCHES]
    ]
