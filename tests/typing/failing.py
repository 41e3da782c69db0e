"""Checked by mypy and pyright, never run: what an except clause knows of each exception."""

from typing import assert_type

from singleflight_app import (
    CoordinationUnavailable,
    ExecutionTimedOut,
    FlightCancelled,
    FlightContext,
    FlightFailed,
    InvalidRequest,
    LeaseLost,
    Overloaded,
    OwnerLost,
    ReentrantFlight,
    Rejected,
    ResultTooLarge,
    ResultUnreadable,
    SingleFlightError,
    StillRunning,
    current_flight,
)


def a_failed_flight(error: FlightFailed | ExecutionTimedOut | OwnerLost) -> FlightFailed:
    """All its kinds carry the same facts."""
    assert_type(error.error_type, str)
    assert_type(error.message, str)
    assert_type(error.retryable, bool)
    assert_type(error.generation, int | None)
    return error


def no_answer(error: StillRunning | Overloaded | CoordinationUnavailable | FlightCancelled | LeaseLost) -> None:
    """Each says what a caller may do."""
    match error:
        case StillRunning():
            assert_type(error.waited, float)
        case Overloaded():
            assert_type(error.retry_after, float)
            assert_type(error.reason, str)
        case CoordinationUnavailable():
            assert_type(error.is_outage, bool)
        case FlightCancelled() | LeaseLost():
            assert_type(error.flight_id, int | None)
            assert_type(error.generation, int | None)


def an_answer_that_is_none(error: Rejected | ResultTooLarge | ResultUnreadable | ReentrantFlight) -> None:
    """A paid value is not lost."""
    match error:
        case Rejected():
            assert_type(error.value, object)
            assert_type(error.retry_after, float | None)
        case ResultTooLarge():
            assert_type(error.size, int)
            assert_type(error.limit, int)
        case ResultUnreadable():
            assert_type(error.value, object)
        case ReentrantFlight():
            assert_type(error.stage, str)


def the_base(error: InvalidRequest) -> SingleFlightError:
    """One class catches all."""
    return error


def the_call() -> FlightContext:
    """What a call knows of its flight."""
    flight = current_flight()
    assert_type(flight, FlightContext)
    assert_type(flight.raise_if_lost(), None)
    return flight
