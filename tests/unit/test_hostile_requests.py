"""Whatever is passed, a key or InvalidRequest comes back, soon: no other exception, and no lie of a value's class.

Long by the kinds of values that lie.
"""

import dataclasses
import itertools
import sys
import threading
from collections import OrderedDict, UserDict, defaultdict
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from decimal import Decimal
from enum import Enum
from typing import Any, Never, Self
from unittest.mock import MagicMock
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from singleflight_app import InvalidRequest
from singleflight_app.domain.canonical import canonical
from singleflight_app.domain.exceptions import wait_budget
from singleflight_app.domain.keys import check_sample, check_scope, check_stage, flight_key
from singleflight_app.domain.reading import MAX_CHARACTERS, MAX_DEPTH, MAX_VALUES
from singleflight_app.domain.texts import MOST_MARKS, nfc
from tests.golden.kinds import Box, Point, Question
from tests.searching import searching


def raising(*_: object, **__: object) -> Never:
    """Stand for any method or property that does not work."""
    raise ZeroDivisionError


class LyingText(str):
    """A string that says it is another."""

    __slots__ = ()
    __eq__ = __str__ = __repr__ = __format__ = encode = isascii = strip = startswith = __len__ = raising
    __hash__ = raising


class LyingInteger(int):
    """An int that counts otherwise."""

    __add__ = __int__ = __index__ = __pos__ = __abs__ = __eq__ = __lt__ = __str__ = __repr__ = raising
    __hash__ = raising


class LyingFloat(float):
    """A float that counts otherwise."""

    __add__ = __float__ = __int__ = __abs__ = __eq__ = is_integer = __str__ = __repr__ = raising
    __hash__ = raising


class LyingDecimal(Decimal):
    """A Decimal that counts otherwise."""

    as_tuple = is_finite = __eq__ = __str__ = __repr__ = raising
    __hash__ = raising


class LyingList(list[object]):
    """A list that hides its items."""

    __iter__ = __len__ = __getitem__ = __eq__ = __repr__ = raising
    __hash__ = None


class LyingTuple(tuple[object, ...]):
    """A tuple that hides its items."""

    __slots__ = ()
    __iter__ = __len__ = __getitem__ = __eq__ = __repr__ = raising
    __hash__ = raising


class LyingDict(dict[str, object]):
    """A dict that hides its items."""

    __iter__ = __len__ = __getitem__ = items = keys = __eq__ = __repr__ = raising
    __hash__ = None


class LyingDatetime(datetime):
    """A datetime that tells another time, as subclasses of time libraries might."""

    astimezone = utcoffset = isoformat = __eq__ = __str__ = __repr__ = raising
    __hash__ = raising


class LyingUUID(UUID):
    """A UUID that reads otherwise."""

    __str__ = __repr__ = __eq__ = raising
    __hash__ = raising


NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("lie", "plain"),
    [
        (lambda: LyingText("x"), "x"),
        (lambda: LyingText("e\u0301"), "\u00e9"),
        (lambda: [LyingText("$x")], ["$x"]),
        (lambda: LyingInteger(7), 7),
        (lambda: LyingInteger(2**60), 2**60),
        (lambda: LyingFloat(1.5), 1.5),
        (lambda: LyingFloat(2.0), 2),
        (lambda: LyingDecimal("1.50"), Decimal("1.5")),
        (lambda: LyingList([1, 2]), [1, 2]),
        (lambda: LyingTuple((1, 2)), (1, 2)),
        (lambda: LyingDict(a=1), {"a": 1}),
        (lambda: LyingDatetime(2026, 5, 1, 12, tzinfo=UTC), NOON),
        (lambda: LyingUUID(int=1), UUID(int=1)),
        (lambda: OrderedDict(a=1), {"a": 1}),
        (lambda: defaultdict(int, a=1), {"a": 1}),
        (lambda: UserDict(a=1), {"a": 1}),
    ],
)
def test_a_subclass_counts_as_what_it_holds(lie: Callable[[], object], plain: object) -> None:
    """Overwritten methods are not asked: two values share a key when their content is equal."""
    assert canonical({"value": lie()}) == canonical({"value": plain})


class Unreadable:
    """Nothing about an instance can be asked."""

    __eq__ = __hash__ = __repr__ = __str__ = __bool__ = __getattr__ = __iter__ = __len__ = raising

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        raise ZeroDivisionError


class Posing:
    """It says that it is a string."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return str


class EndlessMapping(Mapping[str, object]):
    """A mapping that never ends."""

    def __getitem__(self, name: str) -> object:
        return 1

    def __iter__(self) -> Iterator[str]:
        return map(str, itertools.count())

    def __len__(self) -> int:
        return sys.maxsize


class BrokenMapping(UserDict[str, object]):
    """A mapping whose items can't be read."""

    items = raising


class OddMapping(UserDict[str, object]):
    """A mapping whose items are no pairs."""

    def items(self) -> Any:  # noqa: ANN401
        return [1, 2]


