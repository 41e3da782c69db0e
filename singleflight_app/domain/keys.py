"""What makes two calls the same flight: canonical text of a request, and its digest.

RFC 8785 JSON under SHA-256. Types that JSON lacks are tagged (`{"$uuid": "..."}`); a mapping's own
key that begins with `$` gets a second one, so that no input can imitate a tag.
"""

import dataclasses
import hashlib
import math
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import Any
from uuid import UUID

import rfc8785
from pydantic import BaseModel

from singleflight_app.domain.exceptions import InvalidRequest

MAX_DEPTH = 32
SCOPE_LENGTH = 200
GLOBAL_SCOPE = "(global)"
_SAFE_INTEGER = 2**53  #: from here on JSON readers round
_STAGE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_ADVICE = {
    set: "pass a sorted list",
    frozenset: "pass a sorted list",
    complex: "pass two numbers",
    type(lambda: 0): "pass a name that tells which function is meant",
}


class Global:
    """The scope of answers that everybody may share; spelled out as `GLOBAL`, never a default."""

    def __repr__(self) -> str:
        """Return the name it is imported by."""
        return "GLOBAL"


GLOBAL = Global()


@dataclass(frozen=True)
class FlightKey:
    """Identity of a flight: namespace, stage, versions, scope and canonical request.

    `digest` is the SHA-256 of the canonical text: 32 bytes. `canonical` is that text, for explaining a key;
    it holds the arguments, so keep it out of logs. A worker gets the digest without the text.
    """

    stage: str
    scope: str
    digest: bytes
    canonical: str = field(default="", repr=False, compare=False)

    def __str__(self) -> str:
        """Return stage and digest, safe for logs."""
        return f"{self.stage}:{self.digest.hex()[:16]}"


def flight_key(
    namespace: str,
    stage: str,
    scope: str | Global,
    request: Mapping[str, object],
    *,
    versions: tuple[str, ...] = (),
    sample: int = 1,
) -> FlightKey:
    """Return the key of a request; an argument that has no canonical form is `InvalidRequest`.

    `sample` tells further answers to one question apart; the first has the key of no sample at all.
    """
    text_of_scope = check_scope(stage, scope)
    head, tail = _frame(namespace, stage, versions)
    try:
        body = rfc8785.dumps(_mapping(request, "", 0))
        number = b"" if sample == 1 else b',"sample":%d' % sample
        text = b'%b,"request":%b%b,"scope":%b,%b' % (head, body, number, rfc8785.dumps(text_of_scope), tail)
    except (rfc8785.CanonicalizationError, UnicodeError) as exc:
        problem = f"stage {stage!r}: a string in the request is no valid Unicode ({exc}); pass clean text, or bytes"
        raise InvalidRequest(problem) from exc
    return FlightKey(stage, text_of_scope, hashlib.sha256(text).digest(), text.decode())


@lru_cache(maxsize=1000)
def _frame(namespace: str, stage: str, versions: tuple[str, ...]) -> tuple[bytes, bytes]:
    """Return what the canonical text of every key of a stage begins and ends with (names are in RFC 8785's order)."""
    head = rfc8785.dumps({"namespace": namespace})
    tail = rfc8785.dumps({"stage": stage, "versions": list(versions)})
    return head[:-1], tail[1:]


def check_stage(stage: object) -> None:
    """Refuse a stage name that a metric label or a Redis key could not carry."""
    if not isinstance(stage, str) or not _STAGE_NAME.fullmatch(stage):
        raise InvalidRequest(
            f"stage {stage!r} is no stage name; use letters, digits, '-', '_' and '.', at most 100 of them"
        )


def check_sample(sample: object) -> None:
    """Refuse a sample that is no number from 1 on."""
    if isinstance(sample, bool) or not isinstance(sample, int) or not 1 <= sample < _SAFE_INTEGER:
        raise InvalidRequest(f"the sample is {sample!r}; give a whole number: 1 is the first answer, 2 the second")


def check_scope(stage: str, scope: object) -> str:
    """Return a scope's text (NFC); one that could mix tenants or that the row can't hold is InvalidRequest."""
    if isinstance(scope, Global):
        return GLOBAL_SCOPE
    if not isinstance(scope, str) or not scope.strip() or scope == GLOBAL_SCOPE:
        problem = f"stage {stage!r}: the scope is {scope!r}"
        repair = "give a non-empty string that names whose answer it is, or GLOBAL when everybody may share it"
        raise InvalidRequest(f"{problem}; {repair}")
    text = unicodedata.normalize("NFC", scope)
    if len(text) > SCOPE_LENGTH or "\x00" in text:
        raise InvalidRequest(
            f"stage {stage!r}: the scope has {len(text)} characters; use at most {SCOPE_LENGTH}, without NUL"
        )
    return text


