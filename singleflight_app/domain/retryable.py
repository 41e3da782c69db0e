"""Whether a failed call may be made again, and when: read from the exception alone, by class and by HTTP status.

SDKs of model providers differ in their classes, but agree on where a status and a Retry-After stand.
"""

from collections.abc import Collection, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.message import Message
from email.utils import parsedate_to_datetime
from typing import Any

from singleflight_app.domain.exceptions import Rejected

HTTP = "http"  #: in `retry_on`: every error that carries a status by which the provider asks to come again
MOST_RETRY_AFTER = 3600.0  #: seconds; a longer Retry-After is cut to it, so that a key can't be closed for days
_REQUEST_TIMEOUT, _TOO_EARLY, _TOO_MANY = 408, 425, 429
_CLIENT_ERRORS = range(400, 500)
_SERVER_ERRORS = range(500, 600)


def is_retryable(error: BaseException, retry_on: Collection[str]) -> bool:
    """Tell whether a later call may help: by the listed classes and their subclasses, and by status.

    A status of 4xx says that the request is at fault: never again, whatever its class, but for 408, 425 and 429. A
    group is retryable when each of its errors is.
    """
    if isinstance(error, Rejected):
        return error.retryable
    if isinstance(error, BaseExceptionGroup):
        return all(is_retryable(member, retry_on) for member in error.exceptions)
    status = status_of(error)
    if status in _CLIENT_ERRORS and status not in {_REQUEST_TIMEOUT, _TOO_EARLY, _TOO_MANY}:
        return False
    if HTTP in retry_on and (status in _CLIENT_ERRORS or status in _SERVER_ERRORS):
        return True
    return is_listed(type(error), retry_on)


def is_listed(kind: type[BaseException], names: Collection[str]) -> bool:
    """Tell whether a class or one of its bases is among these dotted paths."""
    return any(dotted(base) in names for base in kind.__mro__)


def dotted(kind: type) -> str:
    """Return a class's dotted path, cut to what the row holds."""
    return f"{kind.__module__}.{kind.__qualname__}"[:200]


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status that an SDK's exception carries; None: it carries none."""
    for holder in (error, _carried(error, "response")):
        status = _carried(holder, "status_code") or _carried(holder, "status")
        if isinstance(status, int):
            return int(status)
    return None


def retry_after(error: BaseException) -> float:
    """Return for how many seconds the provider asked to be left alone; 0: it did not say."""
    if isinstance(error, BaseExceptionGroup):
        return max(map(retry_after, error.exceptions), default=0.0)
    for given in (_carried(error, "retry_after"), _in_headers(_carried(error, "response")), _in_headers(error)):
        if given is not None:
            pause = _number(given)
            return min(max(pause, 0.0), MOST_RETRY_AFTER) if pause == pause else 0.0  # noqa: PLR0124  (NaN is no pause)
    return 0.0


def _carried(holder: object, name: str) -> Any:  # noqa: ANN401  (each SDK has its own)
    """Return an attribute, or None; what an SDK computes on access may fail, and must not hide the error itself."""
    try:
        return getattr(holder, name, None)
    except Exception:  # noqa: BLE001
        return None


def _in_headers(holder: object) -> object:
    """Return what the headers of a response, or of an exception, say; the standard library's are no Mapping."""
    headers = _carried(holder, "headers")
    if not isinstance(headers, Mapping | Message):
        return None
    found = {str(name).lower(): value for name, value in headers.items()}
    milliseconds = found.get("retry-after-ms")
    return found.get("retry-after") if milliseconds is None else _number(milliseconds) / 1000


def _number(given: object) -> float:
    """Return the seconds in a Retry-After: a number, a duration, or a date; 0 when it is none of them."""
    if isinstance(given, timedelta):
        return given.total_seconds()
    if isinstance(given, int | float):
        return float(min(given, MOST_RETRY_AFTER)) if given > 0 else 0.0
    if not isinstance(given, str):
        return 0.0
    with suppress(ValueError):
        return float(given)
    return _until(given)


def _until(date: str) -> float:
    # Only how long to leave a provider alone hangs on this process's clock; leases and TTLs never do.
    try:
        when = parsedate_to_datetime(date)
        return (when.replace(tzinfo=when.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    except (ValueError, TypeError, OverflowError):
        return 0.0
