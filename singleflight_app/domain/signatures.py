"""Reads a decorated function: what it must be, and which of its arguments make the key and the scope.

Wrong uses are InvalidRequest when the module is imported, not at the first request of a customer.
"""

import inspect
from collections.abc import Callable, Collection, Mapping

from singleflight_app.domain.exceptions import InvalidRequest
from singleflight_app.domain.keys import Global, check_scope
from singleflight_app.domain.unkeyable import shown

Scope = str | Global | Callable[..., str]
_BY_NAME = {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}


def check_function(function: object, stage: str) -> None:
    """Refuse what gives no value of its own when it returns."""
    if isinstance(function, classmethod | staticmethod):
        kind = type(function).__name__
        raise InvalidRequest(f"stage {stage!r}: put @single_flight below @{kind}, on the plain function")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidRequest(f"stage {stage!r}: a generator is read once and can't be shared; return what it collects")
    if not inspect.isfunction(function):
        raise InvalidRequest(f"stage {stage!r}: decorate a function, not a {type(function).__qualname__}")


def check_accept(accept: object, stage: str) -> None:
    """Refuse an `accept=` that could not look at a result there and then."""
    if accept is None:
        return
    if not callable(accept) or inspect.iscoroutinefunction(accept):
        repair = "give a plain function of the result that raises Rejected"
        raise InvalidRequest(f"stage {stage!r}: accept is {accept!r}; {repair}")


def receiver_of(function: Callable[..., object], signature: inspect.Signature) -> str | None:
    """Return the name of a method's first parameter: it is no part of the key. A plain function has none."""
    is_method = "." in function.__qualname__.rpartition("<locals>.")[2]
    first = next(iter(signature.parameters), None)
    return first if is_method and first in {"self", "cls"} else None


def without(arguments: Mapping[str, object], receiver: str | None) -> Mapping[str, object]:
    """Return the arguments less `self` or `cls`."""
    if receiver not in arguments:
        return arguments
    return {name: value for name, value in arguments.items() if name != receiver}


class Picker:
    """Takes from a call's arguments, by name, those that a `scope=` or `key=` asks for; `names` are theirs."""

    def __init__(self, given: Callable[..., object], names: Collection[str], stage: str, option: str) -> None:
        wanted = _parameters(given, stage, option)
        unknown = [item.name for item in wanted if item.name not in names and item.default is item.empty]
        if unknown:
            raise InvalidRequest(
                f"stage {stage!r}: {option} asks for {', '.join(unknown)}; the arguments are {', '.join(names)}"
            )
        self._given = given
        self.names = tuple(parameter.name for parameter in wanted if parameter.name in names)

    def __call__(self, arguments: Mapping[str, object]) -> object:
        """Return what the callable makes of bound arguments."""
        return self._given(**{name: arguments[name] for name in self.names})


class Constant:
    """A `scope=` that no argument changes."""

    names: tuple[str, ...] = ()

    def __init__(self, given: object, stage: str) -> None:
        check_scope(stage, given)
        self._given = given

    def __call__(self, _: Mapping[str, object]) -> object:
        """Return it."""
        return self._given


def scope_picker(given: object, names: Collection[str], stage: str) -> Picker | Constant:
    """Return a function from the bound arguments to the scope."""
    return Picker(given, names, stage, "scope") if callable(given) else Constant(given, stage)


def key_picker(given: object, names: Collection[str], stage: str) -> Picker | None:
    """Return a function from the bound arguments to what is compared instead of them; None: all of them are."""
    if given is None:
        return None
    if not callable(given):
        # Taken for a constant, it would give one answer to every question.
        repair = "give a function of the arguments that count, such as lambda answer_id: answer_id"
        raise InvalidRequest(f"stage {stage!r}: key is {shown(given)}; {repair}")
    return Picker(given, names, stage, "key")


def _parameters(given: Callable[..., object], stage: str, option: str) -> Collection[inspect.Parameter]:
    if inspect.iscoroutinefunction(given):
        raise InvalidRequest(f"stage {stage!r}: {option} is an async function; give a plain one, it is called at once")
    try:
        wanted = inspect.signature(given).parameters.values()
    except (TypeError, ValueError) as exc:
        repair = "give a lambda that names the arguments it needs"
        raise InvalidRequest(f"stage {stage!r}: {option} tells no arguments ({exc}); {repair}") from exc
    if any(parameter.kind not in _BY_NAME for parameter in wanted):
        raise InvalidRequest(f"stage {stage!r}: {option} takes its arguments by name; write them without *, ** and /")
    return wanted
