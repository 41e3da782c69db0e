"""Every expensive call happens once: all copies of one request, in one process or on many, become one.

    from singleflight_app import current_flight, single_flight

    @single_flight("interview-score", scope=lambda interview_id: f"interview:{interview_id}", version="prompt-3")
    def score_answer(*, interview_id: int, question_id: int, answer: str) -> Score:
        reply = client.chat.completions.create(...)
        current_flight().record_usage(reply)
        return Score.model_validate_json(reply.choices[0].message.content)

    score_answer(interview_id=7, question_id=1, answer="...")          # called, joined or replayed
    score_answer.outcome(interview_id=7, question_id=1, answer="...")  # with role, layer, generation
    score_answer.submit(interview_id=7, question_id=1, answer="...")   # on a Celery worker
    score_answer.forget(interview_id=7, question_id=1, answer="...")   # ask anew from now on
    score_answer.options(fresh=True)(interview_id=7, ...)              # also: sample=2, wait_timeout=20

On an `async def` the same forms are awaited. Add "singleflight_app" to INSTALLED_APPS and run `manage.py migrate`. No
setting is needed to start; docs/settings.md lists those there are.
"""

from singleflight_app.api import AsyncSingleFlight, SingleFlight, arun, run, single_flight
from singleflight_app.domain.exceptions import (
    CoordinationUnavailable,
    ExecutionTimedOut,
    FlightCancelled,
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
)
from singleflight_app.domain.flight import Outcome, Usage
from singleflight_app.domain.keys import GLOBAL, FlightKey
from singleflight_app.domain.states import Layer, Role
from singleflight_app.engine.context import FlightContext, current_flight
from singleflight_app.engine.handles import AsyncFlightHandle, FlightHandle

__all__ = [
    "GLOBAL",
    "AsyncFlightHandle",
    "AsyncSingleFlight",
    "CoordinationUnavailable",
    "ExecutionTimedOut",
    "FlightCancelled",
    "FlightContext",
    "FlightFailed",
    "FlightHandle",
    "FlightKey",
    "InvalidRequest",
    "Layer",
    "LeaseLost",
    "Outcome",
    "Overloaded",
    "OwnerLost",
    "ReentrantFlight",
    "Rejected",
    "ResultTooLarge",
    "ResultUnreadable",
    "Role",
    "SingleFlight",
    "SingleFlightError",
    "StillRunning",
    "Usage",
    "arun",
    "current_flight",
    "run",
    "single_flight",
]
