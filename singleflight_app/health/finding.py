"""What a check found: how bad it is, a sentence, and the repair; never a password, a scope or an answer."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Level(StrEnum):
    """How bad a finding is."""

    OK = "ok"  #: as it should be
    NOTE = "note"  #: worth knowing; nothing to do, or a choice
    WARNING = "warning"  #: works now, and will cost time or fail later
    ERROR = "error"  #: a promise is broken, or callers are failing

    @property
    def rank(self) -> int:
        """Return a number that grows with the harm."""
        return list(Level).index(self)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that was looked at; `id` is its name for ever, such as "database.clock"."""

    id: str
    level: Level
    text: str
    repair: str = ""  #: what to do, as a sentence; empty when all is well
    facts: Mapping[str, object] = field(default_factory=dict)  #: numbers and texts for programs

    @property
    def subject(self) -> str:
        """The part of the cluster that it is about."""
        return self.id.partition(".")[0]


def ok(name: str, text: str, **facts: object) -> Finding:
    """Return a finding that all is well."""
    return Finding(id=name, level=Level.OK, text=text, facts=facts)


def note(name: str, text: str, repair: str = "", **facts: object) -> Finding:
    """Return a finding that is worth knowing."""
    return Finding(id=name, level=Level.NOTE, text=text, repair=repair, facts=facts)


def warning(name: str, text: str, repair: str, **facts: object) -> Finding:
    """Return a finding that will cost time, or fail later."""
    return Finding(id=name, level=Level.WARNING, text=text, repair=repair, facts=facts)


def error(name: str, text: str, repair: str, **facts: object) -> Finding:
    """Return a finding that breaks a promise."""
    return Finding(id=name, level=Level.ERROR, text=text, repair=repair, facts=facts)
