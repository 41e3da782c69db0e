"""Results as bytes: what comes back is what was returned, and damage is noticed (R13, R14).

Long by its tables of types: each is one that somebody will return.
"""

import dataclasses
import gzip
import hashlib
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, NamedTuple, Self
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, JsonValue, model_validator
from typing_extensions import TypedDict

from singleflight_app import InvalidRequest, ResultUnreadable
from singleflight_app.domain.flight import StoredResult
from singleflight_app.domain.policy import StagePolicy
from singleflight_app.outcomes.codec import GZIPPED, PLAIN, JsonCodec, for_policy, raw_json, readable
from tests.searching import searching

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


class Client:
    """What no JSON can say."""


NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


@searching
@given(JSON, st.sampled_from([None, 0, 20]))
def test_any_json_comes_back_as_it_was(value: JsonValue, compress_over: int | None) -> None:
    """R14: with None, "" and empty collections, compressed or not."""
    codec: JsonCodec[Any] = JsonCodec(compress_over=compress_over)

    stored = codec.encode(value)

    assert codec.decode(stored) == value
    assert stored.size == len(raw_json(stored))
    assert stored.checksum == hashlib.sha256(raw_json(stored)).digest()


@searching
@given(JSON, st.data())
def test_a_damaged_byte_is_noticed_or_harmless(value: JsonValue, data: st.DataObject) -> None:
    """R13: never another value; a gzip header has bytes that mean nothing, and those alone may differ."""
    codec: JsonCodec[Any] = JsonCodec(compress_over=data.draw(st.sampled_from([None, 0])))
    stored = codec.encode(value)
    where = data.draw(st.integers(0, len(stored.payload) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda byte: byte != stored.payload[where]))
    payload = stored.payload[:where] + bytes([byte]) + stored.payload[where + 1 :]

    try:
        found = codec.decode(stored._replace(payload=payload))
    except ResultUnreadable:
        return

    assert stored.encoding == GZIPPED
    assert found == value


@pytest.mark.parametrize(
    "damage",
    [
        lambda stored: stored._replace(payload=stored.payload[:-9]),
        lambda stored: stored._replace(payload=b""),
        lambda stored: stored._replace(payload=stored.payload * 2),
        lambda stored: stored._replace(payload=b"\x00" + stored.payload),
        lambda stored: stored._replace(checksum=b"x" * 32),
        lambda stored: stored._replace(checksum=b""),
        lambda stored: stored._replace(size=stored.size - 1),
        lambda stored: stored._replace(encoding=PLAIN),
    ],
)
def test_a_damaged_envelope_never_brings_another_value(damage: Any) -> None:  # noqa: ANN401
    """C35: cut, doubled, of an unknown version: it is unreadable, unless what was damaged means nothing."""
    codec: JsonCodec[Any] = JsonCodec(compress_over=0)
    value = ["some", "value"] * 50
    damaged = damage(codec.encode(value))

    try:
        found = codec.decode(damaged)
    except ResultUnreadable:
        return

    assert found == value
    assert damaged.encoding == GZIPPED


@pytest.mark.parametrize("encoding", ["2/json", "", "1/pickle", "1/json/zstd"])
def test_an_unknown_encoding_is_unreadable_by_name(encoding: str) -> None:
    """C35: written by a newer release, or by nobody."""
    with pytest.raises(ResultUnreadable, match=f"unknown encoding '{encoding}'"):
        JsonCodec().decode(StoredResult(b"1", encoding, hashlib.sha256(b"1").digest(), 1))


def test_decompression_stops_at_the_stored_size() -> None:
    """A few bytes that would become a gigabyte are not let loose."""
    bomb = gzip.compress(b"0" * 50_000_000)

    with pytest.raises(ResultUnreadable, match="checksum differs"):
        raw_json(StoredResult(bomb, GZIPPED, hashlib.sha256(b"0" * 50_000_000).digest(), 10))


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
        (list[Score], [Score(score=3), Score(score=4)]),
        (dict[str, Score | None], {"a": Score(score=3), "b": None}),
    ],
)
@pytest.mark.parametrize("compress_over", [None, 0])
def test_a_value_comes_back_as_its_annotation_says(annotation: Any, value: object, compress_over: int | None) -> None:  # noqa: ANN401
    """Types and digits are kept, whatever aliases a model has for its own API."""
    codec: JsonCodec[Any] = JsonCodec(annotation, compress_over=compress_over)

    copy = codec.decode(codec.encode(value))

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
        JsonCodec[Any](annotation).encode(value)


