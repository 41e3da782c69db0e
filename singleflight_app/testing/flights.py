"""What a test says and asks: let time pass, play other processes and outages, look at what was called."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, ParamSpec, TypeVar

from asgiref.sync import sync_to_async

from singleflight_app import api
from singleflight_app.conf import get_settings
from singleflight_app.domain.exceptions import InvalidRequest, wait_budget
from singleflight_app.domain.states import Status
from singleflight_app.engine.call import Call
from singleflight_app.folded import Folded, registry
from singleflight_app.testing.elsewhere import Elsewhere
from singleflight_app.testing.record import Request
from singleflight_app.testing.world import PlayedRuntime, World
from singleflight_app.wiring import runtime

P = ParamSpec("P")
R = TypeVar("R")

Stage = Folded[Any, Any] | str


class Flights:
    """The flights of one test. A `stage` is the decorated function, or the name of its stage."""

    def __init__(self, world: World) -> None:
        self._world = world

    @property
    def wait_timeout(self) -> float | None:
        """How many seconds callers wait at most, whatever their own budget is; None: only their budget counts.

        With 0, whoever would have to wait gets StillRunning at once: for tests of one thread, in which nobody could end
        the wait.
        """
        return self._world.wait_timeout

    @wait_timeout.setter
    def wait_timeout(self, seconds: float | None) -> None:
        self._world.wait_timeout = None if seconds is None else wait_budget(seconds)

    @property
    def requests(self) -> list[Request]:
        """What each request got so far, oldest first."""
        return list(self._world.record.requests)

    def calls(self, stage: Stage) -> int:
        """Return how often the function was called, the tries after a retryable error included."""
        name = self._named(stage)
        return sum(1 for key in self._world.record.calls if key.stage == name)

    def takeovers(self, stage: Stage) -> int:
        """Return how many flights this process took over from owners whose lease was over."""
        return self._world.record.takeovers[self._named(stage)]

    def assert_called_once(self, stage: Stage) -> None:
        """Raise AssertionError, with what was called and who got what, unless there was one call."""
        self.assert_called(stage, times=1)

    def assert_not_called(self, stage: Stage) -> None:
        """Raise AssertionError, with what was called and who got what, if there was a call."""
        self.assert_called(stage, times=0)

    def assert_called(self, stage: Stage, *, times: int | None = None) -> None:
        """Raise AssertionError unless there were `times` calls, or at least one if `times` is None."""
        count, name = self.calls(stage), self._named(stage)
        if count == times or (times is None and count):
            return
        wanted = "at least once" if times is None else _times(times)
        told = self._world.record.told(name)
        raise AssertionError(f"stage {name!r} was to be called {wanted}, and was called {_times(count)}:\n{told}")

    def advance(self, seconds: float | timedelta) -> None:
        """Let time pass at once: for leases, TTLs, retry times, wait budgets and breakers.

        Calls that run in this process, or healthily in another one, keep their leases: they would have beaten. Calls
        past their `execution_timeout` are ended. Whoever waits looks again.
        """
        self._here().coordinator.advance(_passing(seconds))

    def running(self, function: Folded[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Elsewhere[R]:
        """Play another process that runs this call; `succeed`, `fail` or `die` ends it, or the end of a `with`.

        Callers follow it. In a test of one thread, where nobody can end it while they wait, set `wait_timeout`.
        """
        return Elsewhere(self._world, self._call(function, *args, **kwargs))

    def crashed(self, function: Folded[P, R], /, *args: P.args, **kwargs: P.kwargs) -> None:
        """Play another process that began this call and died.

        Its lease is left. Once the test has let it run out, the next caller takes over.
        """
        self.running(function, *args, **kwargs).die()

    def take_over(self, function: Folded[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Elsewhere[R]:
        """Play another process that takes this call over from whoever runs it, as if the lease had run out.

        `succeed` gives the newer answer. The late one is refused: its callers get the newer, if it comes within their
        wait budget, else their own, marked `superseded`. The running call notices at its next beat.
        """
        call = self._call(function, *args, **kwargs)
        row = self._world.flights.find(call.key.digest)
        if row is None or row.status != Status.RUNNING:
            raise InvalidRequest(f"stage {function.stage!r}: there is no running call of these arguments to take over")
        self._world.flights.expire_lease(row.flight_id, row.generation, actor="")
        return Elsewhere(self._world, call)

    @contextmanager
    def outage(self) -> Iterator[None]:
        """Have PostgreSQL out of reach until the block ends."""
        with self._world.reach.outage():
            yield

    def run_pending(self) -> int:
        """Run what `submit` has queued so far, in this process, and return how many flights were run.

        What their functions raise is stored, as by a worker; what they submit waits for the next time.
        """
        self._here()
        if asyncio._get_running_loop() is not None:  # noqa: SLF001  (the public form raises where there is none)
            raise InvalidRequest("an event loop runs here: await flights.arun_pending() instead")
        queued, self._world.sent[:] = list(dict.fromkeys(self._world.sent)), []
        return sum(self._has_run(flight_id) for flight_id in queued)

    async def arun_pending(self) -> int:
        """Do what `run_pending` does, awaited."""
        return await sync_to_async(self.run_pending)()

    def _has_run(self, flight_id: int) -> bool:
        calls = self._world.record.calls
        before = len(calls)
        with suppress(Exception):
            api.run_pending(flight_id)
        return len(calls) > before

    def _call(self, function: Folded[P, R], *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        if not isinstance(function, Folded):
            raise InvalidRequest(f"{function!r} is no function under @single_flight")
        return function._call(self._here(), args, kwargs)  # noqa: SLF001  (what a caller of the function makes)

    def _named(self, stage: Stage) -> str:
        """Return the name of a stage; one that nobody has heard of is a typo, and no proof that nothing was called."""
        if isinstance(stage, Folded):
            return stage.stage
        asked = {request.stage for request in self._world.record.requests}
        known = {*registry, *get_settings().stages, *asked, *(key.stage for key in self._world.record.calls)}
        if stage in known:
            return stage
        names = ", ".join(sorted(known)) or "none"
        raise InvalidRequest(f"{stage!r} is no stage, and no function under @single_flight; the stages are: {names}")

    def _here(self) -> PlayedRuntime:
        here = runtime()
        if not isinstance(here, PlayedRuntime) or here.world is not self._world:
            raise InvalidRequest("this test mode is over, or another one has begun inside it")
        return here


def _passing(seconds: float | timedelta) -> float:
    try:
        return wait_budget(seconds)
    except InvalidRequest:
        raise InvalidRequest(f"advance({seconds!r}): give seconds from 0 on; time does not go back") from None


def _times(count: int) -> str:
    return {0: "not at all", 1: "once"}.get(count, f"{count} times")
