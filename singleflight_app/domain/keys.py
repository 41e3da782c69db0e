"""What makes two calls the same flight: canonical text of a request, and its digest.

RFC 8785 JSON under SHA-256. Types that JSON lacks are tagged (`{"$uuid": "..."}`); a mapping's own
key that begins with `$` gets a second one, so that no input can imitate a tag.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import rfc8785

from singleflight_app.domain.canonical import SAFE_INTEGER, canonical
from singleflight_app.domain.exceptions import InvalidRequest
from singleflight_app.domain.texts import nfc
from singleflight_app.domain.unkeyable import Unkeyable, shown

SCOPE_LENGTH = 200
GLOBAL_SCOPE = "(global)"
_STAGE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


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
    body = rfc8785.dumps(canonical(request))
    number = b"" if sample == 1 else b',"sample":%d' % sample
    text = b'%b,"request":%b%b,"scope":%b,%b' % (head, body, number, _quoted(text_of_scope), tail)
    return FlightKey(stage, text_of_scope, hashlib.sha256(text).digest(), text.decode())


@lru_cache(maxsize=1000)
def _frame(namespace: str, stage: str, versions: tuple[str, ...]) -> tuple[bytes, bytes]:
    """Return what the canonical text of every key of a stage begins and ends with (names are in RFC 8785's order)."""
    head = rfc8785.dumps({"namespace": namespace})
    tail = rfc8785.dumps({"stage": stage, "versions": list(versions)})
    return head[:-1], tail[1:]


@lru_cache(maxsize=1000)
def _quoted(scope: str) -> bytes:
    return rfc8785.dumps(scope)


def check_stage(stage: object) -> None:
    """Refuse a stage name that a metric label or a Redis key could not carry."""
    if type(stage) is not str or not _STAGE_NAME.fullmatch(stage):
        raise InvalidRequest(
            f"stage {shown(stage)} is no stage name; use letters, digits, '-', '_' and '.', at most 100 of them"
        )


def check_version(stage: str, version: object) -> None:
    """Refuse a version that is no text: 1, True and "1" would be three versions to one person and one to another."""
    if type(version) is not str:
        raise InvalidRequest(f'stage {stage!r}: the version is {shown(version)}; give a string, such as "prompt-3"')
    _clean(version, f"stage {stage!r}: the version")


def check_sample(sample: object) -> None:
    """Refuse a sample that is no number from 1 on."""
    if type(sample) is not int or not 1 <= sample < SAFE_INTEGER:
        raise InvalidRequest(f"the sample is {shown(sample)}; give a whole number: 1 is the first answer, 2 the second")


def check_scope(stage: str, scope: object) -> str:
    """Return a scope's text (NFC); one that could mix tenants or that the row can't hold is InvalidRequest."""
    if type(scope) is Global:
        return GLOBAL_SCOPE
    text = _clean(scope, f"stage {stage!r}: the scope") if issubclass(type(scope), str) else ""
    if not text.strip() or text == GLOBAL_SCOPE:
        problem = f"stage {stage!r}: the scope is {shown(scope)}"
        repair = "give a non-empty string that names whose answer it is, or GLOBAL when everybody may share it"
        raise InvalidRequest(f"{problem}; {repair}")
    if len(text) > SCOPE_LENGTH or "\x00" in text:
        raise InvalidRequest(
            f"stage {stage!r}: the scope has {len(text)} characters; use at most {SCOPE_LENGTH}, without NUL"
        )
    return text


def _clean(text: Any, subject: str) -> str:  # noqa: ANN401  (a str, or a subclass with methods of its own)
    try:
        return nfc(text)
    except Unkeyable as exc:
        raise InvalidRequest(f"{subject} {exc}") from exc
