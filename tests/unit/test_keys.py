"""Keys: what differs has another digest, what is equal has the same, the rest is refused (C29, C30).

Long, because the tables of what is equal and what is not are the point of it.
"""

import dataclasses
import json
import unicodedata
from collections import OrderedDict
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum
from types import MappingProxyType
from typing import Any
from uuid import UUID

import pytest
from django.http import QueryDict
from django.utils.functional import SimpleLazyObject
from django.utils.safestring import mark_safe
from hypothesis import given
from hypothesis import strategies as st

from singleflight_app import GLOBAL, FlightKey, InvalidRequest
from singleflight_app.domain.keys import SCOPE_LENGTH, check_stage, check_version, flight_key
from tests.golden.kinds import Box, Level, Number, Pair, Place, Point, Question, Rights, Text
from tests.golden.requests import saved_group
from tests.searching import searching


def key(request: Any, **changes: Any) -> FlightKey:  # noqa: ANN401  (whatever callers pass)
    options = {"namespace": "test", "stage": "score", "scope": "interview:7", "versions": ("1", "p"), **changes}
    return flight_key(
        options["namespace"],
        options["stage"],
        options["scope"],
        {"value": request},
        versions=options["versions"],
    )


LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(2**53 - 3, 2**53 + 3)
    | st.integers(2**53 - 3, 2**53 + 3).map(float)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.binary(max_size=20)
    | st.decimals(allow_nan=False, allow_infinity=False)
    | st.uuids()
    | st.dates()
    | st.times()
    | st.datetimes(timezones=st.just(UTC))
    | st.sampled_from([*Level, *Text, *Number, *Rights])
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(), inner, max_size=4)
        | st.builds(Point, inner, inner)
        | st.builds(Box[Any], content=inner)
    ),
    max_leaves=12,
)
TAG = st.sampled_from(["$uuid", "$date", "$decimal", "$int", "$bytes", "$enum", "$dataclass", "$$uuid"])
JSON = st.recursive(
    st.none() | st.booleans() | st.text() | st.integers(-(2**53) + 1, 2**53 - 1),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TAG | st.text(), inner, max_size=3),
    max_leaves=8,
)


def plain(value: Any) -> Any:  # noqa: ANN401
    """Return a form in which equal means equal as a request; written apart from the code under test."""
    match value:
        case Enum():
            return ("enum", type(value).__qualname__, plain(value.value))
        case bool() | None:
            return ("constant", value)
        case str():
            return ("text", unicodedata.normalize("NFC", value))
        case int() | float():
            return ("number", int(value) if value == int(value) else value)
        case Point():
            return ("dataclass", plain(value.x), plain(value.y))
        case Box():
            return ("model", plain(value.content))
        case list() | tuple():
            return ("list", *map(plain, value))
        case dict():
            names = {unicodedata.normalize("NFC", name): plain(item) for name, item in value.items()}
            return ("fields", frozenset(names.items()))
        case time():
            return ("time", value.replace(fold=0))
        case _:
            return (type(value).__name__, value)


@searching
@given(VALUES, VALUES)
def test_requests_have_one_digest_exactly_when_they_are_equal(one: object, other: object) -> None:
    """The digest is the identity: no two requests share it, and no request has two."""
    try:
        digests = key(one).digest, key(other).digest
    except InvalidRequest:
        return  # no canonical form; which those are is told below

    assert (digests[0] == digests[1]) == (plain(one) == plain(other))


def rewritten(value: Any) -> Any:  # noqa: ANN401
    """Return an equal request that is written otherwise."""
    match value:
        case Enum() | bool():
            return value
        case int() if abs(value) < 2**53:
            return float(value)
        case float() if value.is_integer():
            return int(value)
        case str():
            return unicodedata.normalize("NFD", value)
        case bytes():
            return bytearray(value)
        case list():
            return tuple(map(rewritten, value))
        case Point():
            return Point(rewritten(value.x), rewritten(value.y))
        case Box():
            return Box[Any](content=rewritten(value.content))
        case dict():
            return {rewritten(name): rewritten(item) for name, item in reversed(value.items())}
        case _:
            return value


@searching
@given(VALUES)
def test_a_request_written_otherwise_is_the_same_request(value: object) -> None:
    """C29: order, Unicode form, list or tuple, 1 or 1.0 change nothing."""
    try:
        digest = key(value).digest
    except InvalidRequest:
        return

    assert key(rewritten(value)).digest == digest


