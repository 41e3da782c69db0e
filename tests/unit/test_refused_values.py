"""What has no canonical form is refused: the sentence names the argument, and says what to pass instead.

Long by the table of what people pass.
"""

import array
import ast
import asyncio
import fractions
import functools
import io
import ipaddress
import math
import pathlib
import re
import tempfile
from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.contrib.auth.models import AnonymousUser, Group, User
from django.core.files.base import ContentFile
from django.core.files.uploadedfile import SimpleUploadedFile
from django.forms import Form
from django.http import HttpRequest
from django.utils.functional import SimpleLazyObject
from django.utils.translation import gettext_lazy

from singleflight_app import InvalidRequest
from singleflight_app.domain.canonical import canonical
from singleflight_app.domain.reading import MAX_DEPTH
from tests.golden.kinds import Level, Point


def foreign(dotted: str) -> object:
    """Return an instance of a class of a package that is not installed, with a subclass's name of its own."""
    module, _, name = dotted.rpartition(".")
    base = type(name, (), {"__module__": module, "__qualname__": name})
    return type("Sub", (base,), {})()


def numbers() -> Iterator[int]:
    """Yield once."""
    yield 1


def refusal(value: object) -> str:
    """Return the sentence that a caller reads."""
    with pytest.raises(InvalidRequest) as caught:
        canonical({"answer": value})
    return str(caught.value)


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (math.nan, "is no finite number; pass one, or None"),
        (-math.inf, "is no finite number; pass one, or None"),
        (Decimal("NaN"), "is no finite number; pass one, or None"),
        (Decimal("sNaN"), "is no finite number; pass one, or None"),
        (Decimal("-Infinity"), "is no finite number; pass one, or None"),
        (1j, "is a complex, which has no canonical form; pass two numbers"),
        (fractions.Fraction(1, 3), "pass numerator and denominator"),
        (foreign("numpy.generic"), "is a Sub, which has no canonical form; pass its item()"),
        (foreign("numpy.ndarray"), "pass its tolist(), or its tobytes() with shape and dtype"),
        (foreign("pandas.core.generic.NDFrame"), "pass its to_dict()"),
        (datetime(2026, 5, 1), "is a datetime without a time zone; make it aware, or leave it out with key="),  # noqa: DTZ001
        (time(1, tzinfo=UTC), "is a time with a time zone; pass an aware datetime"),
        (datetime.max.replace(tzinfo=timezone(timedelta(hours=-1))), "out of range in UTC; pass None instead"),
        (datetime.min.replace(tzinfo=timezone(timedelta(hours=1))), "out of range in UTC; pass None instead"),
        (timedelta(1), "is a timedelta, which has no canonical form; pass its total_seconds()"),
        (ZoneInfo("Asia/Shanghai"), "pass its name"),
        ({1, 2}, "is a set, which has no canonical form; pass a sorted list"),
        (frozenset({1}), "pass a sorted list"),
        ({"a": 1}.keys(), "pass a sorted list"),
        ({"a": 1}.items(), "pass the dict"),
        ({"a": 1}.values(), "pass a list of them"),
        (range(3), "pass a list of it, or its ends"),
        (deque([1]), "pass a list of it"),
        (array.array("i", [1]), "pass a list of it, or its tobytes()"),
        (memoryview(array.array("i", [1])), "is a memoryview of something else than bytes; pass its tobytes()"),
        (memoryview(b"abcd").cast("B", (2, 2)), "pass its tobytes()"),
        (numbers(), "is a generator, which has no canonical form; it can be read only once; pass a list"),
        (iter([1]), "it can be read only once; pass a list of what it yields"),
        (map(str, [1]), "it can be read only once; pass a list of what it yields"),
        (len, "pass a name that tells which function is meant"),
        (refusal, "pass a name that tells which function is meant"),
        (Point(1).__eq__, "pass"),
        (functools.partial(len, []), "pass a name that tells which function is meant"),
        (Level, "is a EnumType, which has no canonical form; pass its name"),
        (Point, "is a type, which has no canonical form; pass its name"),
        (ast, "pass its name"),
        (ValueError("no"), "pass str(...) of it"),
        (re.compile("a"), "pass its pattern"),
        (pathlib.PurePosixPath("a"), "pass str(...) of it, or the bytes of the file"),
        (pathlib.Path("a"), "pass str(...) of it, or the bytes of the file"),
        (ipaddress.ip_address("::1"), "pass str(...) of it"),
        (io.BytesIO(b"a"), "pass its bytes (the key holds their digest)"),
        (io.StringIO("a"), "pass its bytes (the key holds their digest)"),
        (ContentFile(b"a"), "pass its bytes (the key holds their digest)"),
        (SimpleUploadedFile("a", b"a"), "pass its bytes (the key holds their digest)"),
        (HttpRequest(), "pass what the answer depends on: ids, texts, the user's pk"),
        (foreign("rest_framework.request.Request"), "pass what the answer depends on"),
        (foreign("starlette.requests.HTTPConnection"), "pass what the answer depends on"),
        (Group(name="new"), "is an unsaved Group; save it first, or pass a dict of the fields that matter"),
        (Group(pk=7), "is an unsaved Group; save it first"),
        (Group, "is a ModelBase, which has no canonical form; pass its label"),
        (Group.objects.all(), "is a QuerySet, which has no canonical form; pass a list of its ids, in a fixed order"),
        (Group.objects, "pass a list of ids, in a fixed order"),
        (User.objects, "is a UserManager, which has no canonical form; pass a list of ids, in a fixed order"),
        (AnonymousUser(), "pass None when nobody is logged in"),
        (SimpleLazyObject(AnonymousUser), "pass None when nobody is logged in"),
        (Form(), "pass its cleaned_data"),
        (gettext_lazy("Sunday"), "pass str(...) of it"),
        ({1: 2}, "has the key 1, which is no string; pass a dict with string keys, or a list of pairs"),
        ({True: 2}, "has the key True, which is no string"),
        ({None: 2}, "has the key None, which is no string"),
        ({(1, 2): 3}, "has the key a tuple, which is no string"),
        ({"é": 1, "e\u0301": 2}, "has the name 'é' twice, maybe in two Unicode forms; pass one"),
        ("\ud800", "is no valid Unicode (surrogates not allowed); pass clean text, or bytes"),
        ({"\ud800": 1}, "is no valid Unicode"),
        (object(), "is a object, which has no canonical form; pass its id, its text, or a dict of the fields"),
        (foreign("somewhere.Thing"), "is a Sub, which has no canonical form; pass its id"),
    ],
)
def test_what_has_no_canonical_form_is_refused_by_name(value: object, sentence: str) -> None:
    """Sentences begin with the argument, and end with the repair."""
    found = refusal(value)

    assert found.startswith("argument answer ")
    assert sentence in found


