"""The decorator and the plain calls: the names of `singleflight_app.__all__` come from here.

A decorated function is made in `decorated` and `folded`; everything below is wired per process in `wiring`.
"""

import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any, TypeVar, cast

from asgiref.sync import async_to_sync
from pydantic import JsonValue

from singleflight_app.decorated import AsyncSingleFlight, Decorator, SingleFlight, warn_inside_transaction
from singleflight_app.domain.exceptions import InvalidRequest
from singleflight_app.domain.flight import Outcome, StoredResult
from singleflight_app.domain.keys import FlightKey, Global, check_scope, check_stage, check_version, flight_key
from singleflight_app.domain.signatures import Scope, check_accept
from singleflight_app.domain.states import Role
from singleflight_app.engine import maintenance, operating
from singleflight_app.engine.call import Call
from singleflight_app.engine.maintenance import Swept
from singleflight_app.folded import Options, registry
from singleflight_app.outcomes.codec import for_policy
from singleflight_app.outcomes.envelope import Envelope
from singleflight_app.wiring import Runtime, runtime

__all__ = ["AsyncSingleFlight", "SingleFlight", "arun", "run", "single_flight"]

R = TypeVar("R")

logger = logging.getLogger("singleflight_app")


def single_flight(
    stage: str,
    *,
    scope: Scope | None = None,
    version: str = "",
    key: Callable[..., object] | None = None,
    accept: Callable[[Any], object] | None = None,
) -> Decorator:
    """Fold all calls of a function with equal arguments into one, in this process and across the cluster.

    The function is a `def` or an `async def`. `stage` names the kind of call and its policy. `scope` says whose answer
    it is: a string, `GLOBAL`, or a callable that takes, by name, those of the function's arguments that it needs.
    `version` joins the key: change it with the prompt, the model or the result's shape. `key`, a callable of the same
    kind, returns what to compare instead of all arguments. `accept` looks at what the function returned, and raises
    `Rejected` when that is no answer (a provider's error body, a truncated text).

    Wrong uses are InvalidRequest at once, with the repair.
    """
    return Decorator(stage=stage, scope=scope, version=version, key=key, accept=accept)


def run(
    stage: str,
    request: Mapping[str, object],
    function: Callable[[], R],
    *,
    scope: str | Global | None = None,
    version: str = "",
    result_type: Any = JsonValue,  # noqa: ANN401  (any annotation that pydantic knows)
    accept: Callable[[R], object] | None = None,
    fresh: bool = False,
    sample: int = 1,
    wait_timeout: float | timedelta | None = None,
) -> Outcome[R]:
    """Do without the decorator: fold the calls of `function` whose `request` is equal into one flight.

    `request` holds what makes two calls the same; `result_type` is what `function` returns. The others are those of
    `single_flight` and of its `options`.
    """
    if inspect.iscoroutinefunction(function):
        raise InvalidRequest(f"stage {stage!r}: an async function is run by `await arun(...)`")
    here = runtime()
    options = Options(fresh=fresh, sample=sample, wait_timeout=wait_timeout)
    outcome = here.coordinator.run(_call(here, stage, request, function, scope, version, result_type, accept, options))
    if outcome.role is not Role.REPLAY:
        warn_inside_transaction(here, stage)
    return outcome


async def arun(
    stage: str,
    request: Mapping[str, object],
    function: Callable[[], Awaitable[R]],
    *,
    scope: str | Global | None = None,
    version: str = "",
    result_type: Any = JsonValue,  # noqa: ANN401  (any annotation that pydantic knows)
    accept: Callable[[R], object] | None = None,
    fresh: bool = False,
    sample: int = 1,
    wait_timeout: float | timedelta | None = None,
) -> Outcome[R]:
    """Do what `run` does for an async `function`, which runs in a task of its own."""
    here = runtime()
    options = Options(fresh=fresh, sample=sample, wait_timeout=wait_timeout)
    call: Call[R] = _call(here, stage, request, function, scope, version, result_type, accept, options)
    return await here.coordinator.arun(call)


