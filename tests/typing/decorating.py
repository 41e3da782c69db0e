"""Checked by mypy and pyright, never run: what may be decorated, and with what."""

from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, TypeVar, assert_type, overload

from singleflight_app import GLOBAL, AsyncSingleFlight, Outcome, Rejected, SingleFlight, single_flight

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


def interview_scope(interview_id: int) -> str:
    """Return whose answer it is."""
    return f"interview:{interview_id}"


def not_empty(texts: list[str]) -> None:
    """Look at a result."""
    if not texts:
        raise Rejected("nothing came")


def words_of(answer: str) -> str:
    """Return what is compared."""
    return answer.strip()


@single_flight("typed-scope", scope=interview_scope, version="1", key=words_of, accept=not_empty)
def words(interview_id: int, answer: str) -> list[str]:
    """A container keeps what it holds."""
    return answer.split()


# Which argument a lambda names is found when the module is imported: strict pyright alone asks for its type.
@single_flight("typed-lambda", scope=lambda name: f"name:{name}")  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
def found(name: str, other: str | None = None, *more: int, **flags: bool) -> dict[str, int] | None:
    """Every kind of parameter."""
    return None


@overload
def double(value: int) -> int: ...
@overload
def double(value: str) -> str: ...
@single_flight("typed-overloads", scope=GLOBAL)
def double(value: int | str) -> int | str:
    """An overload tells its callers more than the decorator could."""
    return value * 2


@single_flight("typed-generic", scope=GLOBAL)
def first(items: list[T]) -> T:
    """A generic function; only pyright has objects that are generic when they are called."""
    return items[0]


def timed(function: Callable[P, R]) -> Callable[P, R]:
    """Stand for a decorator of somebody else."""
    return function


@timed
@single_flight("typed-below", scope=GLOBAL)
def below(answer: str) -> int:
    """Another decorator above it takes it for a function."""
    return len(answer)


@single_flight("typed-above", scope=GLOBAL)
@timed
def above(answer: str) -> int:
    """Another decorator below it has made a function."""
    return len(answer)


def folded(function: Callable[P, R]) -> SingleFlight[P, R]:
    """Decorate what comes."""
    return SingleFlight(function, stage="typed-folded", scope=GLOBAL)


def afolded(function: Callable[P, Awaitable[R]]) -> AsyncSingleFlight[P, R]:
    """Decorate what comes."""
    return AsyncSingleFlight(function, stage="typed-afolded", scope=GLOBAL)


def signatures() -> None:
    """Parameters and results stay what they are."""
    assert_type(words(7, answer="a"), list[str])
    assert_type(words.outcome(7, "a").value[0], str)
    assert_type(found("a"), dict[str, int] | None)
    assert_type(found("a", None, 1, 2, flag=True), dict[str, int] | None)
    assert_type(found.outcome("a"), Outcome[dict[str, int] | None])
    assert_type(double(1), int)
    assert_type(double("a"), str)
    assert_type(below("a"), int)
    assert_type(above("a"), int)
    assert_type(folded(len).outcome("a"), Outcome[int])


def wrong_arguments() -> None:
    """They are told before anything runs."""
    words("7", "a")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    words(7)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    words(7, "a", "b")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    words.key(7, question="a")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    words.options(again=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    found("a", flag="yes")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    double(1.5)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    below(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def wrong_options() -> None:
    """So are the decorator's."""
    single_flight("typed", scope=7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    single_flight("typed", scope=len)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    single_flight("typed", scope=GLOBAL, key="answer")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    single_flight("typed", scope=GLOBAL, version=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    single_flight("typed", scope=GLOBAL, accept=True)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    single_flight(scope=GLOBAL)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def beyond_mypy(numbers: list[int]) -> Any:  # noqa: ANN401
    """To mypy an object has type parameters where it is made, not where it is called."""
    return first(numbers)  # type: ignore[arg-type]
