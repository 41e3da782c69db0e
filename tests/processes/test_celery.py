"""Celery's prefork workers: each child is a process of its own, and leaves as a process does (R12, R11).

The leases of `calm` last a minute here: whoever gets an answer sooner did not wait for one.
"""

import signal
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import psutil
import pytest

from config.celery import app
from singleflight_app.api import sweep
from singleflight_app.models import Flight
from tests import background
from tests.background import Workers
from tests.callers import callers
from tests.past import end_lease
from tests.programs.asking import askers, begun, let_go
from tests.stored import row_of
from tests.waiting import until

pytestmark = pytest.mark.django_db

PREFORK = ["--pool", "prefork", "--concurrency", "2", "-I", "tests.background,tests.programs.working"]


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    """One worker with two children."""
    with Workers(tmp_path, *PREFORK) as found:
        found.have(1)
        yield found


def begin_in_worker(folder: Path, key: str, count: int = 1) -> None:
    """Return once `count` children have asked for the key, and its call began."""
    for _ in range(count):
        app.send_task("tests.ask", args=[str(folder), key], ignore_result=True)
    until(lambda: len(askers(folder, key)) == count and begun(folder, key), f"{count} tasks to ask")


@pytest.mark.usefixtures("workers")
def test_children_have_identities_of_their_own_and_share_calls(tmp_path: Path, unique: str) -> None:
    """R12, P1: two children ask for one key; one calls, under a name of its own, and both come to the same end."""
    with callers("calm", unique, 1) as (elsewhere,):
        begin_in_worker(tmp_path, unique, 2)
        elsewhere.call()
        let_go(tmp_path, unique)

        (outcome,) = elsewhere.wait_for("outcome")
        (call,) = begun(tmp_path, unique)
        assert outcome["value"] == f"by {call['pid']}"
        assert len(set(askers(tmp_path, unique))) == 2
        assert f":{call['pid']}:" in str(call["owner"])


def test_a_warm_shutdown_lets_the_call_end(workers: Workers, tmp_path: Path, unique: str) -> None:
    """R11: SIGTERM to the worker; the call in the air ends in its own time, for a waiter elsewhere too."""
    begin_in_worker(tmp_path, unique)
    with callers("calm", unique, 1) as (waiting,):
        waiting.call()

        workers._processes[0].send_signal(signal.SIGTERM)
        until(lambda: "Warm shutdown" in (tmp_path / "0.log").read_text(), "the worker to hear it")
        let_go(tmp_path, unique)

        (outcome,) = waiting.wait_for("outcome")
        assert not waiting.all("called")
        assert outcome["value"] == f"by {begun(tmp_path, unique)[0]['pid']}"


def test_a_cold_shutdown_leaves_the_call_to_a_waiter(workers: Workers, tmp_path: Path, unique: str) -> None:
    """R11: SIGQUIT to the worker; its child is told to exit in mid-call, and releases the lease before it does."""
    begin_in_worker(tmp_path, unique)
    with callers("calm", unique, 1) as (waiting,):
        waiting.call()

        workers._processes[0].send_signal(signal.SIGQUIT)
        waiting.wait_for("called")
        waiting.done("mine")

        (outcome,) = waiting.wait_for("outcome")
        assert (outcome["value"], outcome["role"]) == ("mine", "owner")


def has_beaten(flight: Flight) -> bool:
    """Tell whether a running flight's lease was renewed."""
    assert flight.heartbeat_at is not None
    assert flight.started_at is not None
    return flight.heartbeat_at - flight.started_at > timedelta(milliseconds=100)


def has_exited(pid: int) -> bool:
    """Tell whether a process is gone; an orphan that nobody looks after stays a zombie for as long as its machine."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_cold_shutdown_leaves_a_background_flight_to_the_sweep(workers: Workers, tmp_path: Path) -> None:
    """Its arguments stay in the row; once the lease has run out, the sweep queues it again."""
    handle = background.answer.submit(str(tmp_path), "cold", is_held=True)
    (call,) = until(lambda: background.begun(tmp_path, "cold"), "the call")
    # Celery's main process tells only those children to go of whose work it has heard; by the first beat it has.
    until(lambda: has_beaten(row_of(handle)), "a beat")

    workers._processes[0].send_signal(signal.SIGQUIT)
    until(lambda: has_exited(call["pid"]), "the child to exit")
    left = row_of(handle)
    end_lease(call["generation"])
    sweep()

    assert (left.status, left.generation) == ("running", call["generation"])
    assert row_of(handle).status == "pending"
