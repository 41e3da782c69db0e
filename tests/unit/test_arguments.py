"""Arguments of background flights: stored as JSON only when they come back equal and of the same type."""

import dataclasses
import inspect
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum, StrEnum
from typing import Any, NamedTuple, get_type_hints
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from singleflight_app import InvalidRequest
from singleflight_app.outcomes.arguments import ArgumentsCodec
from tests.searching import searching


class Level(Enum):
    """An enum as an argument."""

    JUNIOR = "junior"


class Text(StrEnum):
    """One that JSON takes for its text."""

    JUNIOR = "junior"


class Question(BaseModel):
    """A model with an alias."""

    text: str = Field(alias="questionText")


class Longer(Question):
    """What a base's annotation would lose a field of."""

    extra: int = 1


@dataclasses.dataclass
class Point:
    """A dataclass."""

    x: int


class Pair(NamedTuple):
    """A tuple with names."""

    first: int
    second: date


class Client:
    """What no JSON can say."""


def codec_of(function: Callable[..., object]) -> ArgumentsCodec:
    return ArgumentsCodec(inspect.signature(function), get_type_hints(function, include_extras=True))


def through(function: Callable[..., object], *args: object, **kwargs: object) -> inspect.BoundArguments:
    """Return the arguments as the worker's function would get them."""
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    codec = codec_of(function)
    return codec.load(codec.dump(bound.arguments))


def takes(annotation: Any) -> Callable[..., object]:  # noqa: ANN401
    """Return a function of one argument of that type."""

    def function(value: object) -> None:
        """Take it."""

    function.__annotations__["value"] = annotation
    return function


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, 2**70),
        (bool, True),
        (float, 1.5),
        (str, "snow ☃ man"),
        (bytes, b"\x00\xff"),
        (None, None),
        (Decimal, Decimal("1.10")),
        (UUID, UUID(int=7)),
        (date, date(2026, 5, 1)),
        (datetime, datetime(2026, 5, 1, tzinfo=UTC)),
        (Level, Level.JUNIOR),
        (Text, Text.JUNIOR),
        (Question, Question(questionText="a")),
        (Point, Point(1)),
        (Pair, Pair(1, date(2026, 5, 1))),
        (tuple[int, ...], (1, 2)),
        (list[UUID], [UUID(int=7)]),
        (dict[int, Decimal], {1: Decimal("1.5")}),
        (int | None, None),
        (Any, {"a": [1, "b", None, True, 1.5]}),
    ],
)
def test_an_argument_arrives_as_what_it_was(annotation: Any, value: object) -> None:  # noqa: ANN401
    """Its annotation says how to read it."""
    arrived = through(takes(annotation), value).arguments["value"]

    assert arrived == value
    assert type(arrived) is type(value)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, "7"),
        (int, 1.5),
        (str, 7),
        (str, Text.JUNIOR),
        (Any, UUID(int=7)),
        (Any, (1, 2)),
        (Any, Decimal("1.5")),
        (Any, date(2026, 5, 1)),
        (Any, {1: "a"}),
        (Any, Text.JUNIOR),
        (list[Any], [(1, 2)]),
        (float, float("nan")),
        (Question, Longer(questionText="a")),
        (list[Question], [Longer(questionText="a")]),
        (Any, object()),
        (Client, Client()),
        (str, "\ud800"),
    ],
)
def test_an_argument_that_would_change_is_refused_by_name(annotation: Any, value: object) -> None:  # noqa: ANN401
    """A worker that got another type would make another call."""
    with pytest.raises(InvalidRequest, match="argument value"):
        through(takes(annotation), value)


def test_an_argument_that_holds_itself_is_refused() -> None:
    """No RecursionError reaches whoever submits."""
    endless: list[object] = []
    endless.append(endless)

    with pytest.raises(InvalidRequest, match="argument value"):
        through(takes(Any), endless)


def test_a_refusal_repeats_no_argument() -> None:
    """It is logged, stored and shown; the argument may be somebody's answer."""
    with pytest.raises(InvalidRequest) as submitting:
        through(takes(int), "my secret answer")
    with pytest.raises(InvalidRequest) as running:
        codec_of(takes(int)).load({"value": '"my secret answer"'})

    for refused in (submitting, running):
        assert "secret" not in str(refused.value)
        assert "\n" not in str(refused.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@searching
@given(JSON)
def test_what_is_not_refused_comes_back_equal(value: object) -> None:
    """Any JSON value, annotated or not."""
    try:
        arrived = through(takes(Any), value).arguments["value"]
    except InvalidRequest:
        return

    assert arrived == value


def test_every_kind_of_parameter_is_bound_as_before() -> None:
    """Positional-only, keyword-only and omitted ones."""

    def function(first: int, /, second: date, *, third: str = "c") -> None:
        """Take three."""

    bound = through(function, 1, date(2026, 5, 1))

    assert bound.args == (1, date(2026, 5, 1))
    assert bound.kwargs == {"third": "c"}


def test_open_ended_parameters_are_refused() -> None:
    """Nothing says what their items are."""

    def starred(*values: int) -> None:
        """Take many."""

    def keywords(**values: int) -> None:
        """Take many by name."""

    for function in (starred, keywords):
        with pytest.raises(InvalidRequest, match=r"can't store \*values; give the function named arguments"):
            codec_of(function).dump({})


@pytest.mark.parametrize(
    "stored", [{}, {"other": "1"}, {"value": '"text"'}, {"value": "no json"}, {"value": "1", "x": "2"}]
)
def test_stored_arguments_that_no_longer_fit_are_refused(stored: dict[str, str]) -> None:
    """The function changed between two deployments: one sentence, whatever the difference."""
    with pytest.raises(InvalidRequest, match=r"(?s)do not fit the function any more.*submit the flight again"):
        codec_of(takes(int)).load(stored)
