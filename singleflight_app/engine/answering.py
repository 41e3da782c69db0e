"""What a caller gets of an end: a copy of its own, with how it came about, or the exception that stands for it."""

from typing import TypeVar

from singleflight_app.domain.flight import Outcome
from singleflight_app.domain.states import Layer, Role
from singleflight_app.engine.call import Call, Ended
from singleflight_app.engine.failures import exception_of
from singleflight_app.engine.local import Shared
from singleflight_app.engine.replaying import copy_of, opened

R = TypeVar("R")


def ended_by(call: Call[R], shared: Shared | None) -> Ended[R] | None:
    """Return the end that this process's leader came to; None: this caller's codec can't read it."""
    if shared is None:
        return None
    role = Role.REPLAY if shared.role is Role.REPLAY else Role.FOLLOWER
    copy = copy_of(call, shared.settled)
    if copy is None and shared.settled.result is not None:
        return None
    return Ended(shared.settled, role, Layer.PROCESS, copy=copy)


def outcome_of(call: Call[R], ended: Ended[R], waited: float) -> Outcome[R]:
    """Give one caller its own copy, or raise the exception that stands for the end."""
    settled = ended.settled
    if ended.error is not None:
        raise ended.error
    if settled.result is None:
        raise exception_of(settled, call.policy)
    value = ended.copy[0] if ended.copy is not None else opened(call, settled.result)
    return Outcome(
        value,
        ended.role,
        ended.layer,
        settled.generation,
        settled.flight_id,
        waited,
        superseded=settled.superseded,
        degraded=settled.degraded,
        usage=settled.usage,
    )