@searching
@given(VALUES)
def test_a_canonical_text_is_json_and_stays_the_same(value: object) -> None:
    """It explains the key to a person, and is what was hashed."""
    try:
        found = key(value)
    except InvalidRequest:
        return

    assert json.loads(found.canonical)["scope"] == "interview:7"
    assert key(value).canonical == found.canonical
    assert len(found.digest) == 32


@searching
@given(JSON)
def test_no_json_can_imitate_a_typed_value(document: object) -> None:
    """A request that came as JSON from outside never has the key of a UUID, a date or an enum."""
    typed = [UUID(int=1), date(2026, 5, 1), Decimal(1), b"x", Level.JUNIOR, Point(1), 2**60]

    try:
        digest = key(document).digest
    except InvalidRequest:
        return

    assert digest not in {key(value).digest for value in typed}


def test_a_tag_written_by_hand_is_not_the_tagged_value() -> None:
    """A mapping's own key that begins with `$` is escaped, at any depth and number of signs."""
    uuid = UUID(int=1)
    imitations = [{"$uuid": str(uuid)}, {"$$uuid": str(uuid)}, {"$$$uuid": str(uuid)}, [{"$uuid": str(uuid)}]]

    digests = {key(value).digest for value in [uuid, [uuid], *imitations]}

    assert len(digests) == 6


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        (0.0, -0.0),
        (2**60, float(2**60)),
        ("é", "e\u0301"),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ({"a": 1}, MappingProxyType({"a": 1})),
        ({"a": 1}, OrderedDict(a=1)),
        ({"é": 1}, {"e\u0301": 1}),
        ([1, 2], (1, 2)),
        ([1, 2], Pair(1, 2)),
        (Decimal("1.50"), Decimal("1.5")),
        (Decimal("0.0"), Decimal("-0")),
        (Decimal(100), Decimal("1E+2")),
        (b"x", bytearray(b"x")),
        (b"x", memoryview(b"x")),
        (
            datetime(2026, 5, 1, 12, tzinfo=UTC),
            datetime(2026, 5, 1, 20, tzinfo=timezone(timedelta(hours=8))),
        ),
        (Point(1), Point(1, 0)),
        (Question(text="a"), Question(text="a", points=[])),
        (Box[int](content=1), Box[int](content=1)),
        ("junior", mark_safe("junior")),
        ({"junior": 1}, {Text.JUNIOR: 1}),
        (Rights.READ | Rights.WRITE, Rights(3)),
        (UUID(int=1), UUID("00000000000000000000000000000001")),
        (Decimal("1e400000"), Decimal("10e399999")),
        (memoryview(b"xyz")[::2], b"xz"),
        (saved_group(7), SimpleLazyObject(lambda: saved_group(7))),
        ("x", SimpleLazyObject(lambda: "x")),
        (datetime(2026, 5, 1, 12, tzinfo=UTC), datetime(2026, 5, 1, 12, tzinfo=timezone.utc, fold=1)),  # noqa: UP017
    ],
)
def test_these_are_one_request(one: object, other: object) -> None:
    """C29: what Python, or a person, calls equal is one flight."""
    assert key(one).digest == key(other).digest


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (True, 1),
        (False, 0),
        (None, "None"),
        (None, False),
        ("1", 1),
        ("", None),
        ([], {}),
        ([], None),
        ([[1], 2], [[1, 2]]),
        (1, Number.ONE),
        ("junior", Text.JUNIOR),
        (Text.JUNIOR, Level.JUNIOR),
        (Level.JUNIOR, Level.SENIOR),
        (1, Decimal(1)),
        (Decimal("1.5"), 1.5),
        (Decimal("0.1"), Decimal("0.10000000000000000000000000000000001")),
        (2**53, 2**53 + 1),
        (2**64, 2**64 + 1),
        (10**400, 10**400 + 1),
        (-(2**53), 2**53),
        ("x", b"x"),
        (UUID(int=1), str(UUID(int=1))),
        (date(2026, 5, 1), "2026-05-01"),
        (date(2026, 5, 1), datetime(2026, 5, 1, tzinfo=UTC)),
        (time(1), "01:00:00"),
        (time(1), time(1, 0, 0, 1)),
        (Point(1), Place(x=1)),
        (Point(1), {"x": 1, "y": 0}),
        (Question(text="a"), {"text": "a", "points": []}),
        (Question(text="a"), Question.model_validate({"text": "a", "extra": 1})),
        (Question.model_validate({"text": "a", "level": 2}), Question(text="a", grade=2)),
        (Box[int](content=1), Box[float](content=1.0)),
        (Rights.READ, Rights.WRITE),
        (Rights(1), 1),
        (saved_group(7), saved_group(8)),
        (saved_group(7), 7),
        (QueryDict("a=1&a=2"), QueryDict("a=2")),
        (float(2**53), float(2**53) - 1),
        (0.1, 0.1 + 2**-56),
        ({"a": None}, {}),
    ],
)
def test_these_are_two_requests(one: object, other: object) -> None:
    """C29, C30: types and missing fields count."""
    assert key(one).digest != key(other).digest


