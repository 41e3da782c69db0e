"""What a running call can know of its flight: `current_flight()`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from decimal import Decimal
from typing import Any, Protocol

from singleflight_app.domain.exceptions import CoordinationUnavailable, InvalidRequest, LeaseLost, ReentrantFlight
from singleflight_app.domain.flight import NO_USAGE, Usage
from singleflight_app.domain.keys import FlightKey
from singleflight_app.domain.records import Progress
from singleflight_app.domain.usage import usage_of
from singleflight_app.engine.heartbeat import Lease
from singleflight_app.engine.rim import Interruption

_PROGRESS_LENGTH = 200
_current: ContextVar["tuple[FlightContext, ...]"] = ContextVar("singleflight_current", default=())


class Rows(Protocol):
    """What a fenced write needs of a Django QuerySet."""

    def filter(self, **conditions: Any) -> "Rows": ...  # noqa: ANN401  (Django's lookups)
    def update(self, **values: Any) -> int: ...  # noqa: ANN401
    def exists(self) -> bool: ...
    async def aupdate(self, **values: Any) -> int: ...  # noqa: ANN401
    async def aexists(self) -> bool: ...


class FlightContext:
    """The flight that a call runs for; one object per generation.

    `attempt` counts the calls of this flight: takeovers and retries that came before it, and the tries inside it.

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
        self.retries = 0
        self.is_over = False
        self.interruption = Interruption() if lease is None else lease.interruption
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

    @property
    def is_superseded(self) -> bool:
        """The row proves that another caller owns this flight, or that it was cancelled."""
        return self._lease is not None and self._lease.is_lost

    @property
    def is_in_vain(self) -> bool:
        """Nobody waits for what another try would bring: the lease is lost, or the time of the call is over."""
        return self.interruption.is_requested or (self._lease is not None and self._lease.is_over)

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

    def record_attempt(self) -> None:
        """Count one more request for the same answer, made inside this call: an SDK's own retry, for instance."""
        self.attempt += 1
        self.retries += 1

    def progress(self, fraction: float, text: str = "") -> None:
        """Tell how far the call is, from 0 to 1; it stands in the flight's row from the next heartbeat on."""
        if not 0 <= fraction <= 1:
            raise InvalidRequest(f"progress is {fraction!r}; give a number from 0 to 1")
        if self._lease is not None:
            storable = text.replace("\x00", "").encode("utf-8", "replace").decode()
            self._lease.progress = Progress(float(fraction), storable[:_PROGRESS_LENGTH])

    def fenced_update(self, rows: Rows, *, generation_field: str = "generation", **values: Any) -> int:  # noqa: ANN401
        """Update rows of your own (a QuerySet) unless a newer generation has written them; return their number.

        The model keeps the writer's generation in `generation_field`, a BigIntegerField with the default 0: only
        rows whose generation is not above this flight's are written, and have it then. LeaseLost when newer ones had
        written every row; CoordinationUnavailable in degraded mode, where no generation orders the writes.
        """
        count = self._older(rows, generation_field).update(**values, **{generation_field: self.generation})
        if not count and rows.exists():
            raise LeaseLost(self.flight_id, self.generation)
        return count

    async def afenced_update(self, rows: Rows, *, generation_field: str = "generation", **values: Any) -> int:  # noqa: ANN401
        """Do what `fenced_update` does, awaited."""
        count = await self._older(rows, generation_field).aupdate(**values, **{generation_field: self.generation})
        if not count and await rows.aexists():
            raise LeaseLost(self.flight_id, self.generation)
        return count

    def _older(self, rows: Rows, generation_field: str) -> Rows:
        if self.generation is None:
            problem = "this call runs without the database (degraded), so no generation orders its writes"
            raise CoordinationUnavailable(f"{problem}; write after the call, or use the mode 'distributed'")
        return rows.filter(**{f"{generation_field}__lte": self.generation})


def current_flight() -> FlightContext:
    """Return the flight that the running call belongs to; LookupError outside of one."""
    chain = _current.get()
    if not chain:
        raise LookupError("no flight is running here; current_flight() works inside a single-flight function")
    return chain[-1]


def refuse_reentry(key: FlightKey) -> None:
    """Raise ReentrantFlight when the running call, or one around it, has this key."""
    # A task that the call left behind still has its context, and may ask.
    if any(context.key.digest == key.digest and not context.is_over for context in _current.get()):
        raise ReentrantFlight(key.stage)


@contextmanager
def running(context: FlightContext) -> Iterator[None]:
    """Make `context` the current flight inside the block."""
    token = _current.set((*_current.get(), context))
    try:
        yield
    finally:
        context.is_over = True
        _current.reset(token)
