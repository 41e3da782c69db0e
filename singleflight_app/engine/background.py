"""Background flights: the row is the queue, a message only a nudge that may be lost or come twice."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from singleflight_app.domain.decision import Asking, decide
from singleflight_app.domain.exceptions import CoordinationUnavailable, Overloaded
from singleflight_app.domain.records import FlightSnapshot
from singleflight_app.domain.states import Claim, Status
from singleflight_app.engine.call import Call
from singleflight_app.engine.claiming import TRIES
from singleflight_app.engine.ports import FlightQueue

_QUEUED = {Claim.OWNER_NEW, Claim.OWNER_RETRY, Claim.OWNER_TAKEOVER}


def submit(
    queue: FlightQueue,
    call: Call[Any],
    arguments: Mapping[str, str],
    *,
    send: Callable[[int], object],
    on_replaced: Callable[[bytes, int, float], object],
) -> FlightSnapshot:
    """Commit a pending flight and send its message, or join or replay the flight that there is.

    `on_replaced` is told of an outcome that a fresh flight replaces: key, generation, seconds left of its TTL.
    """
    # Nobody's name: a flight that this process runs is followed like any other, not adopted.
    asking = Asking(policy=call.policy, owner="", may_take_over=queue.may_take_over(call.policy.lease))
    for _ in range(TRIES):
        answer = queue.submit(call.key, label=call.label, arguments=arguments)
        if answer is None:
            continue
        is_new, row = answer
        if call.is_fresh and asking.above is None:
            asking = replace(asking, above=0 if is_new else row.generation)
        claim = None if is_new else decide(row, asking)
        if claim is Claim.WAIT_OUT:
            raise Overloaded("a call of this key that is no answer any more still runs", call.policy.heartbeat)
        if claim is not None and claim not in _QUEUED:
            if row.status == Status.PENDING:
                send(row.flight_id)  # it may be our own, whose reply was lost; a second message harms nothing
            return row
        queued = (
            row
            if is_new
            else queue.queue(row, kind="submitted", arguments=arguments, policy=call.policy, is_fresh=call.is_fresh)
        )
        if queued is not None:
            if call.is_fresh and not is_new:
                on_replaced(call.key.digest, row.generation, row.outcome_remaining or 0.0)
            send(queued.flight_id)
            return queued
    raise CoordinationUnavailable(f"{call.key} moved {TRIES} times while it was submitted; submit it again")
