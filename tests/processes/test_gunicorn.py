"""gunicorn's workers, forked from a master that has called flights: each is a process of its own (R12, R11).

Leases last a minute here: whoever gets an answer sooner did not wait for one.
"""

import json
import os
import signal
from pathlib import Path

import httpx
import pytest

from tests.callers import callers
from tests.programs.asking import begun, let_go
from tests.serving import gunicorn
from tests.waiting import until

pytestmark = pytest.mark.django_db

KINDS = pytest.mark.parametrize("kind", [["--worker-class", "sync"], ["--worker-class", "gthread", "--threads", "4"]])


@KINDS
def test_workers_of_one_master_fold_a_key_into_one_call(kind: list[str], tmp_path: Path, unique: str) -> None:
    """R12, P1: workers share neither an identity nor a connection with each other or with their master."""
    with gunicorn(tmp_path, *kind) as web:
        first, second = web.workers()
        one, two = web.get_from(first, "who"), web.get_from(second, "who")

        owner = web.begin_at(first, unique)
        follower = web.begin_at(second, unique)
        let_go(tmp_path, unique)

        assert len({one["owner"], two["owner"], one["first"]}) == 3
        assert one["first"] == two["first"]
        assert (one["quick"], two["quick"]) == ("asked", "asked")
        assert owner.result(20)["value"] == follower.result(20)["value"] == f"by {first}"
        assert (owner.result()["pid"], follower.result()["pid"]) == (first, second)
        (call,) = begun(tmp_path, unique)
        assert call["owner"] == one["owner"]

        os.kill(first, signal.SIGTERM)
        after = until(lambda: _text(tmp_path / "child_exit"), "the master to miss its worker")
        assert json.loads(after) == {"quick": "in the master", "owner": one["first"], "pid": web.process.pid}


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


@KINDS
def test_a_terminated_server_lets_its_call_end(kind: list[str], tmp_path: Path, unique: str) -> None:
    """R11: SIGTERM to the master; the call in the air ends in its own time, for its client and a waiter elsewhere."""
    with gunicorn(tmp_path, *kind) as web, callers("calm", unique, 1) as (waiting,):
        first, _ = web.workers()
        answer = web.begin_at(first, unique)
        waiting.call()

        web.process.send_signal(signal.SIGTERM)
        until(lambda: "Handling signal: term" in web.log(), "the master to hear it")
        let_go(tmp_path, unique)

        (outcome,) = waiting.wait_for("outcome")
        assert answer.result(20)["value"] == outcome["value"] == f"by {first}"
        assert not waiting.all("called")
        assert web.process.wait(10) == 0, web.log()


def test_a_worker_that_is_aborted_leaves_its_call_to_a_waiter(tmp_path: Path, unique: str) -> None:
    """R11: a sync worker that outlasts gunicorn's --timeout is told to abort, and releases its lease before it does."""
    with gunicorn(tmp_path, "--timeout", "1") as web, callers("calm", unique, 1) as (waiting,):
        first, _ = web.workers()
        answer = web.begin_at(first, unique)
        waiting.call()

        waiting.wait_for("called")
        waiting.done("mine")

        (outcome,) = waiting.wait_for("outcome")
        assert (outcome["value"], outcome["role"]) == ("mine", "owner")
        assert isinstance(answer.exception(20), httpx.TransportError | AssertionError)


@KINDS
def test_a_reloaded_server_lets_its_call_end(kind: list[str], tmp_path: Path, unique: str) -> None:
    """R11: HUP; the old worker ends its call, a new one that is asked for the key meanwhile follows it."""
    with gunicorn(tmp_path, *kind) as web:
        old = web.workers()
        answer = web.begin_at(old[0], unique)

        web.process.send_signal(signal.SIGHUP)
        until(lambda: len(set(web.workers()) - set(old)) == 2, "new workers")
        new, _ = set(web.workers()) - set(old)
        follower = web.begin_at(new, unique)
        let_go(tmp_path, unique)

        assert answer.result(20)["value"] == follower.result(20)["value"] == f"by {old[0]}"
        assert follower.result()["pid"] == new
        assert len(begun(tmp_path, unique)) == 1
