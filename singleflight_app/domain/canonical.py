"""The canonical form of a request: JSON types, equal for equal values and for no others.

A value's class may overwrite any method, so a builtin's own is asked (`str.__str__(value)`), and what a class is, not
what it says to be.
"""

import dataclasses
import hashlib
import math
from collections.abc import Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import Any, cast
from uuid import UUID

from pydantic import BaseModel

from singleflight_app.domain.exceptions import InvalidRequest
from singleflight_app.domain.reading import Form, Reading
from singleflight_app.domain.unkeyable import Unkeyable, advice_for, dotted_names, shown

SAFE_INTEGER = 2**53  #: from here on JSON readers round
_DJANGO_MODEL = "django.db.models.base.Model"
_DJANGO_LAZY = "django.utils.functional.LazyObject"


def canonical(request: object) -> dict[str, Any]:
    """Return a request by argument, in JSON types; InvalidRequest names the argument that has no canonical form."""
    if not issubclass(type(request), Mapping):
        raise InvalidRequest(f"the request is {shown(request)}; pass a dict of what makes two calls the same")
    try:
        return cast("dict[str, Any]", Reading(_form_of).of(request))
    except Unkeyable as exc:
        raise InvalidRequest(exc.sentence()) from exc


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


def _constant(_: Reading, value: bool | None) -> bool | None:  # noqa: FBT001  (a value like any other)
    return value


def _text(reading: Reading, value: str) -> str:
    return reading.of_text(value)


def _integer(reading: Reading, value: int) -> Any:  # noqa: ANN401
    number = int.__pos__(value)
    if -SAFE_INTEGER < number < SAFE_INTEGER:
        return number
    return {"$int": reading.of_text(hex(number))}


def _real(reading: Reading, value: float) -> Any:  # noqa: ANN401
    number = float.__add__(value, 0.0)
    if not math.isfinite(number):
        raise _not_finite()
    return _integer(reading, int(number)) if number.is_integer() else number


def _decimal(reading: Reading, value: Decimal) -> dict[str, str]:
    if not Decimal.is_finite(value):
        raise _not_finite()
    # Not normalize(): it rounds to the precision of the thread's context.
    sign, digits, exponent = Decimal.as_tuple(value)
    text = reading.of_text("".join(map(str, digits))).lstrip("0")
    stripped = text.rstrip("0")
    if not stripped:
        return {"$decimal": "0"}
    return {"$decimal": f"{'-' if sign else ''}{stripped}e{int(exponent) + len(text) - len(stripped)}"}


def _not_finite() -> Unkeyable:
    return Unkeyable("is no finite number", "pass one, or None")


def _datetime(_: Reading, value: datetime) -> dict[str, str]:
    if datetime.utcoffset(value) is None:
        problem = "is a datetime without a time zone"
        raise Unkeyable(problem, "make it aware, or leave it out with key= if it is the moment of the call")
    text = datetime.isoformat(value)
    try:
        return {"$datetime": datetime.fromisoformat(text).astimezone(UTC).isoformat()}
    except OverflowError as exc:
        raise Unkeyable(f"is {text}, out of range in UTC", "pass None instead") from exc


def _date(_: Reading, value: date) -> dict[str, str]:
    return {"$date": date.isoformat(value)}


def _time(_: Reading, value: time) -> dict[str, str]:
    if value.tzinfo is not None:
        raise Unkeyable("is a time with a time zone", "pass an aware datetime")
    return {"$time": time.isoformat(value)}


def _uuid(_: Reading, value: UUID) -> dict[str, str]:
    return {"$uuid": UUID.__str__(value)}


def _bytes(_: Reading, value: bytes | bytearray) -> dict[str, str]:
    return {"$bytes": hashlib.sha256(value).hexdigest()}


def _view(reading: Reading, value: memoryview) -> dict[str, str]:
    if value.format != "B" or value.ndim != 1:
        raise Unkeyable("is a memoryview of something else than bytes", "pass its tobytes()")
    return _bytes(reading, value.tobytes())


def _mapping(reading: Reading, value: Mapping[Any, object]) -> dict[str, Any]:
    return reading.of_mapping(value)


def _list(reading: Reading, value: list[object]) -> list[Any]:
    return reading.of_items(list.__iter__(value))


def _tuple(reading: Reading, value: tuple[object, ...]) -> list[Any]:
    return reading.of_items(tuple.__iter__(value))


def _enum(reading: Reading, value: Enum) -> dict[str, Any]:
    return {"$enum": [reading.of_kind(value), reading.of_inner(value._value_)]}


def _model(reading: Reading, value: BaseModel) -> dict[str, Any]:
    # A generic model's class is made where it is first written out (`Box[int]`): its origin is the same everywhere.
    origin = value.__pydantic_generic_metadata__["origin"] or type(value)
    form = [
        reading.of_text(f"{origin.__module__}.{type(value).__qualname__}"),
        reading.of_fields(value, type(value).model_fields),
    ]
    # Apart from the fields: an extra name may be that of a field with an alias.
    return {"$model": [*form, reading.of_mapping(value.model_extra)] if value.model_extra else form}


def _dataclass(reading: Reading, value: Any) -> dict[str, Any]:  # noqa: ANN401
    names = (field.name for field in dataclasses.fields(value))
    return {"$dataclass": [reading.of_kind(value), reading.of_fields(value, names)]}


def _mixed(_: Reading, value: object) -> Any:  # noqa: ANN401
    problem = f"is a {type(value).__qualname__}, a dataclass and a builtin type in one"
    raise Unkeyable(problem, "pass a dict of the fields that matter")


def _row(reading: Reading, value: Any) -> dict[str, Any]:  # noqa: ANN401  (a Django model)
    # A pk alone proves nothing: one with a default (uuid4) has it before it is saved.
    if value.pk is None or value._state.adding:  # noqa: SLF001  (documented by Django)
        problem = f"is an unsaved {type(value).__qualname__}"
        raise Unkeyable(problem, "save it first, or pass a dict of the fields that matter")
    return {"$row": [reading.of_text(value._meta.concrete_model._meta.label_lower), reading.of_inner(value.pk)]}


def _lazy(reading: Reading, value: Any) -> Any:  # noqa: ANN401  (Django's SimpleLazyObject, request.user for one)
    value.__class__  # noqa: B018  (makes it load what it wraps)
    return reading.of_inner(value._wrapped)  # noqa: SLF001  (nothing else has the thing itself)


def _refused(_: Reading, value: object) -> Any:  # noqa: ANN401
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
