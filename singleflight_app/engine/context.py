"""What a running call can know of its flight: `current_flight()`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from decimal import Decimal
from typing import Any

from singleflight_app.domain.exceptions import LeaseLost, ReentrantFlight
from singleflight_app.domain.flight import NO_USAGE, Usage
from singleflight_app.domain.keys import FlightKey
from singleflight_app.domain.usage import usage_of
from singleflight_app.engine.heartbeat import Lease

_current: ContextVar["tuple[FlightContext, ...]"] = ContextVar("singleflight_current", default=())


class FlightContext:
    """The flight that a call runs for; one object per generation.

    `generation` is None in degraded mode, where nothing is stored and fenced writes must refuse.
    """

    def __init__(
        self,
        key: FlightKey,
        *,
        owner: str,
        lease: Lease | None,
        attempt: int,
        is_in_doubt: Callable[[], bool] = lambda: False,
    ) -> None:
        self.key, self.owner, self.attempt = key, owner, attempt
        self.generation = None if lease is None else lease.generation
        self.flight_id = None if lease is None else lease.flight_id
        self.usage = NO_USAGE
        self._lease, self._is_in_doubt = lease, is_in_doubt

    @property
    def idempotency_key(self) -> str:
        """A string for providers that fold repeated requests: the same in each attempt of this key's flight."""
        return f"{self.key.stage}-{self.key.digest.hex()[:40]}"

    @property
    def lease_lost(self) -> bool:
        """Another caller owns this flight now, or may: no beat got through for a whole lease."""
        return self._lease is not None and (self._lease.is_lost or self._is_in_doubt())

    def raise_if_lost(self) -> None:
        """Raise LeaseLost when going on would be a waste."""
        if self.lease_lost:
            raise LeaseLost(self.flight_id, self.generation)

    def record_usage(
        self,
        reply: Any = None,  # noqa: ANN401  (a provider's reply, read by its attributes)
        *,
        model: str = "",
        input_tokens: int = 0,
        output_tokens: int = 0,
        cost: Decimal | float | str = 0,
    ) -> None:
        """Add what a request to a model consumed, for the ledger; once per request of this call.

        `reply` is an OpenAI-style reply with `model` and `usage`, or a `Usage`; or give the numbers. `cost`
        is in the currency of your prices.
        """
        usage = Usage(model, input_tokens, output_tokens, Decimal(str(cost))).bounded()
        if reply is not None:
            usage += (reply if isinstance(reply, Usage) else usage_of(reply)).bounded()
        self.usage = (self.usage + usage).bounded()


def current_flight() -> FlightContext:
    """Return the flight that the running call belongs to; LookupError outside of one."""
    chain = _current.get()
    if not chain:
        raise LookupError("no flight is running here; current_flight() works inside a single-flight function")
    return chain[-1]


def refuse_reentry(key: FlightKey) -> None:
    """Raise ReentrantFlight when the running call, or one around it, has this key."""
    if any(context.key.digest == key.digest for context in _current.get()):
        raise ReentrantFlight(key.stage)


@contextmanager
def running(context: FlightContext) -> Iterator[None]:
    """Make `context` the current flight inside the block."""
    token = _current.set((*_current.get(), context))
    try:
        yield
    finally:
        _current.reset(token)
