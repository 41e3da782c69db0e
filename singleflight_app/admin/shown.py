"""Numbers, money and durations as the dashboard shows them, in the reader's language."""

from datetime import timedelta
from decimal import ROUND_HALF_EVEN, Decimal

from django.utils import formats
from django.utils.translation import gettext

from singleflight_app.domain.tally import DURATION_BOUNDS

NONE = "-"
_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
_FINE = Decimal("0.01")
_LARGE_RATIO, _LONG = 100, 10  #: from here on, digits after the point are no help


def number(value: float, decimals: int | None = None) -> str:
    """Return a number with its thousands apart."""
    return formats.number_format(value, decimals, force_grouping=True)


def ratio(value: float | None) -> str:
    """Return how many requests a call answered."""
    return NONE if value is None else number(value, 1 if value < _LARGE_RATIO else 0)


def money(value: Decimal) -> str:
    """Return an amount: cents, and below one of them the first digits that say something."""
    if not value or value >= _FINE:
        return number(value.quantize(_FINE, ROUND_HALF_EVEN), 2)  # type: ignore[arg-type]
    return number(value, -value.adjusted() + 1)  # type: ignore[arg-type]


def duration(seconds: float | None) -> str:
    """Return a duration that was counted in buckets: as exact as those are."""
    if seconds is None:
        return NONE
    if seconds == float("inf"):
        return gettext("> %(seconds)s s") % {"seconds": number(DURATION_BOUNDS[-1])}
    if seconds < 1:
        return gettext("%(milliseconds)s ms") % {"milliseconds": number(round(seconds * 1000))}
    return gettext("%(seconds)s s") % {"seconds": number(seconds, 1 if seconds < _LONG else 0)}


def age(since: timedelta | None) -> str:
    """Return how long something lasts already, in the two units that matter."""
    if since is None:
        return NONE
    seconds = max(int(since.total_seconds()), 0)
    if seconds < _MINUTE:
        return gettext("%(seconds)d s") % {"seconds": seconds}
    if seconds < _HOUR:
        return gettext("%(minutes)d min %(seconds)d s") % {"minutes": seconds // _MINUTE, "seconds": seconds % _MINUTE}
    if seconds < _DAY:
        return gettext("%(hours)d h %(minutes)d min") % {
            "hours": seconds // _HOUR,
            "minutes": seconds % _HOUR // _MINUTE,
        }
    return gettext("%(days)d d %(hours)d h") % {"days": seconds // _DAY, "hours": seconds % _DAY // _HOUR}
