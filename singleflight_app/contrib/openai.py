"""What a reply of the OpenAI API cost, read without importing `openai`.

It runs between a paid answer and its storage, so it never raises over what a reply looks like: what
can't be read counts as nothing and is logged.
"""

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal

from singleflight_app.domain import usage as reading
from singleflight_app.domain.flight import Usage

logger = logging.getLogger("singleflight_app")
_MILLION = 1_000_000
_SNAPSHOT = re.compile(r"-\d{4}-\d{2}-\d{2}$")


@dataclass(frozen=True, slots=True)
class Price:
    """What a model takes per million tokens; `cached` is for input read from the provider's prompt cache."""

    input: Decimal
    output: Decimal
    cached: Decimal | None = None


def usage_of(reply: object, *, cost: Decimal | None = None, prices: Mapping[str, Price] | None = None) -> Usage:
    """Return the usage that a reply reports, of chat completions or of responses, as an object or a dict.

    The cost is `cost`, or is worked out from `prices` by the reply's model; the price of "m" also
    counts for its dated snapshots, such as "m-2026-05-01". With neither it is 0.
    """
    usage = reading.usage_of(reply)
    if not usage.tokens:
        logger.warning("a reply of model %r reports no usage; it is counted as free", usage.model)
    if cost is None and prices is not None:
        cost = _cost(usage, _price(usage.model, prices), _cached_tokens(reply))
    return replace(usage, cost=cost or Decimal(0))


def _price(model: str, prices: Mapping[str, Price]) -> Price | None:
    price = prices.get(model) or prices.get(_SNAPSHOT.sub("", model))
    if price is None:
        logger.warning("no price is given for model %r; it is counted as free", model)
    return price


def _cost(usage: Usage, price: Price | None, cached_tokens: int) -> Decimal:
    if price is None:
        return Decimal(0)
    cached_price = price.input if price.cached is None else price.cached
    fresh_tokens = max(usage.input_tokens - cached_tokens, 0)
    total = fresh_tokens * price.input + cached_tokens * cached_price + usage.output_tokens * price.output
    return total / _MILLION


def _cached_tokens(reply: object) -> int:
    usage = _field(reply, "usage")
    details = _field(usage, "prompt_tokens_details") or _field(usage, "input_tokens_details")
    tokens = _field(details, "cached_tokens")
    return tokens if isinstance(tokens, int) and tokens > 0 else 0


def _field(holder: object, name: str) -> object:
    return holder.get(name) if isinstance(holder, Mapping) else getattr(holder, name, None)
