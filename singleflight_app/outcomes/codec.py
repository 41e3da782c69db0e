"""Results as bytes: JSON by the return annotation, compressed above a size, under a checksum.

The encoding names the envelope's version, the codec and the compression, as in `1/json/gzip`.
Nothing is unpickled, and decompression stops at the size that was stored.
"""

import gzip
import hashlib
import zlib
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

R = TypeVar("R")

PLAIN = "1/json"
GZIPPED = "1/json/gzip"
#: JSON has no bytes and no infinity; these forms come back as what they were.
_CONFIG = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="strings")
_GZIP_LEVEL = 5
_GZIP_WINDOW = 16 + zlib.MAX_WBITS


class JsonCodec(Generic[R]):
    """Stores the results of one function; `annotation` is its return type, or JsonValue without one.

    Errors name types and no values: a result does not belong into a log.
    """

    def __init__(self, annotation: Any = JsonValue, *, compress_over: int | None = None) -> None:  # noqa: ANN401
        self._annotation, self._compress_over = annotation, compress_over
        self._adapter: TypeAdapter[R] = adapter_for(annotation, "the return type")

    def encode(self, value: R) -> StoredResult:
        """Return the stored form; a value that does not fit the annotation is ResultUnreadable."""
        try:
            raw = self._adapter.dump_json(value, warnings="error", by_alias=False)
        except Exception as exc:
            # Serializers and validators of the project's own types run in here and may raise anything.
            problem = f"a {type(value).__qualname__} can't be stored as {self._annotation!r} ({type(exc).__name__})"
            raise ResultUnreadable(problem) from exc
        checksum = hashlib.sha256(raw).digest()
        if self._compress_over is None or len(raw) <= self._compress_over:
            return StoredResult(raw, PLAIN, checksum, len(raw))
        return StoredResult(gzip.compress(raw, _GZIP_LEVEL, mtime=0), GZIPPED, checksum, len(raw))

    def decode(self, stored: StoredResult) -> R:
        """Return a fresh copy; damaged bytes and values of another type are ResultUnreadable."""
        raw = raw_json(stored)
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


def for_policy(annotation: Any, policy: StagePolicy) -> JsonCodec[Any]:  # noqa: ANN401  (any type that pydantic knows)
    """Return the codec of a function under its stage's policy."""
    return JsonCodec(annotation, compress_over=policy.compress_over if policy.compress else None)


def raw_json(stored: StoredResult) -> bytes:
    """Return the JSON text of a stored result, checked against its checksum."""
    if stored.encoding == PLAIN:
        raw = stored.payload
    elif stored.encoding == GZIPPED:
        raw = _decompressed(stored)
    else:
        raise ResultUnreadable(f"the stored result has the unknown encoding {stored.encoding!r}")
    if hashlib.sha256(raw).digest() != stored.checksum:
        raise ResultUnreadable("the stored result is damaged: its checksum differs")
    return raw


def readable(stored: StoredResult) -> str:
    """Return the JSON text of a stored result for a person; escape it before it is shown."""
    return raw_json(stored).decode()


def _decompressed(stored: StoredResult) -> bytes:
    try:
        # One byte more than was stored, so that a bomb shows as a wrong checksum.
        return zlib.decompressobj(_GZIP_WINDOW).decompress(stored.payload, stored.size + 1)
    except zlib.error as exc:
        raise ResultUnreadable(f"the stored result is damaged: {exc}") from exc
