"""`manage.py demo` and `serve` as their users run them: what they print, and that nothing is left running."""

import json
import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import httpx
import psutil
import psycopg
import pytest

from config.addresses import database_from
from config.servers import start_servers
from interview_demo.demo.processes import CHECKOUT
from interview_demo.flights import STAGES
from tests.waiting import until

_TIMEOUT = 60.0


def environment() -> dict[str, str]:
    """Return this process's environment with the project's own settings, and without a real model in it."""
    mine = {name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")}
    return {**mine, "DJANGO_SETTINGS_MODULE": "config.settings"}


@contextmanager
def manage(*arguments: str, output: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command in the background; killed at the end if it still runs."""
    with output.open("wb") as printed:
        process = subprocess.Popen(
            [sys.executable, "manage.py", *arguments],
            cwd=CHECKOUT,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def servers_of(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Return what a command started: model server, gunicorn masters and workers."""
    children = psutil.Process(process.pid).children(recursive=True)
    return [child for child in children if "interview_demo.demo.tied" in " ".join(child.cmdline())]


@pytest.fixture
def own_database() -> Iterator[str]:
    """Make a database that no other test counts in, and return its URL."""
    start_servers()
    server = database_from({})
    name = f"demo_{uuid.uuid4().hex[:8]}"
    address = {"host": server["HOST"], "port": server["PORT"], "user": server["USER"], "dbname": "postgres"}
    with psycopg.connect(**address, autocommit=True) as connection:
        connection.execute(f"create database {name}")
        yield f"postgresql://{server['USER']}@{quote(server['HOST'], safe='')}:{server['PORT']}/{name}"
        connection.execute(f"drop database {name} with (force)")


def test_the_demo_keeps_its_promises(own_database: str) -> None:
    """Exit code 0, and a last line whose numbers are what the protocol promises."""
    run = subprocess.run(
        [sys.executable, "manage.py", "demo", "--json"],
        cwd=CHECKOUT,
        env=environment() | {"DATABASE_URL": own_database},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert run.returncode == 0, run.stderr
    numbers = json.loads(run.stdout.splitlines()[-1])
    assert numbers["model_calls"] == numbers["expected_calls"]
    assert numbers["dashboard_calls"] == numbers["model_calls"]
    assert numbers["takeovers"] == 1
    assert numbers["distinct_answers_per_key_max"] == 1
    assert numbers["takeover_seconds"] > 0
    assert sorted(numbers["stages"]) == sorted(STAGES)
    assert numbers["requests"] == sum(stage["requests"] for stage in numbers["stages"].values())
    assert numbers["stages"]["interview-report"] == {
        "requests": 5,
        "model_calls": 1,
        "followers": 2,
        "replays": 2,
    }
    assert "One key, one call, one answer." in run.stderr
    assert "/admin/singleflight/dashboard/" in run.stderr


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
def test_an_ended_demo_leaves_nothing_running(tmp_path: Path, ending: signal.Signals) -> None:
    """Whatever ends the demo in the middle of an interview ends its nodes and its model server."""
    output = tmp_path / "printed"
    with manage("demo", output=output) as demo:
        until(lambda: "The resume is uploaded" in output.read_text(), "the first scene", timeout=_TIMEOUT)
        servers = servers_of(demo)
        assert len(servers) == 5  # the model server; two nodes, each a master and a worker

        demo.send_signal(ending)

        assert demo.wait(_TIMEOUT) != 0
        _, alive = psutil.wait_procs(servers, timeout=_TIMEOUT)
        assert alive == []
    assert "Traceback" not in output.read_text()


def test_served_nodes_answer_until_they_are_stopped(tmp_path: Path) -> None:
    """`serve` prints the page's addresses, and Ctrl-C ends all of it."""
    output = tmp_path / "printed"
    with manage("serve", "--port", "0", output=output) as serve:
        until(lambda: "Ctrl-C stops" in output.read_text(), "the addresses", timeout=_TIMEOUT)
        addresses = [word for word in output.read_text().split() if word.startswith("http") and word.endswith("/")]
        assert [httpx.get(address).status_code for address in addresses] == [200, 200, 302]  # the last wants a login
        assert "/admin/singleflight/dashboard/  (user demo, password " in output.read_text()
        servers = servers_of(serve)

        serve.send_signal(signal.SIGINT)

        assert serve.wait(_TIMEOUT) == 0
        _, alive = psutil.wait_procs(servers, timeout=_TIMEOUT)
        assert alive == []
    assert "Traceback" not in output.read_text()


def test_a_taken_port_is_one_sentence() -> None:
    """The sentence says what to do."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        run = subprocess.run(
            [sys.executable, "manage.py", "serve", "--port", str(port)],
            cwd=CHECKOUT,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            check=False,
        )

    assert run.returncode == 1
    assert "give --port 0" in run.stderr
    assert "Traceback" not in run.stderr
