"""Which parts of a key never come twice, as far as names, types and defaults tell: moments, and random ids.

With one of them a key is that of a single call: nothing is shared, nothing replayed. It is a guess, so only names that
speak of the call itself count. `requested_at` is made anew by each request; `started_at` and `updated_at` of an
interview are stored and come again, and so does `interview_id`, UUID or not. A `request_id` that is a number is that
of a row.
"""

import dataclasses
import inspect
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import date, datetime
from functools import partial
from typing import Any, get_args
from uuid import UUID

from pydantic import BaseModel

MOMENT = "a moment"
RANDOM = "a random id"
_NAMES = {
    **dict.fromkeys(
        ["now", "timestamp", "current_time", "current_timestamp", "request_time", "requested_at", "called_at"], MOMENT
    ),
    **dict.fromkeys(
        ["request_id", "request_uuid", "trace_id", "traceparent", "span_id", "correlation_id", "nonce", "random_id"],
        RANDOM,
    ),
}
_STORED = {MOMENT: {bool, date}, RANDOM: {bool, int}}  #: a value of these is no moment, no random id
_MAKERS = {"uuid1", "uuid4", "uuid6", "uuid7", "now", "utcnow", "time_ns", "monotonic", "token_hex", "token_urlsafe"}
_RANDOM_VERSIONS = {1, 4, 6, 7}


def unrepeatable(
    parameters: Iterable[inspect.Parameter], annotations: Mapping[str, Any], constants: Collection[object]
) -> dict[str, str]:
    """Return what never comes twice among a key's parameters, with what it is; `constants` are the module's values."""
    found: dict[str, str] = {}
    for parameter in parameters:
        kinds = list(_kinds(annotations.get(parameter.name, Any)))
        if (told := _told(parameter.name, kinds)) is not None:
            found[parameter.name] = told
        elif _is_made_at_import(parameter.default, constants):
            found[parameter.name] = "another default in every process"
        for kind in kinds:
            for field in _fresh_fields(kind):
                found[f"{parameter.name}.{field}"] = f"made anew by each {kind.__name__}"
    return found


def _told(name: str, kinds: Collection[Any]) -> str | None:
    by_name = _NAMES.get(name)
    if by_name is not None and not _STORED[by_name].intersection(kinds):
        return by_name
    return next((RANDOM for kind in kinds if _NAMES.get(_snake(kind)) == RANDOM and not _is_number(kind)), None)


def _snake(kind: Any) -> str:  # noqa: ANN401  (a class, or a NewType)
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", getattr(kind, "__name__", "")).lower()


def _is_number(kind: Any) -> bool:  # noqa: ANN401
    base = getattr(kind, "__supertype__", kind)
    return isinstance(base, type) and issubclass(base, int)


def _kinds(annotation: Any) -> Iterator[Any]:  # noqa: ANN401  (whatever a signature may say)
    """Yield the types in an annotation, those of a union or of `Annotated` one by one."""
    yield annotation
    for inner in get_args(annotation):
        yield from _kinds(inner)


def _is_made_at_import(default: object, constants: Collection[object]) -> bool:
    if any(default is constant for constant in constants):
        return False
    if isinstance(default, UUID):
        return default.version in _RANDOM_VERSIONS
    return isinstance(default, datetime) and default.microsecond != 0


def _fresh_fields(kind: Any) -> Iterator[str]:  # noqa: ANN401
    if not isinstance(kind, type):
        return
    if issubclass(kind, BaseModel):
        factories = {name: field.default_factory for name, field in kind.model_fields.items()}
    elif dataclasses.is_dataclass(kind):
        factories = {field.name: field.default_factory for field in dataclasses.fields(kind)}  # type: ignore[misc]
    else:
        return
    yield from (name for name, factory in factories.items() if not _MAKERS.isdisjoint(_calls(factory)))


def _calls(factory: Any) -> set[str]:  # noqa: ANN401  (a function, a lambda, a partial, or none)
    function = factory.func if isinstance(factory, partial) else factory
    code = getattr(function, "__code__", None)
    return {getattr(function, "__name__", ""), *(code.co_names if code else ())}
