"""Where flights stand as an operator's moves see it, by the database's clock; nothing of their content is read."""

from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

from django.db.models import BooleanField, Case, DurationField, ExpressionWrapper, F, Q, Value, When
from django.db.models.functions import Now

from singleflight_app.conf import get_settings
from singleflight_app.models import Flight


class Standing(NamedTuple):
    """One flight; `None` columns of the row count as False."""

    flight_id: int
    stage: str
    status: str
    generation: int
    age: timedelta  #: since somebody asked for this generation
    forgotten: bool
    has_arguments: bool
    is_past: bool  #: its outcome's TTL is over
    is_due: bool  #: it failed, and whoever asks calls again
    is_leaseless: bool  #: it runs, and its owner's lease is over


def standings(flight_ids: Sequence[int]) -> dict[int, Standing]:
    """Return where these flights stand, by id; one that is gone is missing. Give a bounded number."""
    rows = Flight.objects.using(get_settings().database).filter(pk__in=flight_ids)
    rows = rows.annotate(
        age=ExpressionWrapper(Now() - F("created_at"), output_field=DurationField()),
        has_arguments=_is(Q(arguments__isnull=False)),
        is_past=_is(Q(expires_at__lte=Now())),
        is_due=_is(Q(retryable=True, retry_at__lte=Now())),
        is_leaseless=_is(Q(status="running", lease_expires_at__lte=Now())),
    )
    names = ("pk", *Standing._fields[1:])
    return {values[0]: Standing._make(values) for values in rows.values_list(*names)}


def _is(condition: Q) -> Case:
    return Case(When(condition, then=Value(True)), default=Value(False), output_field=BooleanField())  # noqa: FBT003
