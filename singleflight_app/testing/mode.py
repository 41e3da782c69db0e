"""Enters and leaves test mode."""

from contextlib import ExitStack
from types import TracebackType

from django.test.utils import TestContextDecorator

from singleflight_app.conf import MODES
from singleflight_app.domain.exceptions import wait_budget
from singleflight_app.testing.flights import Flights
from singleflight_app.testing.record import Record
from singleflight_app.testing.world import World
from singleflight_app.wiring import made_by


class flights_in_memory(TestContextDecorator):  # noqa: N801  (used like Django's override_settings)
    """Run every request through the real engine, with memory instead of servers, and a clock that is moved by hand.

    A context manager that gives a `Flights`; a decorator for a TestCase, which then has `self.flights`, and for a
    function, which gets it as the argument named by `kwarg_name`.

    The settings of the stages apply. `mode`: "local", "distributed" or "hybrid"; None: that of the settings, where
    "local" counts as "hybrid". `wait_timeout`: see `Flights.wait_timeout`. `strict`: a value that came back from its
    stored form as something else is an AssertionError at the end, if nothing else failed.
    """

    def __init__(
        self,
        *,
        mode: str | None = None,
        wait_timeout: float | None = None,
        strict: bool = True,
        attr_name: str = "flights",
        kwarg_name: str | None = None,
    ) -> None:
        super().__init__(attr_name, kwarg_name)
        if mode not in {None, *MODES}:
            raise ValueError(f"mode is {mode!r}; use one of {', '.join(MODES)}")
        self._mode, self._strict = mode, strict
        self._wait_timeout = None if wait_timeout is None else wait_budget(wait_timeout)
        self._entered = list[tuple[ExitStack, Record]]()

    def enable(self) -> Flights:
        """Enter test mode."""
        world = World(mode=self._mode, wait_timeout=self._wait_timeout)
        with ExitStack() as stack:
            stack.enter_context(made_by(world.make))
            stack.enter_context(world.record.listening())
            self._entered.append((stack.pop_all(), world.record))
        return Flights(world)

    def disable(self, *, has_failed: bool = False) -> None:
        """Leave it: what the process had before is back."""
        stack, record = self._entered.pop()
        stack.close()
        if record.changed and self._strict and not has_failed:
            stages = ", ".join(sorted(set(record.changed)))
            raise AssertionError(
                f"stage {stages}: a value came back from its stored form as something else, which its callers would "
                "have got; annotate the exact return type, or pass strict=False to flights_in_memory"
            )

    def __enter__(self) -> Flights:  # type: ignore[override]  # Django's own gives an app registry, or nothing
        """Enter test mode."""
        return self.enable()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Leave it: what the process had before is back."""
        self.disable(has_failed=kind is not None)
