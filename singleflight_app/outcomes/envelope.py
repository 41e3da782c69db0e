"""The envelope of a stored result: compressed above a size, sealed where there are keys, under a checksum.

The encoding names how to open it: version, codec, compression, and the id of the key, as in `1/json`, `1/json/gzip`
and `1/json/gzip/aesgcm/1f2e3d4c`. Nothing is unpickled, and decompression stops at the size that was stored.

A sealed result is bound to its flight key: moved to another row, it does not open. Its checksum is that of the sealed
bytes, since that of a short answer would give the answer away.
"""

import gzip
import hashlib
import re
import sys
import zlib
from dataclasses import dataclass
from functools import lru_cache

from singleflight_app.domain.exceptions import ResultUnreadable, UnknownEnvelope
from singleflight_app.domain.flight import StoredResult
from singleflight_app.outcomes.encryption import NO_KEYS, DamagedSeal, KeyRing, UnknownKey

PLAIN = "1/json"
GZIPPED = "1/json/gzip"
_KNOWN = re.compile(r"1/json(?P<gzip>/gzip)?(/aesgcm/(?P<key>[0-9a-f]{8}))?")
_GZIP_LEVEL = 5
_GZIP_WINDOW = 16 + zlib.MAX_WBITS


@dataclass(frozen=True, slots=True)
class Envelope:
    """How results are put away: compressed above `compress_over` bytes (None: never), sealed with `keys`."""

    compress_over: int | None = None
    keys: KeyRing = NO_KEYS

    def wrap(self, raw: bytes, digest: bytes) -> StoredResult:
        """Return the stored form of a result of the flight key with this digest."""
        payload, encoding = raw, PLAIN
        if self.compress_over is not None and len(raw) > self.compress_over:
            payload, encoding = gzip.compress(raw, _GZIP_LEVEL, mtime=0), GZIPPED
        if self.keys.newest is None:
            return StoredResult(payload, encoding, hashlib.sha256(raw).digest(), len(raw))
        encoding = f"{encoding}/aesgcm/{self.keys.newest}"
        sealed = self.keys.seal(payload, _place(encoding, len(raw), digest))
        return StoredResult(sealed, encoding, _checksum(encoding, sealed), len(raw))

    def unwrap(self, stored: StoredResult, digest: bytes) -> bytes:
        """Return the raw bytes; damaged ones are ResultUnreadable, those that another release wrote UnknownEnvelope."""
        is_compressed, key_id = _form(stored.encoding)
        payload = stored.payload
        if key_id is not None:
            _check(_checksum(stored.encoding, payload), stored.checksum)
            payload = self._opened(key_id, stored, digest)
        raw = _decompressed(payload, stored.size) if is_compressed else payload
        if key_id is None:
            _check(hashlib.sha256(raw).digest(), stored.checksum)
        return raw

    def _opened(self, key_id: str, stored: StoredResult, digest: bytes) -> bytes:
        try:
            return self.keys.open(key_id, stored.payload, _place(stored.encoding, stored.size, digest))
        except UnknownKey as exc:
            problem = f"the stored result is sealed with the key {key_id}, which is not in ENCRYPTION_KEYS"
            raise UnknownEnvelope(problem) from exc
        except DamagedSeal as exc:
            raise ResultUnreadable(f"the stored result is damaged: {exc}") from exc


@lru_cache(maxsize=100)
def _form(encoding: str) -> tuple[bool, str | None]:
    """Return whether the bytes are compressed, and the id of the key that sealed them."""
    form = _KNOWN.fullmatch(encoding)
    if form is None:
        raise UnknownEnvelope(f"the stored result has the unknown encoding {encoding!r}")
    return form["gzip"] is not None, form["key"]


def _place(encoding: str, size: int, digest: bytes) -> bytes:
    """Return what a seal is bound to: the flight key, and all that is read before the seal is opened."""
    return b"%b:%d:%b" % (encoding.encode(), size, digest)


def _checksum(encoding: str, sealed: bytes) -> bytes:
    """Return the checksum of sealed bytes; the encoding is in it, so that they pass for no other form."""
    content = hashlib.sha256(encoding.encode())
    content.update(sealed)
    return content.digest()


def _check(found: bytes, checksum: bytes) -> None:
    if found != checksum:
        raise ResultUnreadable("the stored result is damaged: its checksum differs")


def _decompressed(payload: bytes, size: int) -> bytes:
    if not 0 <= size < sys.maxsize:
        raise ResultUnreadable(f"the stored result is damaged: it can't have {size} bytes")
    try:
        # One byte more than was stored, so that a bomb shows as a wrong checksum.
        return zlib.decompressobj(_GZIP_WINDOW).decompress(payload, size + 1)
    except zlib.error as exc:
        raise ResultUnreadable(f"the stored result is damaged: {exc}") from exc
