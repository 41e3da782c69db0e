"""Decorated functions: from a call's arguments to a flight, in a thread or on an event loop.

What both kinds share is `_Decorated`; they differ where they wait. Everything below is wired per process in `wiring`.
"""

import functools
import inspect
import logging
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, cast, get_type_hints, overload

from asgiref.sync import markcoroutinefunction
from django.db import connections
from pydantic import JsonValue

from singleflight_app.domain.exceptions import InvalidRequest, wait_budget
from singleflight_app.domain.flight import Outcome
from singleflight_app.domain.keys import FlightKey, Global, check_sample, check_stage, flight_key
from singleflight_app.domain.policy import StagePolicy
from singleflight_app.domain.records import FlightSnapshot
from singleflight_app.domain.signatures import Scope, check_accept, check_function, picker, receiver_of, without
from singleflight_app.domain.states import Role
from singleflight_app.engine import background
from singleflight_app.engine.call import Call
from singleflight_app.engine.handles import AsyncFlightHandle, FlightHandle
from singleflight_app.outcomes.arguments import ArgumentsCodec
from singleflight_app.outcomes.codec import JsonCodec, for_policy
from singleflight_app.wiring import Runtime, runtime, send

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
T = TypeVar("T")

logger = logging.getLogger("singleflight_app")
registry: dict[str, "_Decorated[Any, Any]"] = {}  #: the function of each stage, for workers
_warned: set[str] = set()


@dataclass(frozen=True, kw_only=True)
class Options:
    """What one call asks for beyond its arguments."""

    fresh: bool = False
    sample: int = 1
    wait_timeout: float | timedelta | None = None

    def __post_init__(self) -> None:
        check_sample(self.sample)
        if self.wait_timeout is not None:
            object.__setattr__(self, "wait_timeout", wait_budget(self.wait_timeout))

    def budget(self, policy: StagePolicy) -> float:
        """Return the caller's wait budget in seconds: its own, or the stage's."""
        return policy.wait if self.wait_timeout is None else cast("float", self.wait_timeout)


