"""Stored bytes sealed with AES-256-GCM: the newest key of a ring seals, every key of it opens what it sealed.

A key has no name of its own: its id is drawn from the key, so that no two keys can be mistaken for each other.
"""

import hashlib
import secrets
from collections.abc import Sequence
from typing import Any

from singleflight_app.domain.sealing import decoded_key

_NONCE_BYTES = 12  #: what GCM is made for; drawn at random, so renew a key well before 2**32 results


class UnknownKey(LookupError):
    """The ring has no key of that id."""


class DamagedSeal(ValueError):
    """The bytes are not what was sealed, or not for this place."""


class KeyRing:
    """Keys of `ENCRYPTION_KEYS`, newest first; an empty ring seals nothing. Rings of equal keys are equal."""

    def __init__(self, keys: Sequence[str] = ()) -> None:
        self._keys = tuple(keys)
        raw = [decoded_key(key) for key in keys]
        self._by_id: dict[str, Any] = {_id_of(key): _cipher(key) for key in raw}
        self.newest = _id_of(raw[0]) if raw else None

    def __eq__(self, other: object) -> bool:
        """Tell whether another ring has the same keys in the same order."""
        return isinstance(other, KeyRing) and self._keys == other._keys

    def __hash__(self) -> int:
        """Return the same number for equal rings."""
        return hash(self._keys)

    def seal(self, raw: bytes, place: bytes) -> bytes:
        """Return `raw` sealed with the newest key, to be opened only with the same `place`."""
        assert self.newest is not None  # noqa: S101  (who seals has looked)
        nonce = secrets.token_bytes(_NONCE_BYTES)
        sealed: bytes = self._by_id[self.newest].encrypt(nonce, raw, place)
        return nonce + sealed

    def open(self, key_id: str, sealed: bytes, place: bytes) -> bytes:
        """Return what was sealed; UnknownKey, or DamagedSeal."""
        if key_id not in self._by_id:
            raise UnknownKey(key_id)
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415  (an extra, there if the ring has a key)

        try:
            raw: bytes = self._by_id[key_id].decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], place)
        except (InvalidTag, ValueError) as exc:  # ValueError: there is not even a nonce
            raise DamagedSeal("it does not open with its key") from exc
        return raw


def _id_of(key: bytes) -> str:
    return hashlib.sha256(b"singleflight_app key id" + key).hexdigest()[:8]


def _cipher(key: bytes) -> Any:  # noqa: ANN401  (a class of an extra)
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415  (an extra)

    return AESGCM(key)


NO_KEYS = KeyRing()
