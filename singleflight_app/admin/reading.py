"""JSON text laid out for a person: as it was stored, value by value, and no more of it than is shown."""

import re
from collections.abc import Iterator

_INDENT = "  "
# A string (the last one may have been cut off), punctuation, or any other value. What is no JSON comes out as it is.
_TOKENS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[\]{},:]|[^\s\[\]{},:"]+', re.DOTALL)
_MOST_BYTES = 4  # of one character in UTF-8


def shown(raw: bytes, *, most: int) -> tuple[str, bool]:
    """Return JSON indented, of at most `most` characters, and whether that is all of it.

    Nothing is parsed: numbers, doubled names and escapes stay what they are, and no depth is too deep.
    """
    text = raw[: most * _MOST_BYTES].decode(errors="replace")
    parts, length = [], 0
    for part in _laid_out(text):
        parts.append(part)
        length += len(part)
        if length > most:
            return "".join(parts)[:most], False
    return "".join(parts), len(raw) <= most * _MOST_BYTES


def _laid_out(text: str) -> Iterator[str]:
    depth, before = 0, ""
    for match in _TOKENS.finditer(text):
        part = match.group()
        if part in {"]", "}"}:
            depth = max(depth - 1, 0)
            if before not in {"[", "{"}:
                yield _line(depth)
        elif before in {"[", "{", ","}:
            yield _line(depth)
        if part in {"[", "{"}:
            depth += 1
        yield ": " if part == ":" else part
        before = part


def _line(depth: int) -> str:
    # Deeper ones stay in one column: a thousand brackets would else be a million blanks.
    return "\n" + _INDENT * min(depth, 40)
