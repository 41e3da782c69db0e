"""`purge_flights` as a process: a bar on a terminal, nothing but the answer elsewhere, and Ctrl-C anywhere."""

import json
import os
import pty
import re
import signal
from datetime import timedelta

import psycopg
import pytest
from django.db import connection
from django.utils import timezone

from singleflight_app.models import Flight
from tests.commands import StartCommand
from tests.rows import flight_row
from tests.waiting import until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("empty_tables")]


def expired(count: int) -> None:
    """Have so many flights that may be purged."""
    for _ in range(count):
        flight_row(expires_at=timezone.now() - timedelta(days=1))


def is_waited_for() -> bool:
    """Tell whether somebody waits for a lock on the flights."""
    with connection.cursor() as cursor:
        cursor.execute(
            "select count(*) from pg_locks where not granted and relation = 'singleflight_flight'::regclass "
            "and database = (select oid from pg_database where datname = current_database())"
        )
        return bool(cursor.fetchone()[0])


@pytest.mark.parametrize("form", ["line", "json"])
def test_a_purge_that_is_interrupted_says_what_it_did(command: StartCommand, form: str) -> None:
    """Ctrl-C in the middle of a batch: the batches before are committed, that one is not, and the code is 130."""
    expired(400)
    names = ("host", "port", "user", "password", "dbname")
    parameters = connection.get_connection_params()
    there = {name: parameters[name] for name in names if parameters.get(name)}
    process = command("purge_flights", "--batch-size", "1", *(["--json"] if form == "json" else []))
    until(lambda: Flight.objects.count() < 400, "the purge to begin")
    with psycopg.connect(**there) as other, other.transaction():
        other.execute("lock table singleflight_flight in share mode")
        until(is_waited_for, "the purge to wait for the table")

        process.send_signal(signal.SIGINT)
        said, complained = process.communicate(timeout=20)

    done = 400 - Flight.objects.count()
    assert process.returncode == 130, complained
    assert 0 < done < 400
    if form == "json":
        facts = json.loads(said)
        assert (facts["flights"], facts["complete"]) == (done, False)
    else:
        assert said.startswith(f"stopped: purged {done} flights and 0 audit rows in")


def test_a_terminal_shows_a_bar_and_the_line(command: StartCommand) -> None:
    """With `rich` the bar has an end, since one short statement tells how many rows will go."""
    expired(3)
    ours, theirs = pty.openpty()
    process = command("purge_flights", "--batch-size", "1", stdout=theirs, TERM="xterm", COLUMNS="120")
    os.close(theirs)

    shown = read_all(ours)

    assert process.wait(20) == 0, process.communicate()[1]
    process.communicate()
    assert re.search(r"purged 3 flights and 0 audit rows.*3/3", shown)
    assert "purged 3 flights and 0 audit rows in " in shown


def test_elsewhere_there_is_the_line_alone(command: StartCommand) -> None:
    """A log file holds no bars."""
    expired(1)
    process = command("purge_flights")

    said, complained = process.communicate(timeout=20)

    assert re.fullmatch(r"purged 1 flights and 0 audit rows in \d+\.\d s\n", said)
    assert complained == ""


def read_all(terminal: int) -> str:
    """Return all that is written to a terminal until its last writer is gone."""
    parts = []
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:  # Linux: nobody has its other end any more
            break
        if not part:
            break
        parts.append(part)
    os.close(terminal)
    return b"".join(parts).decode()
