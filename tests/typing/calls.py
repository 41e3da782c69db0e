"""Checked by mypy and pyright, never run: what a caller's editor knows of each public form."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_type

from singleflight_app import (
    GLOBAL,
    AsyncFlightHandle,
    FlightHandle,
    FlightKey,
    Layer,
    Outcome,
    Rejected,
    Role,
    Usage,
    arun,
    current_flight,
    run,
    single_flight,
)

if TYPE_CHECKING:
    from django.db import models


@dataclass
class Score:
    """A result."""

    points: int


def complete(score: Score) -> None:
    """Look at a result."""
    if score.points < 0:
        raise Rejected("no such points", retryable=True, retry_after=2)


@single_flight("typed", scope=GLOBAL, accept=complete)
def score(answer: str, *, question: int = 1) -> Score:
    """A function in a thread."""
    current_flight().progress(0.5, "half")
    assert_type(current_flight().idempotency_key, str)
    assert_type(current_flight().lease_lost, bool)
    return Score(len(answer) + question)


@single_flight("typed-async", scope=GLOBAL)
async def ascore(answer: str, *, question: int = 1) -> Score:
    """A function on a loop."""
    return Score(len(answer) + question)


def in_a_thread() -> None:
    """Each form of a plain function."""
    assert_type(score("a", question=2), Score)
    assert_type(score.outcome("a"), Outcome[Score])
    assert_type(score.outcome("a").role, Role)
    assert_type(score.outcome("a").layer, Layer)
    assert_type(score.outcome("a").usage, Usage)
    assert_type(score.outcome("a").generation, int | None)
    assert_type(score.submit("a"), FlightHandle[Score])
    assert_type(score.submit("a").wait(3), Outcome[Score])
    assert_type(score.forget("a"), bool)
    assert_type(score.key("a"), FlightKey)
    assert_type(score.key("a").canonical, str)
    assert_type(score.key("a").digest, bytes)
    assert_type(score.options(fresh=True, sample=2, wait_timeout=3)("a"), Score)
    assert_type(run("typed-run", {"answer": "a"}, lambda: Score(1), scope=GLOBAL, result_type=Score), Outcome[Score])
    score(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    score("a", question="2")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    score.outcome()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def on_a_loop() -> None:
    """Each form of an async function."""
    assert_type(await ascore("a", question=2), Score)
    assert_type(await ascore.outcome("a"), Outcome[Score])
    assert_type(await ascore.submit("a"), AsyncFlightHandle[Score])
    assert_type(await (await ascore.submit("a")).wait(3), Outcome[Score])
    assert_type(await ascore.forget("a"), bool)
    assert_type(ascore.key("a"), FlightKey)
    assert_type(await ascore.options(sample=2)("a"), Score)
    assert_type(await arun("typed-arun", {"answer": "a"}, _ascored, scope=GLOBAL, result_type=Score), Outcome[Score])
    await ascore(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def _ascored() -> Score:
    return Score(1)


async def fenced(rows: "models.QuerySet[models.Model]") -> None:
    """A queryset is what a fenced write takes."""
    assert_type(current_flight().fenced_update(rows, text="..."), int)
    assert_type(await current_flight().afenced_update(rows, generation_field="version", text="..."), int)
