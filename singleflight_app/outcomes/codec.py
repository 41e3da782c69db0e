"""Results as bytes: JSON by the return annotation, in an envelope."""

from typing import Any, Generic, TypeVar

from pydantic import (
    ConfigDict,
    JsonValue,
    PydanticUserError,
    TypeAdapter,
)

from singleflight_app.domain.exceptions import InvalidRequest, ResultUnreadable
from singleflight_app.domain.flight import StoredResult
from singleflight_app.domain.policy import StagePolicy
from singleflight_app.outcomes.encryption import NO_KEYS, KeyRing
from singleflight_app.outcomes.envelope import Envelope

R = TypeVar("R")

#: JSON has no bytes and no infinity; these forms come back as what they were.
_CONFIG = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="strings")
_NOT_SEALED = Envelope()


class JsonCodec(Generic[R]):
    """Stores the results of one function; `annotation` is its return type, or JsonValue without one.

    Errors name types and no values: a result does not belong into a log.
    """

    def __init__(self, annotation: Any = JsonValue, envelope: Envelope = _NOT_SEALED) -> None:  # noqa: ANN401
        self._annotation, self._envelope = annotation, envelope
        self._adapter: TypeAdapter[R] = adapter_for(annotation, "the return type")

    def encode(self, value: R, digest: bytes) -> StoredResult:
        """Return the stored form, for the key of this digest; what does not fit the annotation is ResultUnreadable."""
        try:
            # For the way back: without what a model computes anew, and might refuse; with `Json` fields as their text.
            raw = self._adapter.dump_json(value, warnings="error", by_alias=False, round_trip=True)
        except Exception as exc:
            # Serializers and validators of the project's own types run in here and may raise anything.
            problem = f"a {type(value).__qualname__} can't be stored as {self._annotation!r} ({type(exc).__name__})"
            raise ResultUnreadable(problem) from exc
        return self._envelope.wrap(raw, digest)

    def decode(self, stored: StoredResult, digest: bytes) -> R:
        """Return a fresh copy; damaged bytes and values of another type are ResultUnreadable."""
        raw = self._envelope.unwrap(stored, digest)
        try:
            return self._adapter.validate_json(raw, by_alias=False, by_name=True)
        except Exception as exc:
            problem = f"the stored result does not fit {self._annotation!r} ({type(exc).__name__})"
            raise ResultUnreadable(problem) from exc


def adapter_for(annotation: Any, what: str) -> TypeAdapter[Any]:  # noqa: ANN401  (any type that pydantic knows)
    """Return pydantic's adapter; a type that it can't store is InvalidRequest."""
    try:
        adapter = _configured(annotation)
        adapter.rebuild(raise_errors=True)  # a type with a forward reference is only found out by its first use
    except (PydanticUserError, NameError) as exc:
        problem = f"{what}, {annotation!r}, can't be stored as JSON"
        raise InvalidRequest(f"{problem}; use a pydantic model, a dataclass, a TypedDict or plain types") from exc
    return adapter


def _configured(annotation: Any) -> TypeAdapter[Any]:  # noqa: ANN401
    try:
        return TypeAdapter(annotation, config=_CONFIG)
    except PydanticUserError:  # a model, dataclass or TypedDict brings its own config
        return TypeAdapter(annotation)


def for_policy(annotation: Any, policy: StagePolicy, keys: KeyRing = NO_KEYS) -> JsonCodec[Any]:  # noqa: ANN401
    """Return the codec of a function under its stage's policy, with the keys of this process."""
    return JsonCodec(annotation, Envelope(policy.compress_over if policy.compress else None, keys))
