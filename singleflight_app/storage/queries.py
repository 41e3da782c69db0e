"""Reads queries.sql once: named statements, with fragments put in."""

import re
from functools import cache
from importlib.resources import files

_HEAD = re.compile(r"^-- (name|fragment): (\w+)$", re.MULTILINE)
_SLOT = re.compile(r"\{(\w+)\}")


@cache
def _statements() -> dict[str, bytes]:
    text = files("singleflight_app.storage").joinpath("queries.sql").read_text(encoding="utf-8")
    parts = _HEAD.split(text)
    sections = {name: _uncommented(body) for name, body in zip(parts[2::3], parts[3::3], strict=True)}
    return {
        name: _filled(sections[name], sections).encode()
        for kind, name in zip(parts[1::3], parts[2::3], strict=True)
        if kind == "name"
    }


def _uncommented(body: str) -> str:
    return "\n".join(line for line in body.splitlines() if not line.startswith("--")).strip()


def _filled(text: str, sections: dict[str, str]) -> str:
    return _SLOT.sub(lambda slot: _filled(sections[slot[1]], sections), text)


def query(name: str) -> bytes:
    """Return the statement called `name`; an unknown name is a KeyError."""
    return _statements()[name]
