"""uvicorn's processes and their async calls: shared, left by a client, told to go (P1, P5, R11).

Leases last a minute here: whoever gets an answer sooner did not wait for one.
"""

import signal
import socket
from pathlib import Path

import pytest

from tests.callers import callers
from tests.held import begin
from tests.programs.asking import askers, begun, let_go
from tests.serving import Web, uvicorn
from tests.waiting import until

pytestmark = pytest.mark.django_db


def leave_in_mid_call(web: Web, key: str) -> None:
    """Ask, and hang up once the call has begun."""
    with socket.create_connection(web.address) as connection:
        connection.sendall(f"GET /ask/{key} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        until(lambda: begun(web.folder, key), f"the call to begin; the server said {web.log()}")


def test_two_servers_fold_a_key_into_one_call(tmp_path: Path, unique: str) -> None:
    """P1, P2: two processes await one key; one call, one answer."""
    with uvicorn(tmp_path) as first, uvicorn(tmp_path) as second:
        one = begin(first.get, f"ask/{unique}")
        two = begin(second.get, f"ask/{unique}")
        until(lambda: len(askers(tmp_path, unique)) == 2 and begun(tmp_path, unique), "both to ask")
        let_go(tmp_path, unique)

        (call,) = begun(tmp_path, unique)
        assert one.result(20)["value"] == two.result(20)["value"] == f"by {call['pid']}"
        assert {one.result()["pid"], two.result()["pid"]} == {first.process.pid, second.process.pid}


def test_a_client_that_hangs_up_ends_no_call(tmp_path: Path, unique: str) -> None:
    """P5, R11: its request is cancelled; the call goes on, for a follower elsewhere and for whoever comes later."""
    with uvicorn(tmp_path) as web, callers("calm", unique, 1) as (follower,):
        leave_in_mid_call(web, unique)
        follower.call()
        let_go(tmp_path, unique)

        (outcome,) = follower.wait_for("outcome")
        assert outcome["value"] == web.get(f"ask/{unique}")["value"] == f"by {web.process.pid}"
        assert len(begun(tmp_path, unique)) == 1


def test_a_terminated_server_lets_a_call_with_a_client_end(tmp_path: Path, unique: str) -> None:
    """R11: uvicorn waits for its requests; the call ends in its own time, for its client and a waiter elsewhere."""
    with uvicorn(tmp_path) as web, callers("calm", unique, 1) as (waiting,):
        answer = begin(web.get, f"ask/{unique}")
        until(lambda: begun(tmp_path, unique), "the call to begin")
        waiting.call()

        web.process.send_signal(signal.SIGTERM)
        until(lambda: "Shutting down" in web.log(), "the server to hear it")
        let_go(tmp_path, unique)

        (outcome,) = waiting.wait_for("outcome")
        assert answer.result(20)["value"] == outcome["value"] == f"by {web.process.pid}"


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_terminated_server_leaves_a_call_without_a_client_to_a_waiter(
    workers: str, tmp_path: Path, unique: str
) -> None:
    """R11: uvicorn does not know of a call whose client has left; it is released before the process ends."""
    with uvicorn(tmp_path, "--workers", workers) as web, callers("calm", unique, 1) as (waiting,):
        leave_in_mid_call(web, unique)
        waiting.call()

        web.process.send_signal(signal.SIGTERM)

        waiting.wait_for("called")
        waiting.done("mine")
        (outcome,) = waiting.wait_for("outcome")
        assert (outcome["value"], outcome["role"]) == ("mine", "owner")