def test_open_files_are_refused() -> None:
    """In text or bytes, real or temporary: where they were read to is no part of a request."""
    with pathlib.Path(__file__).open() as text, tempfile.NamedTemporaryFile() as named, tempfile.TemporaryFile() as one:
        found = [refusal(text), refusal(text.buffer), refusal(named), refusal(one)]

    assert all("pass its bytes (the key holds their digest)" in sentence for sentence in found)


def test_a_coroutine_that_nobody_awaited_is_refused() -> None:
    """Its result is what the answer depends on."""
    waiting = asyncio.sleep(0)

    found = refusal(waiting)

    waiting.close()
    assert found.endswith("await it, and pass the result")


@pytest.mark.parametrize(
    ("request_", "place"),
    [
        ({"answer": {"texts": ["a", math.nan]}}, "argument answer['texts'][1] is no finite number"),
        ({"answer": [Point(1, math.nan)]}, "argument answer[0].y is no finite number"),  # type: ignore[arg-type]
        ({"answer": {"$odd": [math.nan]}}, "argument answer['$odd'][0] is no finite number"),
        ({"question": 1, "answer": math.nan}, "argument answer is no finite number"),
        ({"answer": {"x" * 100_000: math.nan}}, f"argument answer['{'x' * 40}'] is no finite number"),
        ({2: 1}, "the request has the key 2, which is no string"),
    ],
)
def test_the_sentence_leads_to_the_place(request_: dict[Any, Any], place: str) -> None:
    """Values deep inside are found, and no name makes the sentence long."""
    with pytest.raises(InvalidRequest) as caught:
        canonical(request_)

    assert str(caught.value).startswith(place)


def test_what_is_nested_too_deep_is_refused_with_the_beginning_of_the_way() -> None:
    """Long before Python's own limit."""
    deep: object = 1
    for _ in range(MAX_DEPTH):
        deep = [deep]

    assert refusal(deep) == (
        f"argument answer{'[0]' * 8}... is nested deeper than {MAX_DEPTH}; pass a flat value or an id"
    )
