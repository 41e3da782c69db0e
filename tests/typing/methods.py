"""Checked by mypy and pyright, never run: methods are bound, and keep their signature."""

from collections.abc import Callable
from typing import Generic, TypeVar, assert_type

from singleflight_app import GLOBAL, AsyncFlightHandle, FlightHandle, Outcome, single_flight

T = TypeVar("T")


class Interview:
    """A class whose methods are flights."""

    @single_flight("typed-method", scope=GLOBAL)
    def score(self, answer: str, *, question: int = 1) -> int:
        """A method."""
        return len(answer) + question

    @single_flight("typed-async-method", scope=GLOBAL)
    async def ascore(self, answer: str) -> int:
        """An async method."""
        return len(answer)

    @staticmethod
    @single_flight("typed-static-method", scope=GLOBAL)
    def length(answer: str) -> int:
        """A static method."""
        return len(answer)

    @classmethod
    @single_flight("typed-class-method", scope=GLOBAL)
    def of_all(cls, answer: str) -> int:
        """A class method."""
        return len(answer)


class Box(Generic[T]):
    """A class of which a method's result depends on what it holds."""

    @single_flight("typed-generic-method", scope=GLOBAL)
    def every(self, name: str) -> list[T]:
        """A method of a generic class."""
        return []


def takes(function: Callable[[str], int]) -> None:
    """Take any function."""


def on_an_object(interview: Interview, box: Box[int]) -> None:
    """The object stands in no signature."""
    assert_type(interview.score("a", question=2), int)
    assert_type(interview.score.outcome("a"), Outcome[int])
    assert_type(interview.score.submit("a"), FlightHandle[int])
    assert_type(interview.score.forget("a"), bool)
    assert_type(interview.score.options(sample=2)("a"), int)
    assert_type(box.every("a"), list[int])
    assert_type(box.every.outcome("a").value, list[int])
    takes(interview.score)
    interview.score(interview, "a")  # type: ignore[call-arg,arg-type]  # pyright: ignore[reportCallIssue]
    interview.score(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def on_the_class(interview: Interview) -> None:
    """Of the class, a method takes the object; a static one takes nothing more."""
    assert_type(Interview.score(interview, "a"), int)
    assert_type(Interview.length("a"), int)
    assert_type(Interview.length.outcome("a"), Outcome[int])
    Interview.score("a")  # type: ignore[call-arg,arg-type]  # pyright: ignore[reportCallIssue]


def beyond_the_checkers(interview: Interview) -> None:
    """Neither binds what stands below @classmethod, and mypy takes a static method of an object for a bound one."""
    Interview.of_all("a")  # type: ignore[call-arg,arg-type]  # pyright: ignore[reportCallIssue]
    interview.length("a")  # type: ignore[call-arg]


async def on_a_loop(interview: Interview) -> None:
    """What is awaited of an async method."""
    assert_type(await interview.ascore("a"), int)
    assert_type(await interview.ascore.outcome("a"), Outcome[int])
    assert_type(await interview.ascore.submit("a"), AsyncFlightHandle[int])
    assert_type(await Interview.ascore(interview, "a"), int)
