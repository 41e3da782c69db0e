"""Text as a key holds it: NFC, valid Unicode, and read in a time that grows with its length only."""

import re
import sys
import unicodedata
from functools import cache

from singleflight_app.domain.unkeyable import Unkeyable

MOST_MARKS = 100  #: combining marks in a row; no language needs ten
_LAST_MARK = 0x1FFFF  #: marks live in the two lower planes
_HIDDEN_MARKS = "\u0f73\u0f75\u0f81"  #: of class 0 themselves, they decompose into marks only


def nfc(text: str) -> str:
    """Return a plain `str` in NFC, whatever a subclass says of itself."""
    plain = str.__str__(text)
    if plain.isascii():
        return plain
    # The sorting of marks that NFC asks for is quadratic: a row of 80,000 takes ten seconds.
    if _too_many_marks().search(plain):
        raise Unkeyable(f"has more than {MOST_MARKS} combining marks in a row", "pass clean text, or bytes")
    try:
        plain.encode()
    except UnicodeEncodeError as exc:
        raise Unkeyable(f"is no valid Unicode ({exc.reason})", "pass clean text, or bytes") from exc
    return unicodedata.normalize("NFC", plain)


@cache
def _too_many_marks() -> re.Pattern[str]:
    marks = [chr(code) for code in range(min(_LAST_MARK, sys.maxunicode) + 1) if unicodedata.combining(chr(code))]
    mark = f"[{''.join(marks)}{_HIDDEN_MARKS}]"
    return re.compile(f"{mark}{mark}{{{MOST_MARKS}}}")