class _Decorated(Generic[P, R]):
    """A function whose equal calls become one flight."""

    def __init__(
        self,
        function: Callable[P, Any],
        *,
        stage: str,
        scope: Scope | None,
        version: str = "",
        key: Callable[..., object] | None = None,
        accept: Callable[[R], object] | None = None,
    ) -> None:
        check_stage(stage)
        check_function(function, stage)
        check_accept(accept, stage)
        functools.update_wrapper(cast("Any", self), function)
        self.stage, self.version = stage, version
        self.__wrapped__ = function
        self._function: Callable[..., Any] = function
        self._signature = inspect.signature(function)
        self._receiver = receiver_of(function, self._signature)
        names = [name for name in self._signature.parameters if name != self._receiver]
        self._scope = picker(scope, names, stage, "scope")
        self._request = picker(key, names, stage, "key") if key is not None else None
        self._accept = accept
        self._label = f"{function.__module__}.{function.__qualname__}"[:200]
        self._codecs: dict[StagePolicy, JsonCodec[R]] = {}
        self._is_bound = False
        self._options = Options()
        _register(self)

    def key(self, *args: P.args, **kwargs: P.kwargs) -> FlightKey:
        """Return the key of a call, with `.canonical` to explain it and `.digest` to find it. Nothing is waited for."""
        return self._key(runtime(), self._signature.bind(*args, **kwargs))

    def options(
        self,
        *,
        fresh: bool | None = None,
        sample: int | None = None,
        wait_timeout: float | timedelta | None = None,
    ) -> Self:
        """Return the same function with options for its next calls.

        `fresh`: only a call that begins from now on answers, and its outcome replaces the old one; a running flight is
        waited out. `sample`: 2 is a second, separate answer to the same question. `wait_timeout`: this caller's wait
        budget in seconds or as a timedelta.
        """
        given = {"fresh": fresh, "sample": sample, "wait_timeout": wait_timeout}
        changed = self._copy()
        changed._options = replace(  # noqa: SLF001  (its own class)
            self._options, **cast("dict[str, Any]", {name: value for name, value in given.items() if value is not None})
        )
        return changed

    def pending_call(self, here: Runtime, key: FlightKey, arguments: Mapping[str, str], flight_id: int) -> Call[R]:
        """Return the call of a worker that came for a pending flight; its key is the row's, never computed again."""

        def function() -> Any:  # noqa: ANN401  (the user's value, or what to await for it)
            bound = self._arguments.load(arguments)
            return self._function(*bound.args, **bound.kwargs)

        policy = here.settings.policy(self.stage)
        return Call(
            key, policy, function, self._codec(policy), 0.0, self._label, pending=flight_id, accept=self._accept
        )

    def _copy(self) -> Self:
        self._annotations  # noqa: B018  (resolved once, not by every copy)
        copy = type(self).__new__(type(self))
        copy.__dict__.update(self.__dict__)
        return copy

    def _bound_to(self, instance: object) -> Self:
        """Bind a method; `self` is no part of the key: what it changes must be an argument."""
        bound = self._copy()
        bound._function = functools.partial(self._function, instance)  # noqa: SLF001  (its own class)
        parameters = list(self._signature.parameters.values())[1:]
        bound._signature = self._signature.replace(parameters=parameters)  # noqa: SLF001
        bound._is_bound = True  # noqa: SLF001
        return bound

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
        return flight_key(
            here.settings.namespace,
            self.stage,
            cast("str | Global", self._scope(arguments)),
            request,
            versions=(policy.version, self.version),
            sample=self._options.sample,
        )

    def _call(self, here: Runtime, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Call[R]:
        policy = here.settings.policy(self.stage)
        return Call(
            self._key(here, self._signature.bind(*args, **kwargs)),
            policy,
            functools.partial(self._function, *args, **kwargs),
            self._codec(policy),
            self._options.budget(policy),
            self._label,
            is_fresh=self._options.fresh,
            accept=self._accept,
        )

    def _submitting(
        self, here: Runtime, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Call[R], Callable[[], FlightSnapshot]]:
        """Return the call, and what commits it as a background flight."""
        if self._is_bound:
            raise InvalidRequest(f"stage {self.stage!r}: a worker has no `self`; submit a plain function")
        call = self._call(here, args, kwargs)
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = self._arguments.dump(bound.arguments)
        return call, lambda: background.submit(
            here.queue,
            call,
            arguments,
            send=send,
            on_replaced=here.coordinator.replaced,
        )


class SingleFlight(_Decorated[P, R]):
    """A function whose equal calls become one flight; made by `single_flight`."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return the value: called, joined or replayed."""
        return self.outcome(*args, **kwargs).value

    def outcome(self, *args: P.args, **kwargs: P.kwargs) -> Outcome[R]:
        """Return the value with how it came about: role, layer, generation, waited.

        Raises the function's own exception at the caller that made the call, FlightFailed and its kind
        at the others, StillRunning when the wait budget ends, Overloaded when a limit turned the caller away,
        CoordinationUnavailable when PostgreSQL is out of reach and the mode is "distributed".
        """
        here = runtime()
        outcome = here.coordinator.run(self._call(here, args, kwargs))
        if outcome.role is not Role.REPLAY:
            warn_inside_transaction(here, self.stage)
        return outcome

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> FlightHandle[R]:
        """Commit the call as a background flight for a Celery worker; joins or replays like any caller.

        It commits at once. When rows of the caller's transaction matter to the call, use
        `transaction.on_commit(lambda: f.submit(...))`.
        """
        here = runtime()
        call, submit = self._submitting(here, args, kwargs)
        row = submit()
        return here.coordinator.handle(call, row.flight_id, row.generation)

    def forget(self, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Drop the key's outcome, so that whoever asks from now on gets a new call; True if there was one.

        CoordinationUnavailable when a configured Redis can't confirm it; calling again is safe.
        """
        return runtime().forget(digest=self.key(*args, **kwargs).digest)

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Self: ...

    @overload
    def __get__(
        self: "SingleFlight[Concatenate[T, Q], R]", instance: T, owner: type | None = None
    ) -> "SingleFlight[Q, R]": ...

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """Bind a method; `self` is no part of the key: what it changes must be an argument."""
        return self if instance is None else self._bound_to(instance)


class AsyncSingleFlight(_Decorated[P, R]):
    """An async function whose equal calls become one flight; made by `single_flight`. Its forms are awaited.

    The call runs in a task of its own on the loop of the caller that won, and goes on when that caller is cancelled.
    """

    def __init__(self, function: Callable[P, Any], **given: Any) -> None:  # noqa: ANN401  (as `_Decorated` takes it)
        super().__init__(function, **given)
        markcoroutinefunction(self)

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return the value: called, joined or replayed."""
        return (await self.outcome(*args, **kwargs)).value

    async def outcome(self, *args: P.args, **kwargs: P.kwargs) -> Outcome[R]:
        """Return the value with how it came about, and raise what `SingleFlight.outcome` does."""
        here = runtime()
        return await here.coordinator.arun(self._call(here, args, kwargs))

    async def submit(self, *args: P.args, **kwargs: P.kwargs) -> AsyncFlightHandle[R]:
        """Commit the call as a background flight for a Celery worker; joins or replays like any caller."""
        here = runtime()
        call, submit = self._submitting(here, args, kwargs)
        row = await here.coordinator.loop_rim().do(submit)
        return here.coordinator.ahandle(call, row.flight_id, row.generation)

    async def forget(self, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Drop the key's outcome, so that whoever asks from now on gets a new call; True if there was one."""
        here = runtime()
        digest = self.key(*args, **kwargs).digest
        return await here.coordinator.loop_rim().do(lambda: here.forget(digest=digest))

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Self: ...

    @overload
    def __get__(
        self: "AsyncSingleFlight[Concatenate[T, Q], R]", instance: T, owner: type | None = None
    ) -> "AsyncSingleFlight[Q, R]": ...

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """Bind a method; `self` is no part of the key: what it changes must be an argument."""
        return self if instance is None else self._bound_to(instance)


class Decorator:
    """What `single_flight` returns: put it on a `def` or on an `async def`."""

    def __init__(self, **given: Any) -> None:  # noqa: ANN401  (as `_Decorated` takes it)
        self._given = given

    @overload
    def __call__(  # type: ignore[overload-overlap]  # a coroutine is a result too: the first that fits is meant
        self, function: Callable[P, Coroutine[Any, Any, R]]
    ) -> AsyncSingleFlight[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R]) -> SingleFlight[P, R]: ...

    def __call__(self, function: Callable[..., Any]) -> Any:
        """Return the function, folded."""
        kind = AsyncSingleFlight if inspect.iscoroutinefunction(function) else SingleFlight
        return kind(function, **self._given)


def warn_inside_transaction(here: Runtime, stage: str) -> None:
    """Say once per stage that the caller's own transaction stays open all the while."""
    if stage in _warned or here.database is None:
        return
    if any(connection.in_atomic_block for connection in connections.all(initialized_only=True)):
        _warned.add(stage)
        logger.warning(
            "stage %s is called inside a transaction, which stays open while the call runs or waits; call it outside",
            stage,
        )


def _register(flight: _Decorated[Any, Any]) -> None:
    held = registry.get(flight.stage)
    if held is not None and held._label != flight._label:  # noqa: SLF001  (its own class)
        raise InvalidRequest(
            f"stage {flight.stage!r} belongs to {held._label}; give {flight._label} a stage of its own"  # noqa: SLF001
        )
    registry[flight.stage] = flight
