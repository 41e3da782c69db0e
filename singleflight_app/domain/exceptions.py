"""What can go wrong, each with its own sentence and its facts as attributes."""

from contextlib import suppress
from datetime import timedelta
from typing import Any

from singleflight_app.domain.unkeyable import shown

MOST_SECONDS = 10 * 366 * 86_400.0  #: what clocks and timestamps take without overflowing


class SingleFlightError(Exception):
    """Base of everything that this app raises by itself."""


class InvalidRequest(SingleFlightError):
    """The call can't be made into a flight; nothing was stored. The sentence says what to pass instead."""


class StillRunning(SingleFlightError):
    """The caller's wait budget ended; the flight goes on and its outcome will be stored.

    `handle` (a `FlightHandle`) finds it again; `waited` is in seconds.
    """

    def __init__(self, handle: Any, waited: float) -> None:  # noqa: ANN401  (the handle's class lives in api)
        super().__init__(f"{handle} is still running after {waited:.1f} s of waiting; ask again later for its outcome")
        self.handle, self.waited = handle, waited


class FlightFailed(SingleFlightError):
    """The flight that this caller shared or replayed ended with an error; the failure is stored.

    `retryable`: whoever asks from now on gets a new call, once a provider's Retry-After is over.
    """

    def __init__(
        self, error_type: str, message: str, *, retryable: bool = False, generation: int | None = None
    ) -> None:
        super().__init__(f"{error_type}: {message}" if message else error_type)
        self.error_type, self.message = error_type, message
        self.retryable, self.generation = retryable, generation


class ExecutionTimedOut(FlightFailed):
    """The call outlived the stage's `execution_timeout`; the flight was settled as timed out."""


class OwnerLost(FlightFailed):
    """The flight's owners died, and no further takeover is allowed; nothing but the failure is stored."""


class FlightCancelled(SingleFlightError):
    """The flight was cancelled; nothing was stored, and the next caller starts anew. `message` says how."""

    def __init__(self, flight_id: int | None, generation: int | None, message: str = "") -> None:
        how = f" {message}" if message else ""
        super().__init__(f"flight {flight_id} was cancelled at generation {generation}{how}")
        self.message = message
        self.flight_id, self.generation = flight_id, generation


class LeaseLost(SingleFlightError):
    """Another caller owns this flight now; nothing from this one was stored."""

    def __init__(self, flight_id: int | None, generation: int | None) -> None:
        super().__init__(f"lease on flight {flight_id} lost at generation {generation}")
        self.flight_id, self.generation = flight_id, generation


class Overloaded(SingleFlightError):
    """A limit turned the caller away before anything began; ask again after `retry_after` seconds."""

    def __init__(self, reason: str, retry_after: float) -> None:
        super().__init__(f"{reason}; ask again in {retry_after:.3g} s")
        self.reason, self.retry_after = reason, retry_after


class Rejected(SingleFlightError):
    """What the function returned is no answer: raised by `accept=`, or by the function; stored as a failure.

    `retryable`: a later caller may call again, after `retry_after` seconds if that is given. `value` is what the
    function returned, at the caller whose own call it was.
    """

    value: object = None

    def __init__(self, reason: str, *, retryable: bool = False, retry_after: float | None = None) -> None:
        super().__init__(reason)
        self.reason, self.retryable, self.retry_after = reason, retryable, retry_after


class CoordinationUnavailable(SingleFlightError):
    """PostgreSQL (or Redis, where its word is needed) gave no answer; no call was begun.

    `is_outage` is False where the server is there: it is busy, or its tables are missing. Then hybrid mode makes
    no call of its own either. `was_sent` is False where no statement reached the server, so that none can have been
    committed.
    """

    def __init__(self, problem: str, *, is_outage: bool = True, was_sent: bool = True) -> None:
        super().__init__(problem)
        self.is_outage, self.was_sent = is_outage, was_sent


class ResultTooLarge(SingleFlightError):
    """The result is above the stage's `max_result_bytes`: only the owner's process could hand it out."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(
            f"the result has {size} bytes and max_result_bytes is {limit}; "
            "raise the option, or return a reference to the data instead of the data"
        )
        self.size, self.limit = size, limit


class ResultUnreadable(SingleFlightError):
    """A result can't be stored, or a stored one can't be read and neither could the one that replaced it.

    At the caller whose own call returned it, `value` is what the function returned.
    """

    value: object = None


class UnknownEnvelope(ResultUnreadable):
    """A stored result is whole, but of a newer release, or behind a key or a storage that this process lacks."""


class ReentrantFlight(SingleFlightError):
    """A call asked for its own key from inside itself; waiting would never end."""

    def __init__(self, stage: str) -> None:
        super().__init__(
            f"the call of stage {stage!r} asks for itself with the same key; give the inner call other arguments"
        )
        self.stage = stage


def wait_budget(value: object) -> float:
    """Return one caller's wait budget in seconds; what no clock can count to is InvalidRequest."""
    budget = -1.0
    if isinstance(value, int | float | timedelta) and not isinstance(value, bool):
        with suppress(OverflowError):  # of an int beyond every float
            budget = seconds(value)
    if not 0 <= budget <= MOST_SECONDS:
        raise InvalidRequest(f"the wait budget is {shown(value)}; give seconds from 0 on, of ten years at most")
    return budget


def seconds(value: float | timedelta) -> float:
    """Return a duration given in seconds or as a timedelta as seconds."""
    return value.total_seconds() if isinstance(value, timedelta) else float(value)
