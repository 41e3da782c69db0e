"""The canonical form of a request: JSON types, equal for equal values and for no others.

A value's class may overwrite any method, so a builtin's own is asked (`str.__str__(value)`), and what a class is, not
what it says to be. Whatever is read, it ends: depth, values and characters of a request are bounded.
"""

import dataclasses
import hashlib
import math
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import Any, cast
from uuid import UUID

from pydantic import BaseModel

from singleflight_app.domain.exceptions import InvalidRequest
from singleflight_app.domain.texts import nfc
from singleflight_app.domain.unkeyable import Unkeyable, advice_for, dotted_names, shown

MAX_DEPTH = 32
MAX_VALUES = 100_000
MAX_CHARACTERS = 10_000_000
SAFE_INTEGER = 2**53  #: from here on JSON readers round
_DJANGO_MODEL = "django.db.models.base.Model"
_DJANGO_LAZY = "django.utils.functional.LazyObject"
_LESS = "pass an id, or bytes (the key holds their digest)"

Form = Callable[["_Reading", Any], Any]


def canonical(request: object) -> dict[str, Any]:
    """Return a request by argument, in JSON types; InvalidRequest names the argument that has no canonical form."""
    if not issubclass(type(request), Mapping):
        raise InvalidRequest(f"the request is {shown(request)}; pass a dict of what makes two calls the same")
    try:
        return cast("dict[str, Any]", _Reading().of(request))
    except Unkeyable as exc:
        raise InvalidRequest(exc.sentence()) from exc


