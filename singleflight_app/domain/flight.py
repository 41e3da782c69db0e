"""What a flight costs, how it ends, and what its callers get of it."""

import os
import secrets
import socket
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Generic, NamedTuple, TypeVar

from singleflight_app.domain.states import Layer, Role, Status

R = TypeVar("R")

#: `error_type` of a flight whose owners died, and of one whose result was too large to store
OWNER_LOST = "singleflight_app.OwnerLost"
TOO_LARGE = "singleflight_app.ResultTooLarge"


_MOST_TOKENS = 2**53
_MOST_COST = Decimal(999_999_999)


@dataclass(frozen=True, slots=True)
class Usage:
    """What one call consumed: tokens as the provider counted them, cost in the currency of the prices given."""

    model: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    cost: Decimal = Decimal(0)

    def bounded(self) -> "Usage":
        """Return what a row can hold of it: a figure that makes no sense must not cost a paid answer."""
        cost = self.cost if self.cost.is_finite() else Decimal(0)
        return Usage(
            self.model.replace("\x00", "")[:100].encode("utf-8", "replace").decode(),
            min(max(self.input_tokens, 0), _MOST_TOKENS),
            min(max(self.output_tokens, 0), _MOST_TOKENS),
            min(max(cost, Decimal(0)), _MOST_COST),
        )

    @property
    def tokens(self) -> int:
        """Input and output tokens together."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: "Usage") -> "Usage":
        """Return the sum; the later call's model names it."""
        return Usage(
            other.model or self.model,
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cost + other.cost,
        )


NO_USAGE = Usage()


class StoredResult(NamedTuple):
    """A result as it lies in the row and in Redis: bytes, and what is needed to read them."""

    payload: bytes
    encoding: str  #: envelope version, codec and compression: "1/json/gzip"
    checksum: bytes  #: SHA-256 over the raw (uncompressed) bytes
    size: int  #: raw bytes
    location: str = ""  #: where the payload lies, if not in the row; it may still be at hand here


NO_RESULT = StoredResult(b"", "", b"", 0)


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure as it is stored: text only, nothing to execute."""

    error_type: str  #: dotted path of the exception's class
    message: str
    retryable: bool
    size: int = 0  #: raw bytes of a result that was too large to store
    retry_after: float = 0.0  #: seconds that the provider asked to be left alone


#: how a flight ends that an operator cancels: not retryable, so that those who wait for it begin nothing
BY_HAND = Failure("singleflight_app.FlightCancelled", "by hand; whoever asks from now on starts anew", retryable=False)


@dataclass(frozen=True, slots=True)
class Settled:
    """The end of one generation, the same for all its callers."""

    flight_id: int | None
    generation: int | None
    status: Status
    result: StoredResult | None = None
    failure: Failure | None = None
    usage: Usage = NO_USAGE
    superseded: bool = False
    degraded: bool = False
    retries: int = 0  #: requests that were made again inside the call


@dataclass(frozen=True, slots=True)
class Outcome(Generic[R]):
    """What one caller got, and how.

    `waited` is the caller's whole time in seconds. `superseded`: a fenced owner's own value, when no
    newer one came. `degraded`: hybrid mode with the database out of reach: one call per process,
    nothing stored, `generation` and `flight_id` None.
    """

    value: R
    role: Role
    layer: Layer
    generation: int | None
    flight_id: int | None
    waited: float
    superseded: bool = False
    degraded: bool = False
    usage: Usage = field(default=NO_USAGE)


class Identity:
    """Who this process is to the others: host, pid and a random part, drawn anew in a forked child."""

    def __init__(self) -> None:
        self.name = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(6)}"
