"""Numbers, money and durations as the admin shows them, in the reader's language."""

from datetime import timedelta
from decimal import ROUND_HALF_EVEN, Decimal

from django.utils import formats
from django.utils.translation import gettext

from singleflight_app.domain.tally import DURATION_BOUNDS

NONE = "-"
_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
_FINE = Decimal("0.01")
_LARGE_RATIO, _LONG = 100, 10  #: from here on, digits after the point are no help


def number(value: float | Decimal, decimals: int | None = None) -> str:
    """Return a number with its thousands apart, rounded: Django's own formatting would cut digits off."""
    if decimals is not None:
        value = round(Decimal(str(value)), decimals)
    return formats.number_format(value, decimals, force_grouping=True)


def ratio(value: float | None) -> str:
    """Return how many requests a call answered."""
    return NONE if value is None else number(value, 1 if value < _LARGE_RATIO else 0)


def money(value: Decimal) -> str:
    """Return an amount: cents, and below one of them the first digits that say something."""
    if not value or value >= _FINE:
        return number(value.quantize(_FINE, ROUND_HALF_EVEN), 2)
    return number(value, -value.adjusted() + 1)


def duration(seconds: float | None) -> str:
    """Return a duration that was counted in buckets: as exact as those are."""
    if seconds is None:
        return NONE
    if seconds == float("inf"):
        return gettext("> %(seconds)s s") % {"seconds": number(DURATION_BOUNDS[-1])}
    if seconds < 1:
        return gettext("%(milliseconds)s ms") % {"milliseconds": number(round(seconds * 1000))}
    return gettext("%(seconds)s s") % {"seconds": number(seconds, 1 if seconds < _LONG else 0)}


def age(span: timedelta | None) -> str:
    """Return how long something lasts in the two units that matter: 1.2 s, 3 min 20 s, 2 h 5 min, 3 d 4 h."""
    if span is None:
        return NONE
    total = max(span.total_seconds(), 0.0)
    if total < _MINUTE:
        return gettext("%(seconds)s s") % {"seconds": number(round(total, 1), 1)}
    whole = int(total)
    if whole < _HOUR:
        return gettext("%(minutes)d min %(seconds)d s") % {"minutes": whole // _MINUTE, "seconds": whole % _MINUTE}
    if whole < _DAY:
        return gettext("%(hours)d h %(minutes)d min") % {"hours": whole // _HOUR, "minutes": whole % _HOUR // _MINUTE}
    return gettext("%(days)d d %(hours)d h") % {"days": whole // _DAY, "hours": whole % _DAY // _HOUR}
