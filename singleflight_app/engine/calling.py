"""The call itself: run the function once, and turn its value or its exception into an end that can be stored."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, TypeVar

from singleflight_app.domain.exceptions import LeaseLost, ResultUnreadable
from singleflight_app.domain.flight import Failure, Settled, StoredResult
from singleflight_app.domain.states import Status
from singleflight_app.engine.call import Call
from singleflight_app.engine.comparing import is_same
from singleflight_app.engine.context import FlightContext, running
from singleflight_app.engine.failures import exception_of, failure_of, timed_out, too_large
from singleflight_app.engine.guard import Tried, tried
from singleflight_app.engine.limits import Slot
from singleflight_app.engine.ports import Span
from singleflight_app.engine.rim import Interrupted, Rim
from singleflight_app.telemetry.signals import announce, result_changed

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class End(Generic[R]):
    """What the function came to: what is written, what this process's callers share, what the owner's caller sees."""

    written: Settled
    shared: Settled
    error: Exception | None = None
    copy: tuple[R] | None = None
    is_interrupted: bool = False


async def make_call(
    call: Call[R],
    context: FlightContext,
    rim: Rim,
    slot: Slot,
    *,
    span: Span,
    on_value: Callable[[], object] = lambda: None,
) -> End[R]:
    """Run the function and put what it came to into storable form; only a BaseException gets out.

    `span` is the current one of a trace meanwhile. `on_value` is called once it has returned a value, which is yet to
    be packed.
    """

    async def steps() -> Tried:
        with running(context), span.current():
            return await tried(call, context, rim)

    slot.begin()
    try:
        found = await rim.call(steps, context.interruption, on_return=slot.end)
    except Interrupted:
        return _interrupted(call, context)
    if found.error is not None:
        return _failed(context, failure_of(found.error, call.policy), found.error)
    on_value()
    # Not on the loop: packing some megabytes takes a good part of a second.
    return await rim.do_to_its_end(partial(_succeeded, call, context, found.value))


def _succeeded(call: Call[R], context: FlightContext, value: R) -> End[R]:
    try:
        result = call.codec.encode(value, call.key.digest)
        copy = call.codec.decode(result, call.key.digest)
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


def _interrupted(call: Call[R], context: FlightContext) -> End[R]:
    """Return the end of an async call that was cancelled: it was superseded or cancelled, or ran too long."""
    if context.is_superseded:
        lost = LeaseLost(context.flight_id, context.generation)
        end = _settled(context, Status.FAILED, failure=failure_of(lost, call.policy))
        return End(end, end, lost, is_interrupted=True)
    end = _settled(context, Status.TIMED_OUT, failure=timed_out(call.policy))
    error = exception_of(end, replace(call.policy, reraise=()))
    return End(end, end, error, is_interrupted=True)


def _settled(
    context: FlightContext,
    status: Status,
    *,
    result: StoredResult | None = None,
    failure: Failure | None = None,
) -> Settled:
    return Settled(
        context.flight_id, context.generation, status, result, failure, context.usage, retries=context.retries
    )


def _failed(context: FlightContext, failure: Failure, error: Exception) -> End[R]:
    settled = _settled(context, Status.FAILED, failure=failure)
    return End(settled, settled, error)


def _differs(copy: object, value: object) -> bool:
    try:
        return not is_same(copy, value)
    except Exception:  # noqa: BLE001  (a value's own __eq__ must not cost a paid answer)
        return True
