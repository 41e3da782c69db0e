"""Reads a decorated function: what it must be, and which of its arguments make the key and the scope.

Wrong uses are InvalidRequest when the module is imported, not at the first request of a customer.
"""

import inspect
from collections.abc import Callable, Collection, Mapping

from singleflight_app.domain.exceptions import InvalidRequest
from singleflight_app.domain.keys import Global, check_scope

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


def picker(
    given: Scope | Callable[..., object] | None, names: Collection[str], stage: str, option: str
) -> Callable[[Mapping[str, object]], object]:
    """Return a function from the bound arguments to the scope (or the request)."""
    if not callable(given):
        check_scope(stage, given)
        return lambda _: given
    wanted = inspect.signature(given).parameters.values()
    if any(parameter.kind not in _BY_NAME for parameter in wanted):
        raise InvalidRequest(f"stage {stage!r}: {option} takes its arguments by name; write them without *, ** and /")
    unknown = [item.name for item in wanted if item.name not in names and item.default is item.empty]
    if unknown:
        raise InvalidRequest(
            f"stage {stage!r}: {option} asks for {', '.join(unknown)}; the arguments are {', '.join(names)}"
        )
    taken = [parameter.name for parameter in wanted if parameter.name in names]
    return lambda arguments: given(**{name: arguments[name] for name in taken})
