"""The public names: each is documented, and the exceptions carry their facts and write their own sentence."""

import inspect
from collections.abc import Iterator

import pytest

import singleflight_app
from singleflight_app import (
    ExecutionTimedOut,
    FlightCancelled,
    FlightFailed,
    LeaseLost,
    Outcome,
    Overloaded,
    OwnerLost,
    ReentrantFlight,
    ResultTooLarge,
    SingleFlightError,
    StillRunning,
    testing,
)

#: design section 3; more may come, none may go
PROMISED = {
    "GLOBAL",
    "CoordinationUnavailable",
    "ExecutionTimedOut",
    "FlightCancelled",
    "FlightFailed",
    "FlightHandle",
    "FlightKey",
    "InvalidRequest",
    "LeaseLost",
    "Outcome",
    "Overloaded",
    "OwnerLost",
    "ReentrantFlight",
    "ResultTooLarge",
    "ResultUnreadable",
    "SingleFlightError",
    "StillRunning",
    "current_flight",
    "run",
    "single_flight",
}


def members() -> Iterator[tuple[str, object]]:
    """Every public function, property and class behind `__all__`, with its name."""
    named = [(module, name) for module in (singleflight_app, testing) for name in module.__all__]
    for module, name in named:
        thing = getattr(module, name)
        yield name, thing if inspect.isclass(thing) or inspect.isfunction(thing) else type(thing)
        if inspect.isclass(thing) and not issubclass(thing, Exception | str):
            for attribute, value in vars(thing).items():
                if not attribute.startswith("_") and (inspect.isfunction(value) or isinstance(value, property)):
                    yield f"{name}.{attribute}", value


def test_the_promised_names_are_there() -> None:
    """And `__all__` names nothing that is not."""
    assert set(singleflight_app.__all__) >= PROMISED
    assert all(hasattr(singleflight_app, name) for name in singleflight_app.__all__)
    assert len(singleflight_app.__all__) == len(set(singleflight_app.__all__))


@pytest.mark.parametrize(("name", "thing"), [pytest.param(name, thing, id=name) for name, thing in members()])
def test_a_public_name_has_a_docstring_of_its_own(name: str, thing: object) -> None:
    """What it is for, and what holds when it returns."""
    own = thing.__doc__

    assert own, name
    assert own.strip().endswith((".", "`")), name


def test_the_module_is_the_manual() -> None:
    """`help(singleflight_app)` begins with how to use it."""
    assert "@single_flight(" in (singleflight_app.__doc__ or "")


@pytest.mark.parametrize(
    ("error", "sentence", "facts"),
    [
        (
            StillRunning("flight 7 of stage score", 1.234),
            "flight 7 of stage score is still running after 1.2 s of waiting; ask again later for its outcome",
            {"waited": 1.234},
        ),
        (FlightFailed("a.B", "no", retryable=True, generation=5), "a.B: no", {"retryable": True, "generation": 5}),
        (FlightFailed("a.B", ""), "a.B", {"message": "", "retryable": False, "generation": None}),
        (ExecutionTimedOut("a.B", "late"), "a.B: late", {"error_type": "a.B"}),
        (OwnerLost("a.B", "died"), "a.B: died", {"message": "died"}),
        (FlightCancelled(7, 5), "flight 7 was cancelled at generation 5", {"flight_id": 7, "generation": 5}),
        (LeaseLost(7, 5), "lease on flight 7 lost at generation 5", {"flight_id": 7, "generation": 5}),
        (Overloaded("too many", 5.4), "too many; ask again in 5.4 s", {"reason": "too many", "retry_after": 5.4}),
        (
            ResultTooLarge(20, 10),
            (
                "the result has 20 bytes and max_result_bytes is 10; raise the option, "
                "or return a reference to the data instead of the data"
            ),
            {"size": 20, "limit": 10},
        ),
        (
            ReentrantFlight("score"),
            "the call of stage 'score' asks for itself with the same key; give the inner call other arguments",
            {"stage": "score"},
        ),
    ],
)
def test_an_exception_writes_its_own_sentence(
    error: SingleFlightError, sentence: str, facts: dict[str, object]
) -> None:
    """From facts, which it keeps as attributes."""
    assert isinstance(error, SingleFlightError)
    assert str(error) == sentence
    assert {name: getattr(error, name) for name in facts} == facts


def test_timed_out_and_lost_are_failures_for_those_who_ask_for_failures() -> None:
    """One `except FlightFailed` covers what a shared call can come to."""
    assert issubclass(ExecutionTimedOut, FlightFailed)
    assert issubclass(OwnerLost, FlightFailed)


def test_an_outcome_tells_where_it_came_from() -> None:
    """The fields that callers read."""
    named = {"value", "role", "layer", "generation", "flight_id", "waited", "superseded", "degraded"}

    assert named <= set(inspect.signature(Outcome).parameters)
