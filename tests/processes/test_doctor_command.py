"""`singleflight_doctor` as CI calls it: what it prints, its exit codes, and a machine whose clock is wrong."""

import io
import json
import os
import subprocess
import sys
from contextlib import nullcontext
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from pytest_django.fixtures import Settings

from config.servers.places import CHECKOUT
from tests.commands import StartCommand

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("empty_tables")]

NOWHERE = "unix:///nonexistent/valkey.sock?db=0"
_AN_HOUR_AHEAD = """
from tests.shifted import shift_clock
shift_clock(3600)
from django.core.management import execute_from_command_line
execute_from_command_line(["manage.py", "singleflight_doctor", "--json"])
"""


def diagnosed(command: StartCommand, **environment: str) -> tuple[int, str]:
    process = command("singleflight_doctor", stdout=subprocess.PIPE, **environment)
    said, complained = process.communicate(timeout=40)
    assert complained == ""
    return process.returncode, said


def levels(answer: dict[str, Any]) -> dict[str, str]:
    return {finding["id"]: finding["level"] for finding in answer["findings"]}


def test_all_well_is_exit_code_0_and_grouped_by_subject(command: StartCommand) -> None:
    """For people: subject, level, sentence, id."""
    code, said = diagnosed(command)

    assert code == 0
    subjects = [line for line in said.splitlines() if line and not line.startswith(" ")]
    assert subjects[:-1] == ["settings", "database", "flights", "redis", "celery"]
    assert "[database.answer]" in said
    assert subjects[-1].startswith("0 error, ")


def test_an_error_is_exit_code_1_with_its_repair(command: StartCommand) -> None:
    """For CI: Redis is away."""
    code, said = diagnosed(command, TEST_REDIS=NOWHERE)

    assert code == 1
    assert "  error    Redis ('default') gives no answer" in said
    assert "           -> Start it, or correct CACHES[" in said


@pytest.mark.parametrize(("bar", "code"), [("error", 0), ("warning", 1)])
def test_where_the_bar_is_can_be_chosen(bar: str, code: int, settings: Settings) -> None:
    """A warning, here of timeouts that are too short, fails a run only if asked."""
    options = {**settings.CACHES["default"]["OPTIONS"], "SOCKET_TIMEOUT": 0.4}
    settings.CACHES = {**settings.CACHES, "default": {**settings.CACHES["default"], "OPTIONS": options}}
    out = io.StringIO()

    outcome = pytest.raises(SystemExit, match="1") if code else nullcontext()
    with outcome:
        call_command("singleflight_doctor", "--json", "--fail-on", bar, stdout=out)

    answer = json.loads(out.getvalue())
    assert levels(answer)["settings.singleflight.W008"] == "warning"
    assert answer["error"] == 0


def test_what_it_can_not_look_at_is_exit_code_2() -> None:
    """Not to be taken for a fault of the cluster."""
    with pytest.raises(CommandError, match="--database 'nowhere' is no alias of DATABASES") as caught:
        call_command("singleflight_doctor", "--database", "nowhere")

    assert caught.value.returncode == 2


def test_a_machine_whose_clock_is_wrong_is_warned() -> None:
    """Leases go by the database's alone, so it is no error."""
    process = subprocess.run(
        [sys.executable, "-c", _AN_HOUR_AHEAD],
        cwd=CHECKOUT,
        env={**os.environ, "TEST_DATABASE_NAME": str(connection.settings_dict["NAME"])},
        capture_output=True,
        text=True,
        timeout=40,
        check=True,
    )

    answer = json.loads(process.stdout)
    assert (levels(answer)["database.clock"], levels(answer)["redis.clock"]) == ("warning", "warning")
    (clock,) = [finding for finding in answer["findings"] if finding["id"] == "database.clock"]
    assert -3700 < clock["facts"]["ahead_s"] < -3500
    assert "NTP" in clock["repair"]
