"""Arguments of a background flight as JSON: refused unless they come back equal through their annotations."""

import inspect
from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter

from singleflight_app.domain.exceptions import InvalidRequest
from singleflight_app.outcomes.codec import adapter_for

_OPEN_ENDED = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}


class ArgumentsCodec:
    """Stores and restores the arguments of one function; `annotations` are its resolved type hints."""

    def __init__(self, signature: inspect.Signature, annotations: Mapping[str, Any]) -> None:
        self._signature = signature
        self._annotations = annotations
        self._adapters: dict[str, TypeAdapter[Any]] = {}

    def dump(self, arguments: Mapping[str, object]) -> dict[str, str]:
        """Return bound arguments as JSON texts by name; one that would change on the way is InvalidRequest."""
        for name, parameter in self._signature.parameters.items():
            if parameter.kind in _OPEN_ENDED:
                raise InvalidRequest(f"submit() can't store *{name}; give the function named arguments")
        return {name: self._dump_one(name, value) for name, value in arguments.items()}

    def load(self, stored: Mapping[str, str]) -> inspect.BoundArguments:
        """Return the arguments as the function takes them; what no longer fits its signature is InvalidRequest."""
        try:
            values = {
                name: self._adapter(name).validate_json(text, by_alias=False, by_name=True)
                for name, text in stored.items()
            }
            positional = [
                values.pop(name)
                for name, parameter in self._signature.parameters.items()
                if parameter.kind is inspect.Parameter.POSITIONAL_ONLY and name in values
            ]
            return self._signature.bind(*positional, **values)
        except Exception as exc:
            # Validators of the project's own types run in here; their text may hold values, so it is left out.
            problem = f"the stored arguments do not fit the function any more ({type(exc).__name__})"
            raise InvalidRequest(f"{problem}; submit the flight again") from exc

    def _dump_one(self, name: str, value: object) -> str:
        adapter = self._adapter(name)
        repair = "annotate it with its exact type, or pass an id or text instead"
        try:
            text = adapter.dump_json(value, warnings="error", by_alias=False).decode()
            copy = adapter.validate_json(text, by_alias=False, by_name=True)
        except Exception as exc:
            problem = f"argument {name}, a {type(value).__qualname__}, can't be stored for a worker"
            raise InvalidRequest(f"{problem} ({type(exc).__name__}); {repair}") from exc
        if type(copy) is not type(value) or copy != value:
            raise InvalidRequest(
                f"argument {name} is {type(value).__qualname__} and would reach the worker as "
                f"{type(copy).__qualname__}; {repair}"
            )
        return text

    def _adapter(self, name: str) -> TypeAdapter[Any]:
        if name not in self._adapters:
            annotation = self._annotations.get(name, Any)
            self._adapters[name] = adapter_for(annotation, f"the type of argument {name}")
        return self._adapters[name]
