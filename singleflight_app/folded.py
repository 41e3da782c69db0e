"""What decorated functions of both kinds share: from a call's arguments to a flight's key and call."""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from types import MethodType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar, cast, get_type_hints

from pydantic import JsonValue

from singleflight_app.domain.exceptions import InvalidRequest, wait_budget
from singleflight_app.domain.keys import FlightKey, Global, check_sample, check_stage, check_version, flight_key
from singleflight_app.domain.policy import StagePolicy
from singleflight_app.domain.records import FlightSnapshot
from singleflight_app.domain.repeating import unrepeatable
from singleflight_app.domain.signatures import (
    Scope,
    check_accept,
    check_function,
    key_picker,
    receiver_of,
    scope_picker,
    without,
)
from singleflight_app.engine import background
from singleflight_app.engine.call import Call
from singleflight_app.outcomes.arguments import ArgumentsCodec
from singleflight_app.outcomes.codec import JsonCodec, for_policy
from singleflight_app.wiring import Runtime, runtime

if TYPE_CHECKING:
    from types import FunctionType

    from singleflight_app.outcomes.encryption import KeyRing

P = ParamSpec("P")
R = TypeVar("R")

registry: dict[str, "Folded[Any, Any]"] = {}  #: the function of each stage, for workers


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


class Folded(Generic[P, R]):
    """A function whose equal calls become one flight."""

    __name__: str
    __qualname__: str
    __signature__: inspect.Signature

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
        check_version(stage, version)
        check_function(function, stage)
        check_accept(accept, stage)
        functools.update_wrapper(cast("Any", self), function)
        self.stage, self.version = stage, version
        self.__wrapped__ = function
        self._function: Callable[..., Any] = function
        self._signature = inspect.signature(function)
        self._receiver = receiver_of(function, self._signature)
        self._names = [name for name in self._signature.parameters if name != self._receiver]
        self._scope = scope_picker(scope, self._names, stage)
        self._request = key_picker(key, self._names, stage)
        self._accept = accept
        self.label = f"{function.__module__}.{function.__qualname__}"[:200]
        self._codecs: dict[tuple[StagePolicy, KeyRing], JsonCodec[R]] = {}
        self._options = Options()
        _register(self)

    def key(self, *args: P.args, **kwargs: P.kwargs) -> FlightKey:
        """Return the key of a call, with `.canonical` to explain it and `.digest` to find it. Nothing is waited for."""
        return self._key(runtime(), self._bind(args, kwargs))

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

    def unrepeatable(self) -> dict[str, str]:
        """Return the parts of the key that, as it seems, never come twice, with what they are; for the checks."""
        counted = {*self._scope.names, *(self._request.names if self._request else self._names)}
        parameters = [item for name, item in self._signature.parameters.items() if name in counted]
        try:
            annotations = self._annotations
        except (
            InvalidRequest,
            AttributeError,
            SyntaxError,
            TypeError,
        ):  # told at the first call; names are enough here
            annotations = {}
        constants = cast("FunctionType", self.__wrapped__).__globals__.values()
        return unrepeatable(parameters, annotations, constants)

    def pending_call(self, here: Runtime, key: FlightKey, arguments: Mapping[str, str], flight_id: int) -> Call[R]:
        """Return the call of a worker that came for a pending flight; its key is the row's, never computed again."""

        def function() -> Any:  # noqa: ANN401  (the user's value, or what to await for it)
            bound = self._arguments.load(arguments)
            return self._function(*bound.args, **bound.kwargs)

        policy = here.settings.policy(self.stage)
        codec = self._codec(here, policy)
        return Call(key, policy, function, codec, 0.0, self.label, pending=flight_id, accept=self._accept)

    def _copy(self) -> Self:
        self._annotations  # noqa: B018  (resolved once, not by every copy)
        copy = type(self).__new__(type(self))
        copy.__dict__.update(self.__dict__)
        return copy

    def _bound_to(self, instance: object, owner: type | None) -> Any:  # noqa: ANN401  (a copy, or a method)
        """Bind a method; `self` is no part of the key: what it changes must be an argument."""
        if instance is owner:
            # Below @classmethod: Python 3.11 and 3.12 ask here, from 3.13 on it makes this very method by itself.
            return MethodType(cast("Any", self), instance)
        bound = self._copy()
        bound._function = functools.partial(self._function, instance)  # noqa: SLF001  (its own class)
        parameters = list(self._signature.parameters.values())[1:]
        bound._signature = bound.__signature__ = self._signature.replace(parameters=parameters)  # noqa: SLF001
        return bound

    @functools.cached_property
    def _annotations(self) -> dict[str, Any]:
        try:
            return get_type_hints(self.__wrapped__, include_extras=True)
        except NameError as exc:
            problem = f"stage {self.stage!r}: an annotation of {self.label} names what is not imported ({exc})"
            raise InvalidRequest(f"{problem}; import it outside of TYPE_CHECKING") from exc

    @functools.cached_property
    def _arguments(self) -> ArgumentsCodec:
        return ArgumentsCodec(self._signature, self._annotations)

    def _codec(self, here: Runtime, policy: StagePolicy) -> JsonCodec[R]:
        held = self._codecs.get((policy, here.keys))
        if held is None:
            held = for_policy(self._annotations.get("return", JsonValue), policy, here.keys)
            self._codecs[policy, here.keys] = held
        return held

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
        bound = self._signature.bind(*args, **kwargs)
        # From Python 3.13 on, forms looked up on a class method know nothing of the class.
        if self._receiver == "cls" and not isinstance(bound.arguments.get("cls", type), type):
            repair = f"give the class itself first, as in X.{self.__name__}.outcome(X, ...)"
            raise InvalidRequest(f"stage {self.stage!r}: {repair}")
        return bound

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
            self._key(here, self._bind(args, kwargs)),
            policy,
            functools.partial(self._function, *args, **kwargs),
            self._codec(here, policy),
            self._options.budget(policy),
            self.label,
            is_fresh=self._options.fresh,
            accept=self._accept,
        )

    def _submitting(
        self, here: Runtime, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Call[R], Callable[[], FlightSnapshot]]:
        """Return the call, and what commits it as a background flight."""
        if self._receiver is not None:
            raise InvalidRequest(f"stage {self.stage!r}: a worker has no `{self._receiver}`; submit a plain function")
        call = self._call(here, args, kwargs)
        bound = self._bind(args, kwargs)
        bound.apply_defaults()
        arguments = self._arguments.dump(bound.arguments)
        return call, lambda: background.submit(
            here.queue,
            call,
            arguments,
            send=here.send,
            on_replaced=here.coordinator.replaying.replaced,
        )


def _register(flight: Folded[Any, Any]) -> None:
    held = registry.get(flight.stage)
    if held is not None and held.label != flight.label:
        raise InvalidRequest(f"stage {flight.stage!r} belongs to {held.label}; give {flight.label} a stage of its own")
    registry[flight.stage] = flight