def test_a_refusal_does_not_repeat_the_value() -> None:
    """It is stored as the flight's failure and shown to people who may not read results."""
    with pytest.raises(ResultUnreadable) as refused:
        JsonCodec[Any](int).encode("my secret answer")

    assert "secret" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_value_that_holds_itself_is_refused() -> None:
    """No RecursionError reaches a caller."""
    endless: list[Any] = []
    endless.append(endless)

    with pytest.raises(ResultUnreadable):
        ANYTHING.encode(endless)


def test_a_result_of_an_older_return_type_is_unreadable() -> None:
    """C36: an outcome that no longer fits is told apart from a crash."""
    stored = INTEGERS.encode({"points": 3})

    with pytest.raises(ResultUnreadable, match=r"does not fit .* \(ValidationError\)"):
        JsonCodec(list[int]).decode(stored)


@pytest.mark.parametrize("annotation", [Client, list[Client], "NotThere", Unfinished])
def test_a_return_type_that_can_not_be_stored_is_refused_with_the_repair(annotation: Any) -> None:  # noqa: ANN401
    """When the function is first called, in one sentence, and not by pydantic."""
    with pytest.raises(InvalidRequest, match="can't be stored as JSON; use a pydantic model"):
        JsonCodec(annotation)


@pytest.mark.parametrize("annotation", [Score, Guarded, Score | int])
def test_a_stored_result_that_its_type_refuses_is_unreadable(annotation: Any) -> None:  # noqa: ANN401
    """C36: whatever the type's own validators raise."""
    with pytest.raises(ResultUnreadable):
        JsonCodec(annotation).decode(ANYTHING.encode({"x": "y"}))


def test_each_copy_is_a_copy() -> None:
    """C4: two callers never hold the same object."""
    codec: JsonCodec[list[list[int]]] = JsonCodec(list[list[int]])
    value = [[1]]
    stored = codec.encode(value)

    one, other = codec.decode(stored), codec.decode(stored)
    one[0].append(2)

    assert (value, other) == ([[1]], [[1]])


@pytest.mark.parametrize(
    ("policy", "size", "encoding"),
    [
        (StagePolicy(compress_over=100), 98, PLAIN),
        (StagePolicy(compress_over=100), 99, GZIPPED),
        (StagePolicy(compress_over=0), 1, GZIPPED),
        (StagePolicy(compress=False, compress_over=0), 5000, PLAIN),
    ],
)
def test_the_policy_says_what_is_compressed(policy: StagePolicy, size: int, encoding: str) -> None:
    """Above a size, by its raw bytes (two of them quotation marks here)."""
    assert for_policy(str, policy).encode("x" * size).encoding == encoding


def test_equal_values_are_equal_bytes() -> None:
    """No time of day in a gzip header."""
    codec: JsonCodec[str] = JsonCodec(str, compress_over=0)

    assert codec.encode("x" * 100) == codec.encode("x" * 100)


#: What release 0.1.0 wrote; every later one reads it.
SAMPLES = [
    StoredResult(b'{"points":7}', "1/json", hashlib.sha256(b'{"points":7}').digest(), 12),
    StoredResult(gzip.compress(b'{"points":7}', mtime=0), "1/json/gzip", hashlib.sha256(b'{"points":7}').digest(), 12),
]


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.encoding)
def test_results_of_earlier_releases_are_readable(sample: StoredResult) -> None:
    """A rolling deploy, or an answer stored yesterday."""
    assert JsonCodec(dict[str, int]).decode(sample) == {"points": 7}
    assert readable(sample) == '{"points":7}'
