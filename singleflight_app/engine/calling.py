"""The call itself: run the function once, and turn its value or its exception into an end that can be stored."""

from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from singleflight_app.domain.exceptions import ResultUnreadable
from singleflight_app.domain.flight import Failure, Settled, StoredResult
from singleflight_app.domain.states import Status
from singleflight_app.engine.call import Call
from singleflight_app.engine.context import FlightContext, running
from singleflight_app.engine.failures import failure_of, too_large
from singleflight_app.telemetry.signals import announce, result_changed

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class End(Generic[R]):
    """What the function came to: what is written, what this process's callers share, what the owner's caller sees."""

    written: Settled
    shared: Settled
    error: Exception | None = None
    copy: tuple[R] | None = None


def make_call(call: Call[R], context: FlightContext) -> End[R]:
    """Run the function and put what it came to into storable form; only a BaseException gets out."""
    try:
        with running(context):
            value = call.function()
    except Exception as exc:  # noqa: BLE001  (whatever the function raises is its flight's end)
        return _failed(context, failure_of(exc, call.policy), exc)
    try:
        result = call.codec.encode(value)
        copy = call.codec.decode(result)
    except ResultUnreadable as exc:
        exc.value = value  # a paid answer reaches at least its own caller
        return _failed(context, replace(failure_of(exc, call.policy), retryable=False), exc)
    if _differs(copy, value):
        announce(result_changed, stage=call.key.stage)
    shared = _settled(context, Status.SUCCEEDED, result=result)
    written = shared
    if result.size > call.policy.max_result_bytes:
        written = _settled(context, Status.FAILED, failure=too_large(result.size, call.policy))
    return End(written, shared, copy=(copy,))


def _settled(
    context: FlightContext,
    status: Status,
    *,
    result: StoredResult | None = None,
    failure: Failure | None = None,
) -> Settled:
    return Settled(context.flight_id, context.generation, status, result, failure, context.usage)


def _failed(context: FlightContext, failure: Failure, error: Exception) -> End[R]:
    settled = _settled(context, Status.FAILED, failure=failure)
    return End(settled, settled, error)


def _differs(copy: object, value: object) -> bool:
    try:
        return bool(copy != value)
    except Exception:  # noqa: BLE001  (a value's own __eq__ must not cost a paid answer)
        return True
