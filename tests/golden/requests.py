"""The golden requests by name; `keys.json` has the canonical text and the digest of each."""

from collections import OrderedDict
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from types import MappingProxyType
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from django.contrib.auth.models import Group
from django.utils.functional import SimpleLazyObject

from singleflight_app import GLOBAL
from singleflight_app.domain.keys import FlightKey, flight_key
from tests.golden.kinds import Box, Level, Number, Pair, Place, Point, Question, Rights, Text


def saved_group(pk: int) -> Group:
    """Return a row as the ORM would load it."""
    return Group.from_db("default", ["id", "name"], [pk, "interviewers"])


def key_of(request: dict[str, Any], **changes: Any) -> FlightKey:  # noqa: ANN401  (whatever callers pass)
    """Return the key of a request under the golden namespace, stage, scope and versions, or under others."""
    given = {"namespace": "golden", "stage": "score", "scope": "interview:7", "versions": ("1", "prompt-3"), **changes}
    namespace, stage, scope = given.pop("namespace"), given.pop("stage"), given.pop("scope")
    return flight_key(namespace, stage, scope, request, **given)


_BERLIN = ZoneInfo("Europe/Berlin")
_VALUES: dict[str, Any] = {
    "none": None,
    "true": True,
    "false": False,
    "zero": 0,
    "minus zero": -0.0,
    "one": 1,
    "one as a float": 1.0,
    "minus one": -1,
    "one and a half": 1.5,
    "a tenth": 0.1,
    "smallest float": 5e-324,
    "small float": 1e-7,
    "small float written out": 0.000001,
    "largest safe integer": 2**53 - 1,
    "first unsafe integer": 2**53,
    "second unsafe integer": 2**53 + 1,
    "first unsafe integer as a float": float(2**53),
    "smallest unsafe integer": -(2**53),
    "snowflake": 1_790_123_456_789_012_345,
    "beyond 64 bits": 2**64 + 1,
    "googol": 10**100,
    "large float": 1e300,
    "empty text": "",
    "ascii": "a plain answer",
    "quotes and controls": '"\\\n\t\r\b\f\x00\x1f\x7f/',
    "composed": "\u00e9",
    "decomposed": "e\u0301",
    "hangul": "\u1112\u1161\u11ab",
    "ohm sign": "\u2126",
    "ligature": "\ufb01",
    "marks out of order": "a\u0301\u0323",
    "chinese": "\u9762\u8bd5",
    "emoji": "\U0001f44d\U0001f3fd",
    "number as text": "1",
    "uuid": UUID("12345678-1234-5678-1234-567812345678"),
    "uuid as text": "12345678-1234-5678-1234-567812345678",
    "date": date(2026, 5, 1),
    "first date": date(1, 1, 1),
    "time": time(12, 30),
    "time with microseconds": time(12, 30, 0, 7),
    "datetime": datetime(2026, 5, 1, 12, tzinfo=UTC),
    "datetime elsewhere": datetime(2026, 5, 1, 20, 0, 0, 7, tzinfo=timezone(timedelta(hours=8))),
    "datetime before the clocks go back": datetime(2026, 10, 25, 2, 30, tzinfo=_BERLIN),
    "datetime after the clocks went back": datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=_BERLIN),
    "decimal": Decimal("1.50"),
    "decimal zero": Decimal("-0.00"),
    "decimal with an exponent": Decimal("1E+1000000"),
    "small decimal": Decimal("-0.0000000000000000000000000000000000001"),
    "long decimal": Decimal("3.14159265358979323846264338327950288419716939937510"),
    "bytes": b"resume",
    "no bytes": b"",
    "bytearray": bytearray(b"resume"),
    "memoryview": memoryview(b"_resume")[1:],
    "every second byte": memoryview(b"r_e_s_u_m_e_")[::2],
    "enum": Level.JUNIOR,
    "text enum": Text.JUNIOR,
    "number enum": Number.ONE,
    "flags": Rights.READ | Rights.WRITE,
    "no flag": Rights(0),
    "dataclass": Point(1),
    "dataclass with every option": Place(x=1, scale=5),
    "model": Question(text="why?", grade=2),
    "model with unknown fields": Question.model_validate({"text": "why?", "grade": 2, "level": "x", "$uuid": "y"}),
    "generic model": Box[int](content=1),
    "row": saved_group(7),
    "lazy row": SimpleLazyObject(lambda: saved_group(7)),
    "empty list": [],
    "list": [1, "two", None],
    "tuple": (1, "two", None),
    "named tuple": Pair(1, 2),
    "nested lists": [[1], [[2]], []],
    "empty dict": {},
    "dict": {"b": 1, "a": 2},
    "ordered dict": OrderedDict(a=2, b=1),
    "read-only dict": MappingProxyType({"a": 2, "b": 1}),
    "names by UTF-16": {"\ufb33": 1, "\U0001f600": 2, "\u00e9": 3, "1": 4, "": 5},
    "decomposed name": {"e\u0301": 1},
    "imitated uuid": {"$uuid": "12345678-1234-5678-1234-567812345678"},
    "imitated twice": {"$$uuid": "12345678-1234-5678-1234-567812345678"},
    "everything in everything": {"model": Question(text="?", points=[Point(2**60)]), "list": [{"at": (date.max,)}]},
}

KEYS: dict[str, FlightKey] = {
    **{f"value: {name}": key_of({"value": value}) for name, value in _VALUES.items()},
    "no argument": key_of({}),
    "three arguments": key_of({"answer": "because", "question_id": 1, "interview_id": 7}),
    "a second sample": key_of({"value": 1}, sample=2),
    "a hundredth sample": key_of({"value": 1}, sample=100),
    "another version": key_of({"value": 1}, versions=("1", "prompt-4")),
    "no version": key_of({"value": 1}, versions=("", "")),
    "another namespace": key_of({"value": 1}, namespace="staging"),
    "another stage": key_of({"value": 1}, stage="interview-report"),
    "another scope": key_of({"value": 1}, scope="interview:8"),
    "a decomposed scope": key_of({"value": 1}, scope="caf\u0065\u0301"),
    "a global scope": key_of({"value": 1}, scope=GLOBAL),
}