class _Reading:
    """One request while it is read: how deep it is, and how much of it may still come."""

    __slots__ = ("characters", "depth", "values")

    def __init__(self) -> None:
        self.depth, self.values, self.characters = 0, MAX_VALUES, MAX_CHARACTERS

    def of(self, value: Any) -> Any:  # noqa: ANN401  (whatever callers pass; JSON has no closed type)
        """Return the form of a value of any kind."""
        self.values -= 1
        if self.values < 0:
            raise Unkeyable(f"makes more than {MAX_VALUES} values", _LESS)
        try:
            kind: Any = type(value)
            return _form_of(kind)(self, value)
        except Unkeyable:
            raise
        except Exception as exc:
            # Properties, iterators and time zones of the project's own run in here; their text may hold values.
            problem = f"is a {type(value).__qualname__} that can't be read ({type(exc).__name__})"
            raise Unkeyable(problem, "pass plain values") from exc

    def of_text(self, value: str) -> str:
        plain = str.__str__(value)
        self._count(len(plain))
        return nfc(plain)

    def of_digits(self, digits: str) -> str:
        self._count(len(digits))
        return digits

    def of_mapping(self, value: Any) -> dict[str, Any]:  # noqa: ANN401  (a dict, or a Mapping of any class)
        # A list is made in one go: another thread may write to a dict while it is read.
        pairs = list(dict.items(value)) if issubclass(type(value), dict) else value.items()
        return self.of_pairs(pairs, "[{!r}]" if self.depth else "{}")

    def of_fields(self, value: object, names: Iterable[str]) -> dict[str, Any]:
        return self.of_pairs(((name, getattr(value, name)) for name in names), ".{}")

    def of_pairs(self, pairs: Iterable[tuple[Any, object]], step: str) -> dict[str, Any]:
        self._deeper()
        fields: dict[str, Any] = {}
        for name, item in pairs:
            text = self._name(name)
            if text in fields:
                raise Unkeyable(f"has the name {shown(text)} twice, maybe in two Unicode forms", "pass one")
            try:
                fields[text] = self.of(item)
            except Unkeyable as exc:
                exc.steps.append(step.format(text.removeprefix("$")[:40]))
                raise
        self.depth -= 1
        return fields

    def of_items(self, items: Iterable[object]) -> list[Any]:
        self._deeper()
        forms: list[Any] = []
        for item in items:
            try:
                forms.append(self.of(item))
            except Unkeyable as exc:
                exc.steps.append(f"[{len(forms)}]")
                raise
        self.depth -= 1
        return forms

    def of_inner(self, value: object) -> Any:  # noqa: ANN401
        """Return what a value stands for: an enum's value, a row's pk, what a lazy object wraps."""
        self._deeper()
        form = self.of(value)
        self.depth -= 1
        return form

    def of_kind(self, value: object) -> str:
        return self.of_text(next(dotted_names(type(value))))

    def _name(self, name: Any) -> str:  # noqa: ANN401  (a string, or what is refused)
        if not issubclass(type(name), str):
            problem = f"has the key {shown(name)}, which is no string"
            raise Unkeyable(problem, "pass a dict with string keys, or a list of pairs")
        text = self.of_text(name)
        # A key of the request's own never looks like a tag.
        return f"${text}" if text.startswith("$") else text

    def _count(self, characters: int) -> None:
        self.characters -= characters
        if self.characters < 0:
            raise Unkeyable(f"makes more than {MAX_CHARACTERS} characters", _LESS)

    def _deeper(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unkeyable(f"is nested deeper than {MAX_DEPTH}", "pass a flat value or an id")


@lru_cache(maxsize=1000)
def _form_of(kind: type) -> Form:
    if issubclass(kind, Enum):
        return _enum
    if issubclass(kind, BaseModel):
        return _model
    if dataclasses.is_dataclass(kind):
        return _mixed if issubclass(kind, _BUILTINS) else _dataclass
    for base, form in _FORMS.items():
        if issubclass(kind, base):
            return form
    names = set(dotted_names(kind))
    if _DJANGO_MODEL in names:
        return _row
    return _lazy if _DJANGO_LAZY in names else _refused


def _constant(_: _Reading, value: bool | None) -> bool | None:  # noqa: FBT001  (a value like any other)
    return value


def _text(reading: _Reading, value: str) -> str:
    return reading.of_text(value)


def _integer(reading: _Reading, value: int) -> Any:  # noqa: ANN401
    number = int.__pos__(value)
    if -SAFE_INTEGER < number < SAFE_INTEGER:
        return number
    return {"$int": reading.of_digits(hex(number))}


def _real(reading: _Reading, value: float) -> Any:  # noqa: ANN401
    number = float.__add__(value, 0.0)
    if not math.isfinite(number):
        raise _not_finite()
    return _integer(reading, int(number)) if number.is_integer() else number


def _decimal(reading: _Reading, value: Decimal) -> dict[str, str]:
    if not Decimal.is_finite(value):
        raise _not_finite()
    # Not normalize(): it rounds to the precision of the thread's context.
    sign, digits, exponent = Decimal.as_tuple(value)
    text = reading.of_digits("".join(map(str, digits))).lstrip("0")
    stripped = text.rstrip("0")
    if not stripped:
        return {"$decimal": "0"}
    return {"$decimal": f"{'-' if sign else ''}{stripped}e{int(exponent) + len(text) - len(stripped)}"}


def _not_finite() -> Unkeyable:
    return Unkeyable("is no finite number", "pass one, or None")


def _datetime(_: _Reading, value: datetime) -> dict[str, str]:
    if datetime.utcoffset(value) is None:
        problem = "is a datetime without a time zone"
        raise Unkeyable(problem, "pass an aware one (django.utils.timezone.now())")
    text = datetime.isoformat(value)
    try:
        return {"$datetime": datetime.fromisoformat(text).astimezone(UTC).isoformat()}
    except OverflowError as exc:
        raise Unkeyable(f"is {text}, out of range in UTC", "pass None instead") from exc


def _date(_: _Reading, value: date) -> dict[str, str]:
    return {"$date": date.isoformat(value)}


def _time(_: _Reading, value: time) -> dict[str, str]:
    if value.tzinfo is not None:
        raise Unkeyable("is a time with a time zone", "pass an aware datetime")
    return {"$time": time.isoformat(value)}


def _uuid(_: _Reading, value: UUID) -> dict[str, str]:
    return {"$uuid": UUID.__str__(value)}


def _bytes(_: _Reading, value: bytes | bytearray) -> dict[str, str]:
    return {"$bytes": hashlib.sha256(value).hexdigest()}


def _view(reading: _Reading, value: memoryview) -> dict[str, str]:
    if value.format != "B" or value.ndim != 1:
        raise Unkeyable("is a memoryview of something else than bytes", "pass its tobytes()")
    return _bytes(reading, value.tobytes())


def _mapping(reading: _Reading, value: Mapping[Any, object]) -> dict[str, Any]:
    return reading.of_mapping(value)


def _list(reading: _Reading, value: list[object]) -> list[Any]:
    return reading.of_items(list.__iter__(value))


def _tuple(reading: _Reading, value: tuple[object, ...]) -> list[Any]:
    return reading.of_items(tuple.__iter__(value))


def _enum(reading: _Reading, value: Enum) -> dict[str, Any]:
    return {"$enum": [reading.of_kind(value), reading.of_inner(value._value_)]}


def _model(reading: _Reading, value: BaseModel) -> dict[str, Any]:
    # A generic model's class is made where it is first written out (`Box[int]`): its origin is the same everywhere.
    origin = value.__pydantic_generic_metadata__["origin"] or type(value)
    form = [
        reading.of_text(f"{origin.__module__}.{type(value).__qualname__}"),
        reading.of_fields(value, type(value).model_fields),
    ]
    # Apart from the fields: an extra name may be that of a field with an alias.
    return {"$model": [*form, reading.of_mapping(value.model_extra)] if value.model_extra else form}


def _dataclass(reading: _Reading, value: Any) -> dict[str, Any]:  # noqa: ANN401
    names = (field.name for field in dataclasses.fields(value))
    return {"$dataclass": [reading.of_kind(value), reading.of_fields(value, names)]}


def _mixed(_: _Reading, value: object) -> Any:  # noqa: ANN401
    problem = f"is a {type(value).__qualname__}, a dataclass and a builtin type in one"
    raise Unkeyable(problem, "pass a dict of the fields that matter")


def _row(reading: _Reading, value: Any) -> dict[str, Any]:  # noqa: ANN401  (a Django model)
    # A pk alone proves nothing: one with a default (uuid4) has it before it is saved.
    if value.pk is None or value._state.adding:  # noqa: SLF001  (documented by Django)
        problem = f"is an unsaved {type(value).__qualname__}"
        raise Unkeyable(problem, "save it first, or pass a dict of the fields that matter")
    return {"$row": [reading.of_text(value._meta.concrete_model._meta.label_lower), reading.of_inner(value.pk)]}


def _lazy(reading: _Reading, value: Any) -> Any:  # noqa: ANN401  (Django's SimpleLazyObject, request.user for one)
    value.__class__  # noqa: B018  (makes it load what it wraps)
    return reading.of_inner(value._wrapped)  # noqa: SLF001  (nothing else has the thing itself)


def _refused(_: _Reading, value: object) -> Any:  # noqa: ANN401
    problem = f"is a {type(value).__qualname__}, which has no canonical form"
    raise Unkeyable(problem, advice_for(type(value)))


#: the first that fits counts: a datetime is a date, too
_FORMS: dict[Any, Form] = {
    (type(None), bool): _constant,
    str: _text,
    int: _integer,
    float: _real,
    Decimal: _decimal,
    Mapping: _mapping,
    list: _list,
    tuple: _tuple,
    UUID: _uuid,
    datetime: _datetime,
    date: _date,
    time: _time,
    (bytes, bytearray): _bytes,
    memoryview: _view,
}
_BUILTINS = (str, int, float, Decimal, dict, list, tuple, UUID, date, time, bytes, bytearray)
