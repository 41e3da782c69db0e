"""What stands between a flight and a provider that is failing: tries again inside the call, and a breaker around it.

Both are off unless a stage's policy sets them. Tenacity counts the tries and the pauses, pybreaker the failures.
"""

import inspect
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from pybreaker import (
    STATE_CLOSED,
    STATE_OPEN,
    CircuitBreaker,
    CircuitBreakerListener,
    CircuitBreakerState,
    CircuitMemoryStorage,
)
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_result,
    stop_after_attempt,
    stop_before_delay,
    wait_exponential,
    wait_random,
)

from singleflight_app.domain.exceptions import Rejected, seconds
from singleflight_app.domain.policy import Breaker, StagePolicy
from singleflight_app.domain.records import Full
from singleflight_app.domain.retryable import is_retryable, retry_after
from singleflight_app.engine.call import Call
from singleflight_app.engine.context import FlightContext
from singleflight_app.engine.limits import Slot
from singleflight_app.engine.rim import Rim
from singleflight_app.telemetry.signals import announce, breaker_opened


class Tried(NamedTuple):
    """What the function came to: a value, or the error that it raised."""

    value: Any
    error: Exception | None


async def tried(call: Call[Any], context: FlightContext, rim: Rim) -> Tried:
    """Call the function, again after retryable errors if the policy says so; only a BaseException gets out."""
    last: Tried | None = None

    async def once() -> Tried:
        nonlocal last
        if last is None or not context.is_in_vain:  # the lease may have been lost in the pause
            last = await _once(call, rim)
        return last

    if call.policy.retry is None:
        return await once()
    retrying = _retrying(call.policy, context, rim)
    found: Tried = await retrying(once)
    return found


async def _once(call: Call[Any], rim: Rim) -> Tried:
    try:
        value = call.function()
        if rim.is_on_loop and inspect.isawaitable(value):
            value = await value
    except Exception as exc:  # noqa: BLE001  (whatever the function raises is its flight's end)
        return Tried(None, exc)
    if call.accept is not None:
        try:
            call.accept(value)
        except Exception as exc:  # noqa: BLE001  (as the function's own)
            if isinstance(exc, Rejected):
                exc.value = value  # paid for: its own caller may look at it
            return Tried(value, exc)
    return Tried(value, None)


def _retrying(policy: StagePolicy, context: FlightContext, rim: Rim) -> AsyncRetrying:
    retry = policy.retry
    assert retry is not None  # noqa: S101  (for the type; `tried` looked)
    first = seconds(retry.wait)
    grows = wait_exponential(multiplier=first, max=seconds(retry.max_wait)) + wait_random(0, first)

    def pause(state: RetryCallState) -> float:
        error = _error_of(state)
        return max(grows(state), 0.0 if error is None else retry_after(error))

    def is_worth_it(found: Tried) -> bool:
        return found.error is not None and is_retryable(found.error, policy.retry_on) and not context.is_in_vain

    return AsyncRetrying(
        sleep=rim.sleep,
        # A pause that outlasts the wait budget would end when nobody waits any more.
        stop=stop_after_attempt(retry.attempts) | stop_before_delay(policy.wait),
        wait=pause,
        retry=retry_if_result(is_worth_it),
        before_sleep=lambda _: context.record_attempt(),
        retry_error_callback=lambda state: None if state.outcome is None else state.outcome.result(),
    )


def _error_of(state: RetryCallState) -> Exception | None:
    found: Tried | None = None if state.outcome is None else state.outcome.result()
    return None if found is None else found.error


class _Openings(CircuitBreakerListener):
    """Announces each time that a breaker opens."""

    def state_change(
        self, cb: CircuitBreaker, old_state: CircuitBreakerState | None, new_state: CircuitBreakerState
    ) -> None:
        if new_state.name == STATE_OPEN:
            announce(breaker_opened, stage=cb.name)


class Breakers:
    """The breakers of one process, one per stage and setting."""

    def __init__(self, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._lock, self._now = threading.Lock(), now
        self._probing: set[str] = set()
        self._breakers: dict[tuple[str, Breaker], tuple[CircuitBreaker, CircuitMemoryStorage]] = {}

    def refusal(self, stage: str, policy: StagePolicy, slot: Slot) -> Full | None:
        """Return why no call of the stage may be made now; None: it may. After the pause one at a time finds out."""
        if policy.breaker is None:
            return None
        _, memory = self._of(stage, policy.breaker)
        if memory.state != STATE_OPEN or memory.opened_at is None:
            return None
        pause = timedelta(seconds=seconds(policy.breaker.pause))
        closed_for = (memory.opened_at + pause - self._now()).total_seconds()
        with self._lock:
            if closed_for <= 0 and stage not in self._probing:
                self._probing.add(stage)
                slot.on_end = lambda: self._probing.discard(stage)
                return None
        reason = f"the last {policy.breaker.failures} calls of stage {stage} failed, so its breaker is open"
        return Full("breaker", reason, max(closed_for, policy.heartbeat), is_final=True)

    def record(self, stage: str, policy: StagePolicy, error: Exception | None) -> None:
        """Count how a call ended; an error that is the request's own fault shows that the provider answers."""
        if policy.breaker is None:
            return
        breaker, _ = self._of(stage, policy.breaker)
        counted = error if error is not None and is_retryable(error, policy.retry_on) else None

        def end() -> None:
            if counted is not None:
                raise counted

        with suppress(Exception):  # the error that was counted, or the breaker's own about it
            breaker.call(end)

    def age(self, seconds: float) -> None:
        """Let that many seconds pass for every open breaker: of a clock that is moved by hand."""
        with self._lock:
            for _, memory in self._breakers.values():
                if memory.opened_at is not None:
                    memory.opened_at -= timedelta(seconds=seconds)

    def _of(self, stage: str, setting: Breaker) -> tuple[CircuitBreaker, CircuitMemoryStorage]:
        with self._lock:
            if (stage, setting) not in self._breakers:
                memory = CircuitMemoryStorage(STATE_CLOSED)
                breaker = CircuitBreaker(
                    fail_max=setting.failures,
                    reset_timeout=seconds(setting.pause),
                    listeners=[_Openings()],
                    state_storage=memory,
                    name=stage,
                )
                self._breakers[stage, setting] = breaker, memory
            return self._breakers[stage, setting]