def canonical(value: object, path: str, depth: int = 0) -> Any:  # noqa: ANN401  (JSON has no closed type here)
    """Return `value` in JSON types, equal for equal values; `path` names it in an error."""
    if depth > MAX_DEPTH:
        raise InvalidRequest(f"argument {path}: nested deeper than {MAX_DEPTH}; pass a flat value or an id")
    if isinstance(value, Enum):
        return {"$enum": [type(value).__qualname__, canonical(value.value, path, depth + 1)]}
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return unicodedata.normalize("NFC", value)
    if isinstance(value, int | float | Decimal):
        return _number(value, path)
    if isinstance(value, Mapping):
        return _mapping(value, path, depth)
    if isinstance(value, list | tuple):
        return [canonical(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)]
    return _tagged(value, path, depth)


def _number(value: Any, path: str) -> Any:  # noqa: ANN401  (int, float or Decimal)
    if isinstance(value, Decimal):
        return {"$decimal": _digits(value, path)}
    if isinstance(value, float) and not math.isfinite(value):
        raise _not_finite(path)
    if abs(value) >= _SAFE_INTEGER and (isinstance(value, int) or value.is_integer()):
        return {"$int": hex(int(value))}
    return value + 0  # a subclass of int or float becomes the plain number


def _not_finite(path: str) -> InvalidRequest:
    return InvalidRequest(f"argument {path} is no finite number; pass one, or None")


def _digits(value: Decimal, path: str) -> str:
    if not value.is_finite():
        raise _not_finite(path)
    # Not normalize(): it rounds to the precision of the thread's context.
    sign, digits, exponent = value.as_tuple()
    text = "".join(map(str, digits)).lstrip("0")
    stripped = text.rstrip("0")
    if not stripped:
        return "0"
    return f"{'-' if sign else ''}{stripped}e{int(exponent) + len(text) - len(stripped)}"


def _mapping(value: Mapping[Any, object], path: str, depth: int) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, item in value.items():
        if not isinstance(name, str):
            problem = f"argument {path} has the key {name!r}; pass a mapping with string keys, or a list of pairs"
            raise InvalidRequest(problem)
        text = unicodedata.normalize("NFC", name)
        escaped = f"${text}" if text.startswith("$") else text
        if escaped in fields:
            raise InvalidRequest(f"argument {path} has the name {name!r} twice in different Unicode forms; pass one")
        fields[escaped] = canonical(item, f"{path}[{name!r}]" if path else name, depth + 1)
    return fields


def _tagged(value: object, path: str, depth: int) -> dict[str, Any]:
    if isinstance(value, UUID):
        return {"$uuid": str(value)}
    if isinstance(value, datetime):
        return {"$datetime": _utc(value, path)}
    if isinstance(value, date):
        return {"$date": value.isoformat()}
    if isinstance(value, time):
        if value.tzinfo is not None:
            raise InvalidRequest(f"argument {path} is a time with a time zone; pass an aware datetime")
        return {"$time": value.isoformat()}
    if isinstance(value, bytes | bytearray | memoryview):
        return {"$bytes": hashlib.sha256(value).hexdigest()}
    if isinstance(value, BaseModel):
        fields = {name: getattr(value, name) for name in type(value).model_fields} | (value.model_extra or {})
        return {"$model": [type(value).__qualname__, _mapping(fields, path, depth)]}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {"$dataclass": [type(value).__qualname__, _mapping(fields, path, depth)]}
    if hasattr(value, "_meta") and hasattr(value, "pk") and not isinstance(value, type):
        return {"$row": _row(value, path, depth)}
    advice = _ADVICE.get(type(value), "pass its id, its text, or a dict of the fields that matter")
    raise InvalidRequest(f"argument {path} is a {type(value).__qualname__}, which has no canonical form; {advice}")


def _utc(value: datetime, path: str) -> str:
    if value.utcoffset() is None:
        raise InvalidRequest(
            f"argument {path} is a datetime without a time zone; pass an aware one (django.utils.timezone.now())"
        )
    try:
        return value.astimezone(UTC).isoformat()
    except OverflowError as exc:
        raise InvalidRequest(f"argument {path} is {value}, out of range in UTC; pass None instead") from exc


def _row(value: Any, path: str, depth: int) -> list[Any]:  # noqa: ANN401  (a Django model, unknown to the domain)
    if value.pk is None:
        raise InvalidRequest(f"argument {path} is an unsaved {type(value).__qualname__}; save it first, or pass a dict")
    return [value._meta.label_lower, canonical(value.pk, f"{path}.pk", depth + 1)]
