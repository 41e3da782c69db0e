"""Whether a caller may make a call now: the limits of its stage and its breaker; and the wait until it may."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from singleflight_app.domain.exceptions import Overloaded
from singleflight_app.domain.records import Full
from singleflight_app.engine.call import Asked, Call
from singleflight_app.engine.following import Following
from singleflight_app.engine.guard import Breakers
from singleflight_app.engine.limits import Limits, Slot, free_slot
from singleflight_app.telemetry.signals import announce, caller_refused


class Room:
    """Lets the callers of one process in, one by one."""

    def __init__(
        self,
        limits: Limits,
        breakers: Breakers,
        following: Following,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._limits, self._breakers, self._following, self._monotonic = limits, breakers, following, monotonic

    def slot(self, call: Call[Any]) -> tuple[Slot, Full | None]:
        """Return this process's room for one more call, and why there is none."""
        stage, policy = call.key.stage, call.policy
        room = self._limits.slot(stage, policy)
        if isinstance(room, Full):
            return free_slot(), room
        return room, self._breakers.refusal(stage, policy, room)

    async def wait(self, asked: Asked[Any], full: Full, line: ExitStack) -> None:
        """Wait until a call of the stage may have ended; Overloaded when the policy or the budget says no.

        `line` is left when the caller's turn is over, or by `leave`.
        """
        call, policy = asked.call, asked.call.policy
        # A worker comes for a flight that nobody else runs: it may wait as long as a caller.
        deadline = asked.deadline if call.pending is None else asked.started + policy.wait
        left = deadline - self._monotonic()
        is_rejected = policy.on_saturated == "reject" and not full.is_brief
        if full.is_final or is_rejected or left <= 0:
            announce(caller_refused, stage=call.key.stage, reason=full.limit)
            raise Overloaded(full.reason, full.retry_after)
        if asked.wait_for is not None:
            asked.wait_for(full.limit)
            await asked.bell.wait(min(left, self._following.pause()))
            return
        # From now on it is rung; a place that came free just before has rung nobody, so it asks again at once.
        asked.wait_for = line.enter_context(self._limits.waiting(call.key.stage, asked.bell))
        line.enter_context(self._following.listening(call.key.stage))
        asked.wait_for(full.limit)

    def leave(self, asked: Asked[Any], line: ExitStack) -> None:
        """Leave the line with room, or without need for it: the next one is rung."""
        if asked.wait_for is not None:
            line.close()
            asked.wait_for = None
            self._limits.stir(asked.call.key.stage)
