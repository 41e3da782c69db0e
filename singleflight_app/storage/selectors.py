"""Reads for people and dashboards, through the ORM on the app's own database alias.

Nothing here is needed to coordinate, and no read is unbounded: counts stop at a limit, and what belongs to one flight
is found by an index. Lists of flights are in `newest`. Ages are by the database clock, which judges the leases.
"""

import re
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypedDict

from django.db import connections
from django.db.models import BooleanField, Case, DateTimeField, DurationField, ExpressionWrapper, F, Q, QuerySet, When
from django.db.models import Value as Constant
from django.db.models.functions import Coalesce, Now

from singleflight_app.conf import get_settings
from singleflight_app.domain.exceptions import seconds
from singleflight_app.domain.policy import StagePolicy
from singleflight_app.domain.states import Status
from singleflight_app.models import Flight, FlightEvent, StageStat

if TYPE_CHECKING:
    from django_stubs_ext import WithAnnotations

EVENTS_SHOWN = 200
#: above, a count is the planner's estimate
EXACT_COUNT_MAX = 30_000

_DIGEST_HEX = re.compile("[0-9a-fA-F]{64}")
_ID = re.compile("[0-9]{1,18}")


class Seen(TypedDict):
    """What `flights` adds to a row: how long ago and how far ahead its times lay when it was read."""

    seen_at: datetime
    age: timedelta  #: since it was granted, or asked for while nobody was
    heartbeat_age: timedelta | None
    lease_remaining: timedelta | None  #: below zero: over
    outcome_remaining: timedelta | None
    retry_remaining: timedelta | None
    duration: timedelta | None  #: from the grant to the end
    is_stuck: bool  #: it runs without a lease, or waits for a worker longer than `pending_timeout`


def flights() -> "QuerySet[WithAnnotations[Flight, Seen]]":
    """Return all flights without the bytes of their results and arguments."""
    rows = Flight.objects.using(get_settings().database)
    return rows.defer("result", "arguments").annotate(
        seen_at=Now(),
        age=_duration(Now() - Coalesce("started_at", "created_at")),
        heartbeat_age=_duration(Now() - F("heartbeat_at")),
        lease_remaining=_duration(F("lease_expires_at") - Now()),
        outcome_remaining=_duration(F("expires_at") - Now()),
        retry_remaining=_duration(F("retry_at") - Now()),
        duration=_duration(F("settled_at") - F("started_at")),
        is_stuck=ExpressionWrapper(stuck(), output_field=BooleanField()),
    )


def stuck() -> Q:
    """Return the condition of flights that wait for a sweep or a caller: nobody runs them any more, or ever did."""
    settings = get_settings()
    usual = _pending_timeout(settings.defaults)
    others = [
        When(stage=stage, then=Constant(_pending_timeout(policy)))
        for stage, policy in settings.stages.items()
        if _pending_timeout(policy) != usual
    ]
    limit: Any = Case(*others, default=Constant(usual), output_field=DurationField()) if others else Constant(usual)
    too_old = ExpressionWrapper(Now() - limit, output_field=DateTimeField())
    is_lost = Q(status=Status.RUNNING, lease_expires_at__lte=Now())
    return is_lost | Q(status=Status.PENDING, created_at__lte=too_old)


def younger_than(age: timedelta) -> Q:
    """Return the condition of flights that were granted, or asked for while nobody was, within `age`."""
    since = ExpressionWrapper(Now() - Constant(age), output_field=DateTimeField())
    return Q(started_at__gte=since) | Q(started_at__isnull=True, created_at__gte=since)


def owned_on(host: str) -> Q:
    """Return the condition of flights whose owner is a process of this host."""
    return Q(owner__startswith=f"{host}:")


def identified(text: str) -> set[int]:
    """Return the ids of the flights that `text` names by id or key digest (hexadecimal)."""
    found = {int(text)} if _ID.fullmatch(text) else set()
    if _DIGEST_HEX.fullmatch(text):
        rows = Flight.objects.using(get_settings().database)
        found.update(rows.filter(digest=bytes.fromhex(text)).values_list("pk", flat=True))
    return found


def events_of(flight_id: int) -> QuerySet[FlightEvent]:
    """Return the newest audit rows of a flight, newest first."""
    events = FlightEvent.objects.using(get_settings().database).filter(flight_id=flight_id)
    return events.order_by("-id")[:EVENTS_SHOWN]


def stage_stats() -> QuerySet[StageStat]:
    """Return the ledger's rows."""
    return StageStat.objects.using(get_settings().database)


def count(rows: QuerySet[Any]) -> int:
    """Return how many rows a whole table has: exact up to `EXACT_COUNT_MAX`, the planner's estimate above."""
    connection, table = connections[rows.db], rows.model._meta.db_table
    estimate = 0
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("select reltuples from pg_class where oid = %s::regclass", [table])
            estimate = int(cursor.fetchone()[0])
    if estimate > EXACT_COUNT_MAX:
        return estimate
    # The planner has not looked yet, or the table has grown since. In the order of the key, so that it is read by it.
    exact = rows.order_by("-pk").values("pk")[: EXACT_COUNT_MAX + 1].count()
    return exact if exact <= EXACT_COUNT_MAX else max(exact, estimate)


def _duration(difference: Any) -> "ExpressionWrapper[Any]":  # noqa: ANN401  (Django's expressions have no common type)
    return ExpressionWrapper(difference, output_field=DurationField())


def _pending_timeout(policy: StagePolicy) -> timedelta:
    return timedelta(seconds=seconds(policy.pending_timeout))
