"""The decorator and the plain calls: from a function and its arguments to a flight.

The names of `singleflight_app.__all__` come from here. Everything below is wired per process in `wiring`.
"""

import functools
import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, cast, get_type_hints, overload

from django.db import connections
from pydantic import JsonValue

from singleflight_app.domain.exceptions import InvalidRequest, wait_budget
from singleflight_app.domain.flight import Outcome
from singleflight_app.domain.keys import FlightKey, Global, check_scope, check_stage, flight_key
from singleflight_app.domain.policy import StagePolicy
from singleflight_app.domain.signatures import Scope, check_function, picker, receiver_of, without
from singleflight_app.domain.states import Role
from singleflight_app.engine import background, maintenance
from singleflight_app.engine.call import Call
from singleflight_app.engine.handles import FlightHandle
from singleflight_app.engine.maintenance import Swept
from singleflight_app.outcomes.arguments import ArgumentsCodec
from singleflight_app.outcomes.codec import JsonCodec, for_policy
from singleflight_app.wiring import Runtime, runtime, send

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
T = TypeVar("T")

logger = logging.getLogger("singleflight_app")
_registry: dict[str, "SingleFlight[Any, Any]"] = {}
_warned: set[str] = set()


def single_flight(
    stage: str, *, scope: Scope | None = None, version: str = "", key: Callable[..., object] | None = None
) -> Callable[[Callable[P, R]], "SingleFlight[P, R]"]:
    """Fold all calls of a function with equal arguments into one, in this process and across the cluster.

    `stage` names the kind of call and its policy. `scope` says whose answer it is: a string, `GLOBAL`, or
    a callable that takes, by name, those of the function's arguments that it needs. `version` joins the
    key: change it with the prompt, the model or the result's shape. `key`, a callable of the same kind,
    returns what to compare instead of all arguments.

    Wrong uses are InvalidRequest at once, with the repair.
    """

    def decorate(function: Callable[P, R]) -> SingleFlight[P, R]:
        return SingleFlight(function, stage=stage, scope=scope, version=version, key=key)

    return decorate