class RepeatingMapping(UserDict[str, object]):
    """A mapping that has a name twice."""

    def items(self) -> Any:  # noqa: ANN401
        return [("a", 1), ("a", 2)]


class BrokenZone(tzinfo):
    """A time zone that can't tell its offset."""

    utcoffset = dst = tzname = raising


class EndlessZone(tzinfo):
    """A time zone a day away."""

    dst = tzname = raising

    def utcoffset(self, moment: datetime | None) -> timedelta:
        return timedelta(days=2)


class BrokenModel(BaseModel):
    """A model with a field that can't be read."""

    model_config = ConfigDict(extra="forbid")
    text: str

    def __getattribute__(self, name: str) -> Any:  # noqa: ANN401
        return raising() if name == "text" else super().__getattribute__(name)


@dataclasses.dataclass(slots=True)
class Unset:
    """A dataclass with a field that nobody sets."""

    x: int = dataclasses.field(init=False)


@dataclasses.dataclass
class Counted(str):  # noqa: SLOT000
    """A dataclass that is a string besides, so that two could differ in what is not read."""

    rank: int

    def __new__(cls, text: str, _: int) -> Self:
        """Return a text with a rank."""
        return str.__new__(cls, text)

    def __init__(self, _: str, rank: int) -> None:
        self.rank = rank


def endless_list() -> list[object]:
    """Return a list that holds itself."""
    endless: list[object] = []
    endless.append(endless)
    return endless


def endless_model() -> Question:
    """Return a model in whose unknown fields it stands itself."""
    again: list[object] = []
    model = Question.model_construct(text="?", points=[], level=1, again=again)
    again.append(model)
    return model


def doubling() -> list[object]:
    """Return a short list that takes 2**30 steps to walk."""
    value: list[object] = []
    for _ in range(MAX_DEPTH - 2):
        value = [value, value]
    return value


