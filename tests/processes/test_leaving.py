"""A process that is told to go, or comes to its end, releases its leases at once: a deploy never waits for them (R11).

Every lease here lasts a minute, longer than any of these tests waits: only a release explains that a waiter calls.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from django.db import connection

from config.servers.places import CHECKOUT
from singleflight_app.models import Flight
from tests.callers import callers, events_of
from tests.programs.asking import begun
from tests.waiting import until

pytestmark = pytest.mark.django_db

Start = Callable[..., "subprocess.Popen[str]"]
SHELL = ["manage.py", "shell", "--no-imports"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Return what starts a program of Python on the test's database; none outlives its test."""
    started = []

    def start(arguments: Sequence[str], text: str = "") -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=CHECKOUT,
            env={**os.environ, "TEST_DATABASE_NAME": str(connection.settings_dict["NAME"])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdin is not None
        process.stdin.write(text)
        process.stdin.close()
        process.stdin = None
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def asking(folder: Path, key: str, function: str = "ask") -> str:
    """Return the line that a command or a shell runs."""
    return f"from tests.programs.asking import {function}; {function}({str(folder)!r}, {key!r})"


def script(folder: Path, key: str) -> list[str]:
    return ["-m", "tests.programs.asking", str(folder), key]


def command(folder: Path, key: str) -> list[str]:
    return [*SHELL, "-c", asking(folder, key)]


@pytest.mark.parametrize("program", [script, command])
def test_a_terminated_program_leaves_its_call_to_a_waiter(
    program: Callable[[Path, str], list[str]], start: Start, tmp_path: Path, unique: str
) -> None:
    """R11: SIGTERM releases the lease before it ends the process, whose status stays that of the signal."""
    leaving = start(program(tmp_path, unique))
    (call,) = until(lambda: begun(tmp_path, unique), "the call of the program")
    with callers("calm", unique, 1) as (waiting,):
        waiting.call()

        leaving.send_signal(signal.SIGTERM)

        _, errors = leaving.communicate(timeout=10)
        waiting.wait_for("called")
        waiting.done("mine")
        (outcome,) = waiting.wait_for("outcome")
        assert (leaving.returncode, errors) == (-signal.SIGTERM, "")
        assert (outcome["value"], outcome["role"]) == ("mine", "owner")
        assert events_of("calm", int(call["generation"])) == ["granted", "settled"]


def test_a_terminated_program_leaves_a_row_that_anyone_may_take(start: Start, tmp_path: Path, unique: str) -> None:
    """R11: with nobody waiting, the row says that the call was cancelled and may be made again."""
    leaving = start(script(tmp_path, unique))
    (call,) = until(lambda: begun(tmp_path, unique), "the call of the program")

    leaving.send_signal(signal.SIGTERM)

    leaving.wait(10)
    row = Flight.objects.get(generation=call["generation"])
    assert (row.status, row.retryable, row.owner) == ("cancelled", True, call["owner"])


def test_a_shell_whose_input_ends_releases_the_call_of_a_thread(start: Start, tmp_path: Path, unique: str) -> None:
    """R11: the interpreter's exit ends a daemon thread in the middle of its call, and releases its lease."""
    leaving = start(SHELL, asking(tmp_path, unique, "ask_beside"))

    _, errors = leaving.communicate(timeout=20)

    (call,) = begun(tmp_path, unique)
    row = Flight.objects.get(generation=call["generation"])
    assert (leaving.returncode, errors) == (0, "")
    assert (row.status, row.retryable) == ("cancelled", True)


def test_a_process_with_nothing_in_the_air_ends_without_a_word(start: Start, unique: str) -> None:
    """An open pool and idle threads neither hold the interpreter's exit up nor complain about it."""
    line = f"from singleflight_app import run; print(run('calm', {{'key': {unique!r}}}, lambda: 'x', scope='t').value)"
    ending = start([*SHELL, "-c", line])

    assert ending.stdout is not None
    said = ending.stdout.readline()
    ending.wait(10)

    _, errors = ending.communicate()
    assert (said, ending.returncode, errors) == ("x\n", 0, "")
