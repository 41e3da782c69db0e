"""The three modes: local needs no server, distributed refuses without PostgreSQL, hybrid goes on alone and says so."""

import json
import os
import subprocess
import sys
from functools import cache
from typing import Any

import pytest
from django.db import connection
from pytest_django.fixtures import Settings

from singleflight_app import GLOBAL, CoordinationUnavailable, InvalidRequest, Layer, Role, run, single_flight
from singleflight_app.api import expire_lease, sweep
from singleflight_app.wiring import runtime
from tests.held import Counted, Held, at_once, begin, results
from tests.nodes import nodes

Told = dict[str, Any]


@pytest.fixture
def local(settings: Settings) -> None:
    """Local mode, with no database and no Redis in reach."""
    nowhere = {"default": {**settings.CACHES["default"], "LOCATION": "unix:///nonexistent/redis.sock"}}
    settings.SINGLEFLIGHT = {**settings.SINGLEFLIGHT, "MODE": "local"}
    settings.CACHES = nowhere


@cache
def without_database(mode: str) -> dict[str, Told]:
    """Return what a process in this mode is told, by question."""
    environment = {
        "TEST_MODE": mode,
        "TEST_DATABASE_HOST": "/nonexistent",
        "TEST_DATABASE_NAME": "none",
        "TEST_REDIS": "unix:///nonexistent/redis.sock",
        "DJANGO_SETTINGS_MODULE": "tests.settings",
    }
    program = [sys.executable, "-m", "tests.programs.without_database"]
    done = subprocess.run(
        program, env={**os.environ, **environment}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    facts = [json.loads(line) for line in done.stdout.splitlines()]
    return {fact.pop("question"): {**fact, "log": done.stderr} for fact in facts}


@single_flight("local-numbered", scope=GLOBAL)
def numbered(name: str) -> list[str]:
    """Return a new list."""
    return [name]


def _reset() -> str:
    raise ConnectionError("reset")


@pytest.mark.usefixtures("local")
def test_local_mode_folds_the_calls_of_one_process(unique: str) -> None:
    """No server: callers share, later ones replay, keys are apart, generations rise."""
    call = Held("answer")
    callers = at_once(10, run, "calm-row", {"key": unique}, call, scope="test")
    call.wait_until_begun()
    call.let_go()
    shared = results(callers)
    replayed = run("calm-row", {"key": unique}, call, scope="test")
    other = run("calm-row", {"key": unique}, Counted("other"), scope="another")

    assert {outcome.value for outcome in shared} == {"answer"}
    assert sum(outcome.role is Role.OWNER for outcome in shared) == 1
    assert (replayed.role, replayed.layer) == (Role.REPLAY, Layer.DATABASE)
    assert (other.value, call.count) == ("other", 1)
    assert (other.generation or 0) > (shared[0].generation or 0)
    assert not shared[0].degraded


@pytest.mark.usefixtures("local")
def test_local_mode_forgets_fails_and_retries_like_the_others(unique: str) -> None:
    """The same table of decisions stands over another store."""
    first = numbered.outcome(unique)
    assert numbered.forget(unique) is True
    second = numbered.outcome(unique)
    with pytest.raises(ConnectionError):
        run("calm", {"key": unique}, _reset, scope="test")
    retried = run("calm", {"key": unique}, Counted("well"), scope="test")

    assert (first.role, second.role) == (Role.OWNER, Role.OWNER)
    assert (second.generation or 0) > (first.generation or 0)
    assert retried.value == "well"


@pytest.mark.usefixtures("local")
def test_local_mode_has_no_background_flights_and_says_so(unique: str) -> None:
    """What needs PostgreSQL is refused with the repair, not half done."""
    for ask in (lambda: numbered.submit(unique), lambda: expire_lease(1, actor="alice"), sweep):
        with pytest.raises(InvalidRequest, match="needs PostgreSQL; set SINGLEFLIGHT"):
            ask()


@pytest.mark.usefixtures("local")
def test_local_mode_is_bounded(unique: str, settings: Settings) -> None:
    """P4: the oldest answers go; a flight that runs never does."""
    settings.SINGLEFLIGHT = {**settings.SINGLEFLIGHT, "MEMORY_ENTRIES": 10}
    call = Held("still there")
    running = begin(run, "calm-row", {"key": unique}, call, scope="test")
    call.wait_until_begun()
    for number in range(50):
        run("calm-row", {"key": unique, "number": number}, Counted(f"answer {number}"), scope="test")
    call.let_go()

    again = run("calm-row", {"key": unique, "number": 0}, Counted("called again"), scope="test")

    assert running.result(20).value == "still there"
    assert again.value == "called again"
    assert run("calm-row", {"key": unique, "number": 49}, Counted("called again"), scope="test").value == "answer 49"


@pytest.mark.django_db
def test_a_changed_setting_takes_effect_at_once(unique: str, settings: Settings) -> None:
    """`setting_changed` makes a new runtime; the old one's connections are closed."""
    run("calm-row", {"key": unique}, Counted("answer"), scope="test")
    before = runtime()

    settings.SINGLEFLIGHT = {**settings.SINGLEFLIGHT, "NAMESPACE": f"other-{unique}"}
    outcome = run("calm-row", {"key": unique}, Counted("another namespace"), scope="test")

    assert outcome.value == "another namespace"
    assert runtime() is not before
    assert before.database is not None
    assert before.database._pool is None


def test_hybrid_mode_goes_on_alone_and_says_so() -> None:
    """One call per process, marked as degraded, under no generation; a failure of the call is no outage."""
    told = without_database("hybrid")

    alone = {"role": "owner", "degraded": True, "ids": [None, None], "value": "a None"}
    assert told["outcome"]["told"] == alone
    assert told["again"]["told"]["value"] == "a None"
    assert told["together"]["told"] == {"calls": 1, "answers": ["shared"] * 5}
    assert told["failing"]["told"] == "ZeroDivisionError: division by zero"
    assert told["degraded"]["told"] == 4
    assert told["outcome"]["log"].count("flight_degraded") == 1


@pytest.mark.parametrize("mode", ["hybrid", "distributed"])
def test_what_can_not_be_done_alone_is_refused_in_both(mode: str) -> None:
    """Background flights and forgetting need the row; a key needs nothing."""
    told = without_database(mode)

    assert told["submit"]["told"].startswith("CoordinationUnavailable: PostgreSQL is out of reach")
    assert told["forget"]["told"].startswith("CoordinationUnavailable: PostgreSQL is out of reach")
    assert len(told["key"]["told"]) == 4


def test_distributed_mode_refuses_before_the_call() -> None:
    """R17: no user code runs without a generation in hand."""
    told = without_database("distributed")

    for question in ("outcome", "again", "failing"):
        assert told[question]["told"].startswith("CoordinationUnavailable: PostgreSQL is out of reach")
    assert told["degraded"]["told"] == 0


@pytest.mark.django_db
@pytest.mark.parametrize("mode", ["distributed", "hybrid"])
def test_missing_tables_are_told_with_the_repair(
    unique: str,
    mode: str,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A project that forgot to migrate is not left to guess: it is no outage, so no mode goes on alone."""
    settings.SINGLEFLIGHT = {**settings.SINGLEFLIGHT, "MODE": mode}
    with nodes(1) as (node,):
        monkeypatch.setitem(connection.settings_dict, "NAME", "postgres")

        with pytest.raises(CoordinationUnavailable, match=r"run `manage\.py migrate`"):
            node.run("calm", {"key": unique}, Counted("not called"))
