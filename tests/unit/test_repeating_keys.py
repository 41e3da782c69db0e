"""A stage whose key never comes twice is told by `manage.py check`: nothing of it would ever be shared or replayed.

Long by the tables of what is such a key, and of what only looks like one.
"""

import dataclasses
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime
from functools import partial
from typing import Annotated, Any, NewType
from uuid import UUID, uuid4

import pytest
from django.core.checks import run_checks
from django.utils import timezone
from pydantic import BaseModel, Field

from singleflight_app import GLOBAL, folded, single_flight
from singleflight_app.checks import check_keys

RequestId = NewType("RequestId", str)
TicketId = NewType("TicketId", int)
TENANT = uuid4()
SINCE = datetime.now(UTC)


class Asked(BaseModel):
    """A request that is another each time it is made."""

    text: str
    id: UUID = Field(default_factory=uuid4)
    at: datetime = Field(default_factory=partial(datetime.now, UTC))


@dataclasses.dataclass
class Marked:
    """The same as a dataclass."""

    text: str
    at: datetime = dataclasses.field(default_factory=lambda: timezone.now())  # noqa: PLW0108  (as people write it)


class Transcript(BaseModel):
    """What is the same each time it is loaded."""

    id: UUID
    started_at: datetime
    lines: list[str] = Field(default_factory=list)


@pytest.fixture(autouse=True)
def _no_other_stages() -> Iterator[None]:
    known = dict(folded.registry)
    folded.registry.clear()
    yield
    folded.registry.clear()
    folded.registry.update(known)


def told(function: Callable[..., Any], **options: Any) -> list[str]:  # noqa: ANN401
    """Return what the check says of a function decorated so."""
    folded.registry.clear()
    single_flight("repeating", **{"scope": GLOBAL, **options})(function)
    return [message.msg for message in check_keys()]


def with_a_moment(answer: str, now: datetime) -> None: ...
def with_seconds(answer: str, timestamp: float) -> None: ...
def with_an_untyped_moment(answer, requested_at): ...  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
def with_a_trace(answer: str, *, trace_id: str | None = None) -> None: ...
def with_a_request(answer: str, request_id: UUID) -> None: ...
def with_a_random_type(answer: str, origin: RequestId) -> None: ...
def with_a_random_default(answer: str, token: UUID = uuid4()) -> None: ...  # noqa: B008
def with_a_default_of_now(answer: str, at: datetime = datetime.now(UTC).replace(microsecond=1)) -> None: ...  # noqa: B008
def with_a_fresh_model(asked: Asked) -> None: ...
def with_a_fresh_dataclass(marked: Annotated[Marked | None, "as sent"]) -> None: ...
def with_what_is_not_imported(answer: "NotImported", nonce: str) -> None: ...  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("function", "held"),
    [
        (with_a_moment, "now (a moment)"),
        (with_seconds, "timestamp (a moment)"),
        (with_an_untyped_moment, "requested_at (a moment)"),
        (with_a_trace, "trace_id (a random id)"),
        (with_a_request, "request_id (a random id)"),
        (with_a_random_type, "origin (a random id)"),
        (with_a_random_default, "token (another default in every process)"),
        (with_a_default_of_now, "at (another default in every process)"),
        (with_a_fresh_model, "asked.id (made anew by each Asked), asked.at (made anew by each Asked)"),
        (with_a_fresh_dataclass, "marked.at (made anew by each Marked)"),
        (with_what_is_not_imported, "nonce (a random id)"),
    ],
)
def test_a_key_with_a_moment_or_a_random_id_is_told(function: Callable[..., Any], held: str) -> None:
    """By stage and argument, with what it seems to be."""
    assert told(function) == [f"SINGLEFLIGHT: no key of stage 'repeating' seems to come twice, for it holds {held}."]


def with_rows(interview_id: UUID, request_id: int, ticket: TicketId, user_id: str) -> None: ...
def with_stored_moments(started_at: datetime, updated_at: datetime, created_at: datetime) -> None: ...
def with_a_day(now: date, today: date, timestamp: date) -> None: ...
def with_a_flag(now: bool, nonce: bool) -> None: ...
def with_a_stored_model(transcript: Transcript) -> None: ...
def with_constants(tenant: UUID = TENANT, since: datetime = SINCE) -> None: ...
def with_a_fixed_moment(since: datetime = datetime(2026, 5, 1, tzinfo=UTC)) -> None: ...
def with_other_words(knowledge: str, announce: str, timestamped: str, request: str) -> None: ...
def with_nothing() -> None: ...


@pytest.mark.parametrize(
    "function",
    [
        with_rows,
        with_stored_moments,
        with_a_day,
        with_a_flag,
        with_a_stored_model,
        with_constants,
        with_a_fixed_moment,
        with_other_words,
        with_nothing,
    ],
)
def test_what_is_stored_and_comes_again_is_not_told(function: Callable[..., Any]) -> None:
    """A warning that is mostly wrong would be silenced, and then say nothing."""
    assert told(function) == []


class Marker:
    """A class whose method has a receiver of a telling name."""

    def mark(self, answer: str) -> None: ...


def test_only_what_takes_part_in_the_key_is_told() -> None:
    """`key=` leaves it out; a scope, or a `key=`, that names it brings it in."""
    assert told(Marker.mark) == []
    assert told(with_a_moment, key=lambda answer: answer) == []
    assert "now (a moment)" in told(with_a_moment, key=lambda answer, now: (answer, now))[0]
    assert "now (a moment)" in told(with_a_moment, key=lambda answer: answer, scope=lambda now: f"{now}")[0]


def test_the_warning_says_how_to_repair_and_how_to_silence_it() -> None:
    """It is one of Django's checks, found under the app's tag."""
    single_flight("repeating", scope=GLOBAL)(with_a_moment)

    [found] = [message for message in run_checks(tags=["singleflight"]) if message.id == "singleflight.W009"]

    assert found.obj == f"{__name__}.with_a_moment"
    assert "Leave it out with key=" in (found.hint or "")
    assert '"singleflight.W009" to SILENCED_SYSTEM_CHECKS' in (found.hint or "")
