"""Decorated functions: a `def` is called in a thread, an `async def` awaited on an event loop.

What both kinds share is `folded`; they differ where they wait.
"""

import inspect
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, overload

from asgiref.sync import markcoroutinefunction
from django.db import connections

from singleflight_app.domain.flight import Outcome
from singleflight_app.domain.states import Role
from singleflight_app.engine.handles import AsyncFlightHandle, FlightHandle
from singleflight_app.folded import Folded
from singleflight_app.wiring import Runtime, runtime

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
T = TypeVar("T")

logger = logging.getLogger("singleflight_app")
_warned: set[str] = set()


class SingleFlight(Folded[P, R]):
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

    @overload
    def __get__(self, instance: object, owner: type | None = None) -> Self: ...

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """Bind a method; `self` is no part of the key: what it changes must be an argument."""
        return self if instance is None else self._bound_to(instance, owner)


class AsyncSingleFlight(Folded[P, R]):
    """An async function whose equal calls become one flight; made by `single_flight`. Its forms are awaited.

    The call runs in a task of its own on the loop of the caller that won, and goes on when that caller is cancelled.
    """

    def __init__(self, function: Callable[P, Any], **given: Any) -> None:  # noqa: ANN401  (as `Folded` takes it)
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

    @overload
    def __get__(self, instance: object, owner: type | None = None) -> Self: ...

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """Bind a method; `self` is no part of the key: what it changes must be an argument."""
        return self if instance is None else self._bound_to(instance, owner)


class Decorator:
    """What `single_flight` returns: put it on a `def` or on an `async def`."""

    def __init__(self, **given: Any) -> None:  # noqa: ANN401  (as `Folded` takes it)
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