class SingleFlight(Generic[P, R]):
    """A function whose equal calls become one flight; made by `single_flight`."""

    def __init__(
        self,
        function: Callable[P, R],
        *,
        stage: str,
        scope: Scope | None,
        version: str = "",
        key: Callable[..., object] | None = None,
    ) -> None:
        check_stage(stage)
        check_function(function, stage)
        functools.update_wrapper(self, function)
        self.stage, self.version = stage, version
        self.__wrapped__ = function
        self._function: Callable[..., R] = function
        self._signature = inspect.signature(function)
        self._receiver = receiver_of(function, self._signature)
        names = [name for name in self._signature.parameters if name != self._receiver]
        self._scope = picker(scope, names, stage, "scope")
        self._request = picker(key, names, stage, "key") if key is not None else None
        self._label = f"{function.__module__}.{function.__qualname__}"[:200]
        self._codecs: dict[StagePolicy, JsonCodec[R]] = {}
        self._is_bound = False
        _register(self)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return the value: called, joined or replayed."""
        return self.outcome(*args, **kwargs).value

    def outcome(self, *args: P.args, **kwargs: P.kwargs) -> Outcome[R]:
        """Return the value with how it came about: role, layer, generation, waited.

        Raises the function's own exception at the caller that made the call, FlightFailed and its kind
        at the others, StillRunning when the wait budget ends, CoordinationUnavailable when PostgreSQL is
        out of reach and the mode is "distributed".
        """
        here = runtime()
        outcome = here.coordinator.run(self._call(here, args, kwargs))
        if outcome.role is not Role.REPLAY:
            _warn_inside_transaction(here, self.stage)
        return outcome

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> FlightHandle[R]:
        """Commit the call as a background flight for a Celery worker; joins or replays like any caller.

        It commits at once. When rows of the caller's transaction matter to the call, use
        `transaction.on_commit(lambda: f.submit(...))`.
        """
        if self._is_bound:
            raise InvalidRequest(f"stage {self.stage!r}: a worker has no `self`; submit a plain function")
        here = runtime()
        call = self._call(here, args, kwargs)
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = self._arguments.dump(bound.arguments)
        row = background.submit(here.queue, call, arguments, owner=here.identity.name, send=send)
        return here.coordinator.handle(call, row.flight_id, row.generation)

    def forget(self, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Drop the key's outcome, so that whoever asks from now on gets a new call; True if there was one.

        CoordinationUnavailable when a configured Redis can't confirm it; calling again is safe.
        """
        here = runtime()
        return _forgotten(here, digest=self.key(*args, **kwargs).digest)

    def key(self, *args: P.args, **kwargs: P.kwargs) -> FlightKey:
        """Return the key of a call, with `.canonical` to explain it and `.digest` to find it."""
        return self._key(runtime(), self._signature.bind(*args, **kwargs))

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Self: ...

    @overload
    def __get__(
        self: "SingleFlight[Concatenate[T, Q], R]", instance: T, owner: type | None = None
    ) -> "SingleFlight[Q, R]": ...

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """Bind a method; `self` is no part of the key: what it changes must be an argument."""
        if instance is None:
            return self
        self._annotations  # noqa: B018  (resolved once, not by every bound copy)
        bound = SingleFlight.__new__(SingleFlight)
        bound.__dict__.update(self.__dict__)
        bound._function = functools.partial(self._function, instance)  # noqa: SLF001  (its own class)
        parameters = list(self._signature.parameters.values())[1:]
        bound._signature = self._signature.replace(parameters=parameters)  # noqa: SLF001
        bound._is_bound = True  # noqa: SLF001
        return bound

    def pending_call(self, here: Runtime, key: FlightKey, arguments: Mapping[str, str], flight_id: int) -> Call[R]:
        """Return the call of a worker that came for a pending flight; its key is the row's, never computed again."""

        def function() -> R:
            bound = self._arguments.load(arguments)
            return self._function(*bound.args, **bound.kwargs)

        policy = here.settings.policy(self.stage)
        return Call(key, policy, function, self._codec(policy), 0.0, self._label, flight_id)

    @functools.cached_property
    def _annotations(self) -> dict[str, Any]:
        try:
            return get_type_hints(self.__wrapped__, include_extras=True)
        except NameError as exc:
            problem = f"stage {self.stage!r}: an annotation of {self._label} names what is not imported ({exc})"
            raise InvalidRequest(f"{problem}; import it outside of TYPE_CHECKING") from exc

    @functools.cached_property
    def _arguments(self) -> ArgumentsCodec:
        return ArgumentsCodec(self._signature, self._annotations)

    def _codec(self, policy: StagePolicy) -> JsonCodec[R]:
        if policy not in self._codecs:
            self._codecs[policy] = for_policy(self._annotations.get("return", JsonValue), policy)
        return self._codecs[policy]

    def _key(self, here: Runtime, bound: inspect.BoundArguments) -> FlightKey:
        bound.apply_defaults()
        arguments = bound.arguments
        policy = here.settings.policy(self.stage)
        request = without(arguments, self._receiver)
        if self._request is not None:
            request = {"key": self._request(arguments)}
        scope = cast("str | Global", self._scope(arguments))
        return flight_key(here.settings.namespace, self.stage, scope, request, versions=(policy.version, self.version))

    def _call(self, here: Runtime, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call[R]:
        policy = here.settings.policy(self.stage)
        key = self._key(here, self._signature.bind(*args, **kwargs))
        function = functools.partial(self._function, *args, **kwargs)
        return Call(key, policy, function, self._codec(policy), policy.wait, self._label)


def run(
    stage: str,
    request: Mapping[str, object],
    function: Callable[[], R],
    *,
    scope: str | Global | None = None,
    version: str = "",
    result_type: Any = JsonValue,  # noqa: ANN401  (any annotation that pydantic knows)
    wait_timeout: float | None = None,
) -> Outcome[R]:
    """Do without the decorator: fold the calls of `function` whose `request` is equal into one flight.

    `request` holds what makes two calls the same; `result_type` is what `function` returns.
    `wait_timeout` is this caller's wait budget in seconds (default: the stage's).
    """
    check_stage(stage)
    check_scope(stage, scope)
    here = runtime()
    policy = here.settings.policy(stage)
    versions = (policy.version, version)
    key = flight_key(here.settings.namespace, stage, cast("str | Global", scope), request, versions=versions)
    budget = policy.wait if wait_timeout is None else wait_budget(wait_timeout)
    outcome = here.coordinator.run(Call(key, policy, function, for_policy(result_type, policy), budget))
    if outcome.role is not Role.REPLAY:
        _warn_inside_transaction(here, stage)
    return outcome


def forget_flight(flight_id: int, *, actor: str) -> bool:
    """Drop a flight's outcome by hand; False: there is none. `actor` goes into the audit row."""
    return _forgotten(runtime(), flight_id=flight_id, actor=actor)


def expire_lease(flight_id: int, *, actor: str) -> bool:
    """End a running flight's lease by hand: its owner is fenced, a waiter takes over. False: it is not running."""
    here = runtime()
    expired = here.queue.expire_lease(flight_id, actor=actor)
    if expired is None:
        return False
    here.hint(expired)
    return True


def run_pending(flight_id: int) -> Outcome[Any] | None:
    """Run a background flight on this worker; None: it needs no worker, or this one doesn't know its function.

    Raises what its caller would see; StillRunning when another worker runs it.
    """
    here = runtime()
    stored = here.queue.arguments(flight_id)
    if stored is None:
        return None
    flight = _registry.get(stored.stage)
    if flight is None:
        logger.error(
            "flight %s of stage %s waits for a function that this worker does not know; "
            "define it in a `flights` module of an installed app",
            flight_id,
            stored.stage,
        )
        return None
    key = FlightKey(stored.stage, stored.scope, stored.digest)
    return here.coordinator.run(flight.pending_call(here, key, stored.arguments, flight_id))


def sweep() -> Swept:
    """Deal with flights whose owners died with nobody waiting, and send lost messages again."""
    here = runtime()
    return maintenance.sweep(here.queue, here.settings.policy, send)


def _forgotten(here: Runtime, *, digest: bytes | None = None, flight_id: int | None = None, actor: str = "") -> bool:
    forgotten = here.store.forget(digest=digest, flight_id=flight_id, actor=actor)
    if forgotten is None:
        return False
    here.coordinator.forgotten(forgotten)
    here.hint(forgotten)
    return not forgotten.already


def _register(flight: SingleFlight[Any, Any]) -> None:
    held = _registry.get(flight.stage)
    if held is not None and held._label != flight._label:  # noqa: SLF001  (its own class)
        raise InvalidRequest(
            f"stage {flight.stage!r} belongs to {held._label}; give {flight._label} a stage of its own"  # noqa: SLF001
        )
    _registry[flight.stage] = flight


def _warn_inside_transaction(here: Runtime, stage: str) -> None:
    """Say once per stage that the caller's own transaction stays open all the while."""
    if stage in _warned or here.database is None:
        return
    if any(connection.in_atomic_block for connection in connections.all(initialized_only=True)):
        _warned.add(stage)
        logger.warning(
            "stage %s is called inside a transaction, which stays open while the call runs or waits; call it outside",
            stage,
        )
