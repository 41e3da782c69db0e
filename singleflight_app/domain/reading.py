"""One request while it is read. Whatever comes, it ends: depth, values and characters of a request are bounded."""

from collections.abc import Callable, Iterable
from typing import Any

from singleflight_app.domain.texts import nfc
from singleflight_app.domain.unkeyable import Unkeyable, dotted_names, shown

MAX_DEPTH = 32
MAX_VALUES = 100_000
MAX_CHARACTERS = 10_000_000
_LESS = "pass an id, or bytes (the key holds their digest)"

Form = Callable[["Reading", Any], Any]


class Reading:
    """How deep a request is, and how much of it may still come; `form_of` tells how to read a class."""

    __slots__ = ("_form_of", "characters", "depth", "values")

    def __init__(self, form_of: Callable[[Any], Form]) -> None:
        self._form_of = form_of
        self.depth, self.values, self.characters = 0, MAX_VALUES, MAX_CHARACTERS

    def of(self, value: Any) -> Any:  # noqa: ANN401  (whatever callers pass; JSON has no closed type)
        """Return the form of a value of any kind."""
        self.values -= 1
        if self.values < 0:
            raise Unkeyable(f"makes more than {MAX_VALUES} values", _LESS)
        try:
            return self._form_of(type(value))(self, value)
        except Unkeyable:
            raise
        except Exception as exc:
            # Properties, iterators and time zones of the project's own run in here; their text may hold values.
            problem = f"is a {type(value).__qualname__} that can't be read ({type(exc).__name__})"
            raise Unkeyable(problem, "pass plain values") from exc

    def of_text(self, value: str) -> str:
        plain = str.__str__(value)
        self.characters -= len(plain)
        if self.characters < 0:
            raise self._too_long()
        return plain if plain.isascii() else nfc(plain)

    def of_mapping(self, value: Any) -> dict[str, Any]:  # noqa: ANN401  (a dict, or a Mapping of any class)
        # A list is made in one go: another thread may write to a dict while it is read.
        pairs = list(dict.items(value)) if issubclass(type(value), dict) else value.items()
        return self.of_pairs(pairs, "[{!r}]" if self.depth else "{}")

    def of_fields(self, value: object, names: Iterable[str]) -> dict[str, Any]:
        return self.of_pairs(((name, getattr(value, name)) for name in names), ".{}")

    def of_pairs(self, pairs: Iterable[tuple[Any, object]], step: str) -> dict[str, Any]:
        self._deeper()
        fields: dict[str, Any] = {}
        for name, item in pairs:
            text = self._name(name)
            if text in fields:
                raise Unkeyable(f"has the name {shown(text)} twice, maybe in two Unicode forms", "pass one")
            try:
                fields[text] = self.of(item)
            except Unkeyable as exc:
                exc.steps.append(step.format(text.removeprefix("$")[:40]))
                raise
        self.depth -= 1
        return fields

    def of_items(self, items: Iterable[object]) -> list[Any]:
        self._deeper()
        forms: list[Any] = []
        for item in items:
            try:
                forms.append(self.of(item))
            except Unkeyable as exc:
                exc.steps.append(f"[{len(forms)}]")
                raise
        self.depth -= 1
        return forms

    def of_inner(self, value: object) -> Any:  # noqa: ANN401
        """Return what a value stands for: an enum's value, a row's pk, what a lazy object wraps."""
        self._deeper()
        form = self.of(value)
        self.depth -= 1
        return form

    def of_kind(self, value: object) -> str:
        return self.of_text(next(dotted_names(type(value))))

    def _name(self, name: Any) -> str:  # noqa: ANN401  (a string, or what is refused)
        if not issubclass(type(name), str):
            problem = f"has the key {shown(name)}, which is no string"
            raise Unkeyable(problem, "pass a dict with string keys, or a list of pairs")
        text = self.of_text(name)
        # A key of the request's own never looks like a tag.
        return f"${text}" if text.startswith("$") else text

    def _too_long(self) -> Unkeyable:
        return Unkeyable(f"makes more than {MAX_CHARACTERS} characters", _LESS)

    def _deeper(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unkeyable(f"is nested deeper than {MAX_DEPTH}", "pass a flat value or an id")