def released() -> memoryview:
    """Return a view that was given back."""
    view = memoryview(b"x")
    view.release()
    return view


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (Unreadable, "argument value is a Unreadable"),
        (Posing, "argument value is a Posing, which has no canonical form"),
        (MagicMock, "argument value is a MagicMock"),
        (lambda: MagicMock(spec=str), "argument value is a MagicMock"),
        (lambda: {Unreadable: 1}, "argument value has the key a type, which is no string"),
        (lambda: {10**5000: 1}, "argument value has the key a int, which is no string"),
        (EndlessMapping, f"makes more than {MAX_VALUES} values; pass an id, or bytes"),
        (BrokenMapping, "argument value is a BrokenMapping that can't be read (ZeroDivisionError); pass plain values"),
        (OddMapping, "argument value is a OddMapping that can't be read (TypeError); pass plain values"),
        (RepeatingMapping, "has the name 'a' twice"),
        (lambda: NOON.replace(tzinfo=BrokenZone()), "argument value is a datetime that can't be read"),
        (lambda: NOON.replace(tzinfo=EndlessZone()), "argument value is a datetime that can't be read (ValueError)"),
        (lambda: BrokenModel(text="x"), "argument value is a BrokenModel that can't be read (ZeroDivisionError)"),
        (Question.model_construct, "argument value is a Question that can't be read (AttributeError)"),
        (Unset, "argument value is a Unset that can't be read (AttributeError)"),
        (lambda: Counted("x", 1), "argument value is a Counted, a dataclass and a builtin type in one; pass a dict"),
        (released, "argument value is a memoryview that can't be read (ValueError)"),
        (endless_list, f"is nested deeper than {MAX_DEPTH}"),
        (endless_model, f"is nested deeper than {MAX_DEPTH}"),
        (doubling, f"makes more than {MAX_VALUES} values"),
        (lambda: [0] * MAX_VALUES, f"makes more than {MAX_VALUES} values"),
        (lambda: "x" * (MAX_CHARACTERS + 1), f"makes more than {MAX_CHARACTERS} characters; pass an id, or bytes"),
        (lambda: ["x" * 1_000_000] * 11, f"makes more than {MAX_CHARACTERS} characters"),
        (lambda: {"x" * (MAX_CHARACTERS + 1): 1}, f"makes more than {MAX_CHARACTERS} characters"),
        (lambda: 1 << (4 * MAX_CHARACTERS), f"makes more than {MAX_CHARACTERS} characters"),
        (lambda: "a" + "\u0301\u0323" * 1_000_000, f"has more than {MOST_MARKS} combining marks in a row; pass clean"),
        (lambda: "a" + "\u0f73" * 1_000_000, f"has more than {MOST_MARKS} combining marks in a row"),
        (lambda: {"a" + "\u0301" * 1_000_000: 1}, f"has more than {MOST_MARKS} combining marks in a row"),
    ],
)
@pytest.mark.timeout(20)
def test_a_hostile_value_is_refused_soon_and_by_name(make: Callable[[], object], sentence: str) -> None:
    """InvalidRequest and nothing else, whatever its methods raise and however large it makes itself."""
    value = make()

    with pytest.raises(InvalidRequest) as caught:
        canonical({"value": value})

    assert sentence in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "value",
    [
        "x" * (MAX_CHARACTERS - len("value")),
        {str(number): number for number in range(50_000)},
        [0] * (MAX_VALUES - 2),
        Decimal("1e999999999999999999"),
        Decimal("-1e-999999999999999999"),
        10**4400,
        "a" + "\u0301" * MOST_MARKS,
        "\ufdfa" * 100_000,
        "\x00" * 100_000,
        b"x" * 20_000_000,
        {f"name {number}": {"a": [number, str(number)]} for number in range(10_000)},
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.timeout(20)
def test_what_is_only_large_has_a_key_soon(value: object) -> None:
    """Answers may be long and numbers wide."""
    key = flight_key("test", "score", "interview:7", {"value": value})

    assert len(key.digest) == 32


def nested(levels: int) -> object:
    """Return every kind of container in the next."""
    value: object = 1
    kinds: list[Callable[[object], object]] = [
        lambda inner: [inner],
        lambda inner: (inner,),
        lambda inner: {"a": inner},
        lambda inner: Point(1, y=inner),  # type: ignore[arg-type]
        lambda inner: Question.model_validate({"text": "?", "inner": inner}),
        lambda inner: Box[Any](content=inner),
        lambda inner: UserDict(a=inner),
    ]
    for kind in itertools.islice(itertools.cycle(kinds), levels):
        value = kind(value)
    return value


@pytest.mark.parametrize("levels", [7, 20])
def test_every_container_nests_in_every_other(levels: int) -> None:
    """To the same depth, with a key that can be read."""
    key = flight_key("test", "score", "interview:7", {"value": nested(levels)})

    assert key.digest == flight_key("test", "score", "interview:7", {"value": nested(levels)}).digest


@pytest.mark.parametrize("levels", [40, 400])
def test_every_container_is_bounded_in_every_other(levels: int) -> None:
    """By depth, before Python's own limit."""
    with pytest.raises(InvalidRequest, match=f"is nested deeper than {MAX_DEPTH}"):
        canonical({"value": nested(levels)})


def test_a_dict_that_another_thread_writes_to_has_a_key() -> None:
    """It is read in one go, and not found to have changed its size."""
    shared: dict[str, object] = {str(number): number for number in range(1000)}
    stop = threading.Event()

    def writes() -> None:
        for number in itertools.takewhile(lambda _: not stop.is_set(), itertools.count()):
            shared[f"more {number % 100}"] = number
            shared.pop(f"more {(number + 50) % 100}", None)

    writer = threading.Thread(target=writes)
    writer.start()
    try:
        found = [len(canonical({"value": shared})["value"]) for _ in range(300)]
    finally:
        stop.set()
        writer.join()

    assert min(found) >= 1000


def test_an_argument_of_a_caller_near_the_recursion_limit_is_refused() -> None:
    """Python's own limit is met as any other: by name."""

    def call(depth: int) -> None:
        if depth:
            call(depth - 1)
        else:
            canonical({"value": nested(20)})

    room = sys.getrecursionlimit() - 20
    depths = range(room, room - 200, -1)

    for depth in depths:
        try:
            call(depth)
        except RecursionError:
            continue
        except InvalidRequest as exc:
            assert "can't be read (RecursionError)" in str(exc)  # noqa: PT017  (it is met somewhere among these)


@pytest.mark.parametrize(
    "make", [lambda: LyingInteger(1), Unreadable, lambda: 10**5000, lambda: "x" * 1_000_000, lambda: b"x" * 1_000_000]
)
@pytest.mark.parametrize(
    "check",
    [check_sample, check_stage, lambda value: check_scope("score", value)],
    ids=["sample", "stage", "scope"],
)
def test_a_wrong_name_or_number_is_refused_in_a_short_sentence(
    check: Callable[[object], object], make: Callable[[], object]
) -> None:
    """Whatever its text would be."""
    value = make()

    with pytest.raises(InvalidRequest) as caught:
        check(value)

    assert len(str(caught.value)) < 300


def test_a_wait_beyond_every_clock_is_refused() -> None:
    """An int may be larger than every float."""
    with pytest.raises(InvalidRequest, match="the wait budget is a int; give seconds"):
        wait_budget(10**400)


def test_a_scope_counts_as_what_it_holds() -> None:
    """P9: a string's class can't make two tenants one."""
    assert check_scope("score", LyingText("tenant:1")) == "tenant:1"
    with pytest.raises(InvalidRequest, match="the scope is"):
        check_scope("score", LyingText(" "))


@searching
@given(st.text(alphabet="a\u0301\u0323\u0f73\u0344\u1161\u1112\u11ab\ufb01\u2126\u1f82", max_size=30))
def test_nfc_is_stable(text: str) -> None:
    """Text that was normalised stays as it is."""
    assert nfc(nfc(text)) == nfc(text)


def test_an_enum_counts_by_class_and_value() -> None:
    """Its methods are not asked."""

    class Told(Enum):
        """An enum that tells another value."""

        ONE = 1
        TWO = 2
        value = property(lambda _: 3)

    assert canonical({"value": Told.ONE}) != canonical({"value": Told.TWO})
