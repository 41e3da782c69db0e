"""Callers inside transactions: what becomes of theirs is their own, the flight and its outcome stay (P5, P7, C22)."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import DatabaseError, connection, transaction
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path
from pytest_django.fixtures import Settings

from singleflight_app import Role, current_flight, run
from singleflight_app.wiring import runtime
from tests.held import Counted
from tests.stored import row_of

pytestmark = pytest.mark.django_db


class Undone(Exception):
    """What makes the caller's transaction roll back."""


@contextmanager
def rolled_back() -> Iterator[None]:
    """Be a caller whose transaction comes to grief at its end."""
    with suppress(Undone), transaction.atomic():
        yield
        raise Undone


def score_and_fail(_: HttpRequest, key: str) -> HttpResponse:
    """Ask for a score, and come to grief afterwards."""
    run("calm-row", {"key": key}, Counted("scored"), scope="test")
    raise Undone


urlpatterns = [path("<str:key>/", score_and_fail)]


def test_a_rolled_back_caller_leaves_the_outcome(unique: str) -> None:
    """P5: in nested blocks, too; whoever asks next replays it."""
    call = Counted("answer", "called again")
    with rolled_back(), transaction.atomic():
        run("calm-row", {"key": unique}, call, scope="test")

    outcome = run("calm-row", {"key": unique}, call, scope="test")

    assert (outcome.value, outcome.role) == ("answer", Role.REPLAY)
    assert row_of(outcome).status == "succeeded"


def test_a_rolled_back_savepoint_leaves_the_outcome(unique: str) -> None:
    """The inner block goes, the outer one commits, the flight knows of neither."""
    with transaction.atomic():
        with rolled_back():
            generation = run("calm-row", {"key": unique}, Counted("answer"), scope="test").generation
        outcome = run("calm-row", {"key": unique}, Counted("called again"), scope="test")

    assert (outcome.value, outcome.generation) == ("answer", generation)


def test_rows_that_the_call_writes_roll_back_with_its_caller(unique: str) -> None:
    """A sync call runs in the caller's transaction; so return data, and write after."""

    def call() -> str:
        Group.objects.create(name=unique)
        return "answer"

    with rolled_back():
        run("calm-row", {"key": unique}, call, scope="test")
        assert Group.objects.filter(name=unique).exists()

    assert not Group.objects.filter(name=unique).exists()
    assert run("calm-row", {"key": unique}, call, scope="test").role is Role.REPLAY


def test_a_transaction_that_is_broken_does_not_reach_the_flight(unique: str) -> None:
    """PostgreSQL refuses every statement of it until it ends; coordination has connections of its own."""
    with transaction.atomic():
        with pytest.raises(DatabaseError), connection.cursor() as cursor:
            cursor.execute("select 1 / 0")

        outcome = run("calm-row", {"key": unique}, Counted("answer"), scope="test")
        transaction.set_rollback(rollback=True)

    assert outcome.value == "answer"


@pytest.mark.django_db(transaction=True)
def test_a_request_that_fails_under_atomic_requests_leaves_the_outcome(
    unique: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C22: the response is an error, the paid answer is there for the retry."""
    settings.ROOT_URLCONF = __name__
    monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)

    response = Client(raise_request_exception=False).get(f"/{unique}/")

    outcome = run("calm-row", {"key": unique}, Counted("called again"), scope="test")
    assert response.status_code == 500
    assert (outcome.value, outcome.role) == ("scored", Role.REPLAY)


def test_a_caller_inside_a_transaction_is_warned_once_per_stage(unique: str, caplog: pytest.LogCaptureFixture) -> None:
    """The transaction stays open all the while: that is worth a sentence, not one per call."""
    stages = [f"{unique[:8]}-a", f"{unique[:8]}-b", f"{unique[:8]}-a"]
    with caplog.at_level(logging.WARNING, "singleflight_app"), transaction.atomic():
        for number, stage in enumerate(stages):
            run(stage, {"key": unique, "number": number}, Counted("answer"), scope="test")

    told = [record.getMessage() for record in caplog.records if "inside a transaction" in record.getMessage()]
    assert len(told) == 2
    assert all("call it outside" in message for message in told)


@pytest.mark.django_db(transaction=True)
def test_a_caller_outside_of_transactions_is_not_warned(unique: str, caplog: pytest.LogCaptureFixture) -> None:
    """An open connection is no open transaction."""
    assert Group.objects.count() == 0
    with caplog.at_level(logging.WARNING, "singleflight_app"):
        run(f"{unique[:8]}-c", {"key": unique}, Counted("answer"), scope="test")

    assert "inside a transaction" not in caplog.text


def test_no_connection_of_the_app_is_in_use_while_the_call_runs(unique: str) -> None:
    """P7: all are back in the pool, and none of them holds a transaction open."""
    seen: dict[str, Any] = {}

    def call() -> str:
        database = runtime().database
        assert database is not None
        assert database._pool is not None
        seen.update(database._pool.get_stats())
        with connection.cursor() as cursor:
            cursor.execute(
                "select count(*) from pg_stat_activity where datname = current_database() "
                "and pid <> pg_backend_pid() and state like 'idle in transaction%'"
            )
            seen["open"] = cursor.fetchone()[0]
        return current_flight().key.stage

    run("calm-row", {"key": unique}, call, scope="test")

    assert seen["pool_available"] == seen["pool_size"]
    assert seen["open"] == 0


class Elsewhere:
    """A router that sends everything to a database that is not there."""

    def db_for_read(self, model: type, **_: object) -> str:
        return "replica"

    def db_for_write(self, model: type, **_: object) -> str:
        return "replica"


def test_routers_do_not_reach_coordination(unique: str, settings: Settings) -> None:
    """C23: a replica that lags would hand out older rows; coordination reads its own alias only."""
    settings.DATABASE_ROUTERS = [Elsewhere()]
    call = Counted("answer", "called again")

    outcomes = [run("calm-row", {"key": unique}, call, scope="test") for _ in range(2)]

    assert [outcome.value for outcome in outcomes] == ["answer", "answer"]
