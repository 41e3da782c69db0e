"""`flights --watch`: a block a look, through an outage of the database, until Ctrl-C; on a terminal in place."""

import json
import os
import pty
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from singleflight_app.domain.states import Status
from tests.commands import StartCommand
from tests.proxy import proxy
from tests.rows import flight_row

if TYPE_CHECKING:
    import subprocess

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("empty_tables")]


def lines_of(process: "subprocess.Popen[str]") -> Iterator[str]:
    assert process.stdout is not None
    return iter(process.stdout.readline, "")


def test_a_watch_goes_on_through_an_outage_and_ends_by_ctrl_c(command: StartCommand) -> None:
    """It says that the database is away, tries again, and its exit code is 0: nothing went wrong."""
    flight_row(status=Status.RUNNING, stage="calm")
    with proxy() as network:
        process = command("flights", "--watch", "0.1", TEST_DATABASE_HOST=network.folder)
        lines = lines_of(process)
        next(line for line in lines if "1 live flights, 0 stuck" in line)
        assert "running" in next(line for line in lines if "calm" in line)

        network.cut()
        next(line for line in lines if "PostgreSQL is out of reach" in line and "trying again in 0.1 s" in line)
        network.mend()
        next(line for line in lines if "1 live flights, 0 stuck" in line)

        process.send_signal(signal.SIGINT)
        _, complained = process.communicate(timeout=20)
    assert process.returncode == 0, complained
    assert "Traceback" not in complained


def test_a_watch_for_programs_is_one_object_a_line(command: StartCommand) -> None:
    """With the same facts as a single look."""
    flight = flight_row(status=Status.RUNNING)
    process = command("flights", "--watch", "0.1", "--json")
    lines = lines_of(process)

    looks = [json.loads(next(lines)) for _ in range(2)]

    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert [look["flights"][0]["id"] for look in looks] == [flight.pk, flight.pk]
    assert looks[0]["at"] < looks[1]["at"]
    assert process.returncode == 0


def test_a_terminal_is_written_over(command: StartCommand) -> None:
    """With `rich` each look takes the place of the one before."""
    flight_row(status=Status.RUNNING, stage="calm")
    ours, theirs = pty.openpty()
    process = command("flights", "--watch", "0.1", stdout=theirs, TERM="xterm", COLUMNS="150", LINES="40")
    os.close(theirs)

    shown = ""
    while shown.count("1 live flights") < 2:
        shown += os.read(ours, 65536).decode()

    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    os.close(ours)
    assert process.returncode == 0
    assert "\x1b[1A" in shown  # the cursor goes up again
