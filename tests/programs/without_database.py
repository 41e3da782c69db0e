"""A process whose PostgreSQL is out of reach: it asks for flights in every way there is, and tells what it got.

Lines out, JSON, one per question. Run with TEST_DATABASE_HOST where nothing is, and TEST_MODE.
"""

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import django

django.setup()

from singleflight_app import GLOBAL, CoordinationUnavailable, current_flight, run, single_flight  # noqa: E402
from singleflight_app.telemetry.signals import flight_degraded  # noqa: E402

degraded: list[str] = []


def remember(*, stage: str, **_: object) -> None:
    """Count the calls that were made without the database."""
    degraded.append(stage)


flight_degraded.connect(remember)


@single_flight("without-database", scope=GLOBAL)
def answer(name: str) -> str:
    """Say under which generation the call runs."""
    return f"{name} {current_flight().generation}"


def tell(question: str, ask: Callable[[], object]) -> None:
    """Print what a question came to."""
    before = time.monotonic()
    try:
        told: object = ask()
    except Exception as exc:  # noqa: BLE001  (the test looks at what came)
        told = f"{type(exc).__name__}: {exc}"
    print(json.dumps({"question": question, "told": told, "seconds": time.monotonic() - before}), flush=True)


def outcome_of(name: str) -> dict[str, object]:
    """Return what a test wants to know of an outcome."""
    outcome = answer.outcome(name)
    return {
        "value": outcome.value,
        "role": outcome.role,
        "degraded": outcome.degraded,
        "ids": [outcome.flight_id, outcome.generation],
    }


def together() -> dict[str, object]:
    """Ask in five threads at once."""
    begun, go = threading.Event(), threading.Event()
    calls, answers = [], []

    def held() -> str:
        calls.append(1)
        begun.set()
        go.wait(20)
        return "shared"

    def ask() -> None:
        with suppress(CoordinationUnavailable):
            answers.append(run("without-database-too", {"key": 1}, held, scope="test").value)

    threads = [threading.Thread(target=ask) for _ in range(5)]
    threads[0].start()
    while threads[0].is_alive() and not begun.wait(0.01):
        pass
    for thread in threads[1:]:
        thread.start()
    go.set()
    for thread in threads:
        thread.join(20)
    return {"calls": len(calls), "answers": answers}


def failing() -> object:
    """Ask for what fails by itself."""
    return run("without-database-failing", {"key": 1}, lambda: 1 / 0, scope="test")


tell("outcome", lambda: outcome_of("a"))
tell("again", lambda: outcome_of("a"))
tell("together", together)
tell("failing", failing)
tell("submit", lambda: answer.submit("b"))
tell("forget", lambda: answer.forget("a"))
tell("key", lambda: answer.key("a").digest.hex()[:4])
tell("degraded", lambda: len(degraded))
