"""Checked by mypy, never run: what a user's editor knows of test mode."""

from typing import assert_type

from django.test import TestCase

from singleflight_app import GLOBAL, single_flight
from singleflight_app.testing import Elsewhere, Flights, Request, flights_in_memory


@single_flight("typed-tested", scope=GLOBAL)
def score(answer: str, *, question: int = 1) -> int:
    """A function in a thread."""
    return question


@single_flight("typed-tested-async", scope=GLOBAL)
async def ascore(answer: str) -> int:
    """A function on a loop."""
    return len(answer)


class ScoreTest(TestCase):
    """Entered in setUp."""

    def setUp(self) -> None:
        """Enter test mode."""
        self.flights = self.enterContext(flights_in_memory(mode="distributed", wait_timeout=0, strict=False))
        assert_type(self.flights, Flights)


@flights_in_memory()
class DecoratedTest(TestCase):
    """Keeps its class."""

    flights: Flights


@flights_in_memory(kwarg_name="flights")
def decorated(answer: str, *, flights: Flights | None = None) -> int:
    """Keep its signature."""
    return score(answer)


def used() -> None:
    """Each form."""
    with flights_in_memory() as flights:
        assert_type(flights.calls(score), int)
        assert_type(flights.takeovers("typed-tested"), int)
        assert_type(flights.requests, list[Request])
        assert_type(flights.running(score, "a", question=2), Elsewhere[int])
        assert_type(flights.running(ascore, "a"), Elsewhere[int])
        assert_type(flights.take_over(score, "a"), Elsewhere[int])
        assert_type(flights.run_pending(), int)
        flights.running(score, "a").succeed(7)
        flights.running(score, "a").succeed("7")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        flights.crashed(score, 7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        flights.crashed(score)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
        flights.assert_called_once(score)
        flights.assert_called(ascore, times=2)
        flights.advance(3)
    assert_type(decorated("a"), int)
    assert_type(DecoratedTest(), DecoratedTest)
