"""Results as bytes: what comes back is what was returned, and damage is noticed (R13, R14).

Long by its tables of types: each is one that somebody will return.
"""

import dataclasses
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from math import inf
from typing import Annotated, Any, Generic, Literal, NamedTuple, Self, TypeVar
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, Json, JsonValue, computed_field, model_validator
from typing_extensions import TypedDict

from singleflight_app import InvalidRequest, ResultUnreadable
from singleflight_app.outcomes.codec import JsonCodec
from singleflight_app.outcomes.envelope import Envelope
from tests.searching import searching

T = TypeVar("T")
KEY = b"k" * 32
ANYTHING: JsonCodec[Any] = JsonCodec()
INTEGERS: JsonCodec[dict[str, int]] = JsonCodec(dict[str, int])

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
    max_leaves=15,
)


class Level(Enum):
    """An enum of a result."""

    JUNIOR = "junior"


class Score(BaseModel):
    """A model as foreign APIs write them."""

    points: int = Field(validation_alias="score")
    comment: str = Field("", alias="commentText")
    cost: Decimal = Field(Decimal(0), serialization_alias="costUSD")


class Strict(BaseModel):
    """A model as providers want it for their answers: nothing may be in it beyond its fields, one of which is JSON."""

    model_config = ConfigDict(extra="forbid")
    width: int
    marks: Json[list[int]]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def area(self) -> int:
        """Return what is no field."""
        return self.width**2


class Pair(NamedTuple):
    """A tuple with names."""

    first: int
    second: str


@dataclasses.dataclass
class Point:
    """A dataclass."""

    x: int
    at: datetime


class Fields(TypedDict):
    """A typed dict."""

    name: str
    when: date


class Guarded(BaseModel):
    """A model whose own check breaks."""

    x: str

    @model_validator(mode="after")
    def _check(self) -> Self:
        raise KeyError(self.x)


class Unfinished(BaseModel):
    """A model of which a part is nowhere."""

    part: "Missing"  # type: ignore[name-defined]  # noqa: F821


class Base(BaseModel):
    """A model that others build on."""

    a: int


class Derived(Base):
    """One that says more."""

    b: int


@dataclasses.dataclass
class BasePoint:
    """A dataclass that others build on."""

    x: int


@dataclasses.dataclass
class DerivedPoint(BasePoint):
    """One that says more."""

    y: int


class WithBytes(BaseModel):
    """A model that says nothing of how bytes are written."""

    raw: bytes
    share: float = 0.0


class WithBase64(WithBytes):
    """A model that does."""

    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="strings")


class RawFields(TypedDict):
    """Bytes in a typed dict."""

    raw: bytes


class Page(BaseModel, Generic[T]):
    """A generic model."""

    items: list[T]


class Client:
    """What no JSON can say."""


NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


@searching
@given(JSON, st.sampled_from([None, 0, 20]))
def test_any_json_comes_back_as_it_was(value: JsonValue, compress_over: int | None) -> None:
    """R14: with None, "" and empty collections, compressed or not."""
    codec: JsonCodec[Any] = JsonCodec(envelope=Envelope(compress_over))

    assert codec.decode(codec.encode(value, KEY), KEY) == value


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (None, None),
        (type(None), None),
        (bool, False),
        (int, 2**70),
        (float, float("inf")),
        (str, "snow ☃ man\x00"),
        (bytes, bytes(range(256))),
        (Decimal, Decimal("1.2345678901234567890123456789")),
        (UUID, UUID(int=7)),
        (date, date(2026, 5, 1)),
        (time, time(12, 30, 0, 1)),
        (datetime, NOON),
        (timedelta, timedelta(days=1, microseconds=1)),
        (Level, Level.JUNIOR),
        (Literal["a", "b"], "b"),
        (list[Decimal], [Decimal("0.10")]),
        (tuple[int, ...], (1, 2)),
        (set[str], {"a", "b"}),
        (frozenset[int], frozenset({1})),
        (dict[int, date], {1: date(2026, 5, 1)}),
        (dict[UUID, list[bytes]], {UUID(int=1): [b"\xff"]}),
        (int | None, None),
        (Annotated[int, Field(gt=0)], 5),
        (Pair, Pair(1, "a")),
        (Point, Point(1, NOON)),
        (Fields, {"name": "a", "when": date(2026, 5, 1)}),
        (Score, Score(score=3, commentText="good", cost=Decimal("0.1"))),
        (Strict, Strict.model_validate({"width": 2, "marks": "[1, 2]"})),
        (list[Score], [Score(score=3), Score(score=4)]),
        (dict[str, Score | None], {"a": Score(score=3), "b": None}),
    ],
)
@pytest.mark.parametrize("compress_over", [None, 0])
def test_a_value_comes_back_as_its_annotation_says(annotation: Any, value: object, compress_over: int | None) -> None:  # noqa: ANN401
    """Types and digits are kept, whatever aliases a model has for its own API."""
    codec: JsonCodec[Any] = JsonCodec(annotation, Envelope(compress_over))

    copy = codec.decode(codec.encode(value, KEY), KEY)

    assert copy == value
    assert type(copy) is type(value)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, "7"),
        (str, 7),
        (Score, {"points": 3}),
        (list[int], ["a"]),
        (JsonValue, object()),
        (str, "\ud800"),
        (type(None), "something"),
    ],
)
def test_a_value_that_does_not_fit_its_annotation_is_refused(annotation: Any, value: object) -> None:  # noqa: ANN401
    """A wrong type is an error, not a warning; the sentence has both."""
    with pytest.raises(ResultUnreadable, match=f"a {type(value).__qualname__} can't be stored as"):
        JsonCodec[Any](annotation).encode(value, KEY)


