"""Between exceptions and stored failures: what an owner writes, and what the others see of it."""

from collections.abc import Iterator
from pydoc import locate

from singleflight_app.domain.exceptions import (
    ExecutionTimedOut,
    FlightCancelled,
    FlightFailed,
    OwnerLost,
    ResultTooLarge,
)
from singleflight_app.domain.flight import OWNER_LOST, TOO_LARGE, Failure, Settled
from singleflight_app.domain.policy import StagePolicy
from singleflight_app.domain.retryable import dotted, is_retryable, retry_after
from singleflight_app.domain.states import Status

LOST_MESSAGE = "the flight's owners died {count} times; no further takeover is allowed"
_MESSAGE_LENGTH = 1000


def failure_of(error: BaseException, policy: StagePolicy) -> Failure:
    """Return what is stored of an exception: its class by name, its text, and whether a later call may help."""
    text = "\n".join(_lines_of(error)).replace("\x00", "")[:_MESSAGE_LENGTH]
    message = text.encode("utf-8", "replace").decode()
    is_worth_it = is_retryable(error, policy.retry_on)
    return Failure(dotted(type(error)), message, is_worth_it, retry_after=retry_after(error) if is_worth_it else 0)


def timed_out(policy: StagePolicy) -> Failure:
    """Return the failure of a call that outlived `execution_timeout`."""
    message = f"the call ran longer than execution_timeout ({policy.execution_timeout:g} s)"
    return Failure("builtins.TimeoutError", message, is_retryable(TimeoutError(), policy.retry_on))


def too_large(size: int, policy: StagePolicy) -> Failure:
    """Return the failure that is stored in place of a result above `max_result_bytes`."""
    message = f"the result has {size} bytes, more than max_result_bytes ({policy.max_result_bytes})"
    return Failure(TOO_LARGE, message, retryable=False, size=size)


def exception_of(settled: Settled, policy: StagePolicy) -> Exception:
    """Return the exception that stands for a failed or cancelled flight at callers who did not own it."""
    if settled.status is Status.CANCELLED:
        message = "" if settled.failure is None else settled.failure.message
        return FlightCancelled(settled.flight_id, settled.generation, message)
    failure = settled.failure or Failure("", "", retryable=False)
    if failure.error_type == TOO_LARGE:
        return ResultTooLarge(failure.size, policy.max_result_bytes)
    if failure.error_type in policy.reraise and (rebuilt := _rebuilt(failure)) is not None:
        return rebuilt
    kind = FlightFailed
    if settled.status is Status.TIMED_OUT:
        kind = ExecutionTimedOut
    elif failure.error_type == OWNER_LOST:
        kind = OwnerLost
    return kind(failure.error_type, failure.message, retryable=failure.retryable, generation=settled.generation)


def _lines_of(error: BaseException) -> Iterator[str]:
    """Yield an exception's text, its notes, and those of the errors in a group."""
    yield _text_of(error)
    notes = getattr(error, "__notes__", ())
    yield from (note for note in (notes if isinstance(notes, list) else ()) if isinstance(note, str))
    if isinstance(error, BaseExceptionGroup):
        for member in error.exceptions:
            first, *others = _lines_of(member)
            yield f"- {dotted(type(member))}: {first}"
            yield from (f"  {line}" for line in others)


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001  (an exception's own __str__ must not hide the exception)
        return ""


def _rebuilt(failure: Failure) -> Exception | None:
    """Return the listed exception with its message; None when its class is gone or wants more than a message."""
    kind = locate(failure.error_type)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        return None
    try:
        return kind(failure.message)
    except TypeError:
        return None