def _call(
    here: Runtime,
    stage: str,
    request: Mapping[str, object],
    function: Callable[[], Any],
    scope: str | Global | None,
    version: str,
    result_type: Any,  # noqa: ANN401
    accept: Callable[[Any], object] | None,
    options: Options,
) -> Call[Any]:
    check_stage(stage)
    if stage in registry:
        raise InvalidRequest(f"stage {stage!r} belongs to {registry[stage].label}; give run() a stage of its own")
    check_scope(stage, scope)
    check_version(stage, version)
    check_accept(accept, stage)
    policy = here.settings.policy(stage)
    key = flight_key(
        here.settings.namespace,
        stage,
        cast("str | Global", scope),
        request,
        versions=(policy.version, version),
        sample=options.sample,
    )
    codec = for_policy(result_type, policy, here.keys)
    return Call(key, policy, function, codec, options.budget(policy), is_fresh=options.fresh, accept=accept)


def forget_flight(flight_id: int, *, actor: str, generation: int | None = None) -> bool:
    """Drop a flight's outcome by hand; False: there is none. `actor` goes into the audit row.

    This and the three below leave a flight alone that has moved on from `generation`, if one is given. All raise
    CoordinationUnavailable when a server does not answer; doing it again is safe.
    """
    return runtime().forget(flight_id=flight_id, generation=generation, actor=actor)


def expire_lease(flight_id: int, *, actor: str, generation: int | None = None) -> bool:
    """End a running flight's lease by hand: its owner is fenced, a waiter takes over. False: it is not running."""
    return runtime().expire_lease(flight_id, actor=actor, generation=generation)


def result_bytes(stored: StoredResult, digest: bytes, *, within: float = 20.0) -> bytes:
    """Return the JSON of a stored result for a person, wherever it lies; escape it before it is shown.

    Raises ResultUnreadable when it is damaged, gone, or sealed with a key that this process lacks, and
    CoordinationUnavailable when the storage of large results does not answer `within` seconds.
    """
    here = runtime()
    return Envelope(keys=here.keys).unwrap(here.large.at_hand(stored, within=within), digest)


def cancel_flight(flight_id: int, *, actor: str, generation: int | None = None) -> bool:
    """End a pending or running flight by hand; False: it had ended.

    Those who wait for it get FlightCancelled, its owner too once it learns of it: a result that comes late is refused,
    and counted as wasted. Whoever asks from now on gets a new call.
    """
    return runtime().cancel(flight_id, actor=actor, generation=generation)


def retry_flight(flight_id: int, *, actor: str, generation: int | None = None) -> bool:
    """Let a flight be tried again by hand, now; False: there is nothing to try again.

    A failure in its TTL becomes retryable, and whoever asks next makes the call. A pending flight's message is sent
    again. A background flight whose worker died is queued again, as the sweep would do a lease later.
    """
    here = runtime()
    queue, policy_of = here.queue, here.settings.policy
    return operating.retry(queue, policy_of, here.send, flight_id, actor=actor, generation=generation)


def run_pending(flight_id: int) -> Outcome[Any] | None:
    """Run a background flight on this worker; None: it needs no worker, or this one doesn't know its function.

    Raises what its caller would see; StillRunning when another worker runs it.
    """
    here = runtime()
    stored = here.queue.arguments(flight_id)
    if stored is None:
        return None
    flight = registry.get(stored.stage)
    if flight is None:
        logger.error(
            "flight %s of stage %s waits for a function that this worker does not know; "
            "define it in a `flights` module of an installed app",
            flight_id,
            stored.stage,
        )
        return None
    key = FlightKey(stored.stage, stored.scope, stored.digest)
    call = flight.pending_call(here, key, stored.arguments, flight_id)
    if isinstance(flight, AsyncSingleFlight):
        return async_to_sync(here.coordinator.arun)(call)
    return here.coordinator.run(call)


def sweep() -> Swept:
    """Deal with flights whose owners died with nobody waiting, and send lost messages again."""
    here = runtime()
    return maintenance.sweep(here.queue, here.settings.policy, here.send)