#: What JSON or pydantic loses without a word, and what every caller gets instead, the owner too (facts.md).
LOSSES: list[tuple[Any, object, object]] = [
    (Base, Derived(a=1, b=2), Base(a=1)),
    (list[Base], [Derived(a=1, b=2)], [Base(a=1)]),
    (BasePoint, DerivedPoint(1, 2), BasePoint(1)),
    (JsonValue, Decimal("1.50"), "1.50"),
    (JsonValue, date(2026, 5, 1), "2026-05-01"),
    (JsonValue, NOON, "2026-05-01T12:00:00Z"),
    (JsonValue, (1, 2), [1, 2]),
    (JsonValue, {1}, [1]),
    (JsonValue, {1: 2}, {"1": 2}),
    (JsonValue, float("inf"), "Infinity"),
    (Any, Decimal("1.50"), "1.50"),
    (Any, (1, 2), [1, 2]),
    (dict[str, Any], {"id": UUID(int=1)}, {"id": str(UUID(int=1))}),
    (list, [Decimal("1.50"), {1}], ["1.50", [1]]),
    (dict, {1: 2}, {"1": 2}),
    (Decimal | str, "1.50", Decimal("1.50")),
    (UUID | str, str(UUID(int=1)), UUID(int=1)),
    (datetime | str, "2026-05-01T12:00:00Z", NOON),
]


@pytest.mark.parametrize(("annotation", "value", "copy"), LOSSES)
def test_what_json_loses_is_lost_for_everybody_alike(annotation: Any, value: object, copy: object) -> None:  # noqa: ANN401
    """P2: one shape for all; that it is not what the function returned is announced (tests/integration)."""
    codec: JsonCodec[Any] = JsonCodec(annotation)

    found = codec.decode(codec.encode(value, KEY), KEY)

    assert found == copy
    assert type(found) is type(copy)
    assert found != value


@pytest.mark.parametrize(
    ("annotation", "value"),
    [(WithBytes, WithBytes(raw=b"\xff")), (RawFields, {"raw": b"\xff"}), (WithBytes, WithBytes(raw=b"a", share=inf))],
)
def test_what_a_models_own_form_can_not_say_is_refused(annotation: Any, value: Any) -> None:  # noqa: ANN401
    """A model brings its own form of bytes and infinity: the owner is told, and no follower meets it."""
    codec: JsonCodec[Any] = JsonCodec(annotation)

    with pytest.raises(ResultUnreadable):
        codec.decode(codec.encode(value, KEY), KEY)


def test_a_model_that_says_its_own_form_is_stored() -> None:
    """The repair of the refusal."""
    codec: JsonCodec[Any] = JsonCodec(WithBase64)
    value = WithBase64(raw=b"\xff", share=inf)

    assert codec.decode(codec.encode(value, KEY), KEY) == value


def test_a_generic_function_without_a_type_has_json() -> None:
    """A type variable says nothing of what is returned."""
    codec: JsonCodec[Any] = JsonCodec(T)

    assert codec.decode(codec.encode({"a": [1, None]}, KEY), KEY) == {"a": [1, None]}


@pytest.mark.parametrize(
    ("annotation", "value"),
    [(Page[int], Page[int](items=[1])), (list[Page[Level]], [Page[Level](items=[Level.JUNIOR])])],
)
def test_generic_models_come_back_whole(annotation: Any, value: object) -> None:  # noqa: ANN401
    """With the types that they were made for."""
    codec: JsonCodec[Any] = JsonCodec(annotation)

    assert codec.decode(codec.encode(value, KEY), KEY) == value


def test_a_refusal_does_not_repeat_the_value() -> None:
    """It is stored as the flight's failure and shown to people who may not read results."""
    with pytest.raises(ResultUnreadable) as refused:
        JsonCodec[Any](int).encode("my secret answer", KEY)

    assert "secret" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_value_that_holds_itself_is_refused() -> None:
    """No RecursionError reaches a caller."""
    endless: list[Any] = []
    endless.append(endless)

    with pytest.raises(ResultUnreadable):
        ANYTHING.encode(endless, KEY)


def test_a_result_of_an_older_return_type_is_unreadable() -> None:
    """C36: an outcome that no longer fits is told apart from a crash."""
    stored = INTEGERS.encode({"points": 3}, KEY)

    with pytest.raises(ResultUnreadable, match=r"does not fit .* \(ValidationError\)"):
        JsonCodec(list[int]).decode(stored, KEY)


@pytest.mark.parametrize("annotation", [Client, list[Client], "NotThere", Unfinished])
def test_a_return_type_that_can_not_be_stored_is_refused_with_the_repair(annotation: Any) -> None:  # noqa: ANN401
    """When the function is first called, in one sentence, and not by pydantic."""
    with pytest.raises(InvalidRequest, match="can't be stored as JSON; use a pydantic model"):
        JsonCodec(annotation)


@pytest.mark.parametrize("annotation", [Score, Guarded, Score | int])
def test_a_stored_result_that_its_type_refuses_is_unreadable(annotation: Any) -> None:  # noqa: ANN401
    """C36: whatever the type's own validators raise."""
    with pytest.raises(ResultUnreadable):
        JsonCodec(annotation).decode(ANYTHING.encode({"x": "y"}, KEY), KEY)


def test_each_copy_is_a_copy() -> None:
    """C4: two callers never hold the same object."""
    codec: JsonCodec[list[list[int]]] = JsonCodec(list[list[int]])
    value = [[1]]
    stored = codec.encode(value, KEY)

    one, other = codec.decode(stored, KEY), codec.decode(stored, KEY)
    one[0].append(2)

    assert (value, other) == ([[1]], [[1]])
