"""Whether a value came back from its stored form as what it was, in type as in content."""

from typing import Any

_NUMBERS = {int, float}  #: 1 for a float is 1.0, and nobody misses anything


def is_same(copy: Any, value: Any) -> bool:  # noqa: ANN401  (whatever functions return)
    """Tell whether a copy equals the value it was made of; a value's own methods may raise whatever they like."""
    kind = type(value)
    if type(copy) is not kind:
        return {type(copy), kind} == _NUMBERS and bool(copy == value)
    if kind in {list, tuple}:
        return len(copy) == len(value) and all(map(is_same, copy, value))
    if kind is dict:
        return len(copy) == len(value) and all(
            name in copy and is_same(copy[name], item) for name, item in value.items()
        )
    return bool(copy == value) or _reads_alike(copy, value)


def _reads_alike(copy: object, value: object) -> bool:
    """Tell of what never equals itself, not-a-number and objects without an `__eq__`, whether it reads the same."""
    has_no_equal = type(value).__eq__ is object.__eq__
    text = repr(value)
    return (has_no_equal or "nan" in text) and repr(copy) == text