@pytest.mark.parametrize(
    "change",
    [
        {"namespace": "other"},
        {"stage": "report"},
        {"scope": "interview:8"},
        {"scope": GLOBAL},
        {"versions": ("2", "p")},
        {"versions": ("1", "q")},
        {"versions": ("1p", "")},
    ],
)
def test_namespace_stage_scope_and_versions_keep_keys_apart(change: dict[str, Any]) -> None:
    """P9, C31, C32: whose answer it is, and of which prompt."""
    assert key("x", **change).digest != key("x").digest


def test_classes_of_one_name_in_two_modules_are_told_apart() -> None:
    """C30: a module is part of a class's name; only the module that first wrote out a generic class is not."""
    elsewhere = dataclasses.make_dataclass("Point", [("x", int), ("y", int, 0)])
    elsewhere.__module__ = "tests.elsewhere"

    digests = {key(value).digest for value in [Point(1), elsewhere(1)]}

    assert len(digests) == 2
    assert '"tests.golden.kinds.Box[int]"' in key(Box[int](content=1)).canonical


@pytest.mark.parametrize("scope", ["", " ", "\t", None, 7, b"a", "(global)", "a\x00b", "x" * (SCOPE_LENGTH + 1)])
def test_a_scope_that_could_mix_tenants_is_refused(scope: object) -> None:
    """P9: leaving it out is an error, not a default."""
    with pytest.raises(InvalidRequest, match="scope"):
        key("x", scope=scope)


def test_a_scope_has_to_fit_the_row_in_its_stored_form() -> None:
    """Some characters become two in NFC."""
    with pytest.raises(InvalidRequest, match="scope"):
        key("x", scope="\u0958" * SCOPE_LENGTH)


def test_two_spellings_of_a_scope_are_one() -> None:
    """As typed on two keyboards."""
    assert key("x", scope="é").digest == key("x", scope="e\u0301").digest


@pytest.mark.parametrize("stage", ["", "a b", "-a", "a/b", "a\n", "é", "x" * 101, None, 7])
def test_a_stage_that_no_label_can_carry_is_refused(stage: Any) -> None:  # noqa: ANN401
    """Stages are metric labels and parts of Redis keys."""
    with pytest.raises(InvalidRequest, match="is no stage name"):
        check_stage(stage)


def test_a_key_says_nothing_of_its_request_in_logs() -> None:
    """Arguments may be answers of people: only `canonical` has them."""
    found = key("a secret answer", scope="tenant:secret")

    assert "secret answer" in found.canonical
    assert "secret answer" not in f"{found} {found!r}"
    assert str(found) == f"score:{found.digest.hex()[:16]}"


@pytest.mark.parametrize("version", [3, True, None, ["3"], 1.0])
def test_a_version_that_is_no_text_is_refused(version: object) -> None:
    """3 and "3" would be two prompts to a key and one to its reader."""
    with pytest.raises(InvalidRequest, match=r"stage 'score': the version is .*; give a string"):
        check_version("score", version)


@pytest.mark.parametrize("request_", [None, ["answer"], "answer", Point(1)])
def test_a_request_that_is_no_mapping_is_refused(request_: Any) -> None:  # noqa: ANN401
    """`run` takes what makes two calls the same by name."""
    with pytest.raises(InvalidRequest, match=r"the request is .*; pass a dict of what makes two calls the same"):
        flight_key("test", "score", "interview:7", request_)
