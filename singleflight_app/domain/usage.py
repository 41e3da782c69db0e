"""Reads what a call consumed from the replies of common model SDKs, by their attributes alone."""

from typing import Any

from singleflight_app.domain.flight import Usage

#: What the SDKs call the same two numbers: chat completions, then responses and messages.
_INPUT = ("prompt_tokens", "input_tokens")
_OUTPUT = ("completion_tokens", "output_tokens")


def usage_of(reply: Any) -> Usage:  # noqa: ANN401  (any SDK's reply)
    """Return the tokens that `reply.usage` (an object or a dict) counts, under `reply.model`; cost is 0.

    A reply without usage counts as nothing: a missing figure must not fail a paid call.
    """
    usage = _get(reply, "usage")
    return Usage(str(_get(reply, "model") or "")[:100], _count(usage, _INPUT), _count(usage, _OUTPUT))


def _count(usage: Any, names: tuple[str, ...]) -> int:  # noqa: ANN401
    for name in names:
        value = _get(usage, name)
        if isinstance(value, int) and value >= 0:
            return value
    return 0


def _get(source: Any, name: str) -> Any:  # noqa: ANN401
    return source.get(name) if isinstance(source, dict) else getattr(source, name, None)
