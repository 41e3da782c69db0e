"""`flights`: live flights by the database's clock, stuck ones first, and no scope of anybody."""

import io
import json
import re
import sys
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone
from pytest_django.fixtures import Settings

from singleflight_app.domain.states import Status
from tests.held import Held, begin
from tests.nodes import nodes
from tests.outages import Outage
from tests.rows import flight_row

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("empty_tables")]


def shown(*arguments: str) -> str:
    out = io.StringIO()
    call_command("flights", *arguments, stdout=out)
    return out.getvalue()


def seen(*arguments: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(shown(*arguments, "--json"))
    return answer


def ago(seconds: float) -> Any:  # noqa: ANN401  (a datetime)
    return timezone.now() - timedelta(seconds=seconds)


def test_a_running_flight_is_shown_with_its_lease_and_without_its_scope(unique: str) -> None:
    """What an operator needs at night; a scope may name a person."""
    held = Held("answer")
    with nodes(1) as (node,):
        caller = begin(node.run, "calm", {"key": unique}, held, scope="user:mira@example.org")
        held.wait_until_begun()

        text, (facts,) = shown(), seen()["flights"]

        held.let_go()
        caller.result(20)
        owner = node.name
    assert "1 live flights, 0 stuck" in text
    assert owner.rpartition(":")[0] in text
    assert "mira" not in text + json.dumps(facts)
    assert (facts["stage"], facts["status"], facts["owner"], facts["stuck"]) == ("calm", "running", owner, False)
    assert 0 < facts["lease_left"] <= 60
    assert facts["age"] >= 0
    assert seen()["flights"] == []


def test_stuck_flights_come_first_and_are_told_by_a_word() -> None:
    """A lease that is over with nobody taking over; a pending flight that no worker came for within its time."""
    flight_row(status=Status.RUNNING, stage="calm")
    waiting = flight_row(status=Status.PENDING, stage="queued", created_at=ago(5))  # its pending_timeout is 0.3 s
    flight_row(status=Status.PENDING, stage="calm", created_at=ago(5))
    lost = flight_row(status=Status.RUNNING, stage="calm", lease_expires_at=ago(90), heartbeat_at=ago(100))
    flight_row()

    lines = shown().splitlines()
    stuck = seen("--stuck")["flights"]

    assert "4 live flights, 2 stuck" in lines[0]
    assert re.match(rf"{waiting.pk} .* stuck: no worker$", lines[2])
    assert re.match(rf"{lost.pk} .* 100 s +-90 s .* stuck: lease over$", lines[3])
    assert "stuck" not in "".join(lines[4:])
    assert [facts["id"] for facts in stuck] == [waiting.pk, lost.pk]


def test_a_long_list_is_cut_and_says_so() -> None:
    """Nobody takes a hundred rows for all there are."""
    for number in range(5):
        flight_row(status=Status.RUNNING, stage="calm" if number % 2 else "fast")

    text = shown("--limit", "2")

    assert "more than 2 live flights" in text
    assert "cut after 2: narrow it by --stage or --stuck, or raise --limit" in text
    assert seen("--limit", "2")["cut"] is True
    assert seen("--limit", "5")["cut"] is False
    assert len(seen("--stage", "fast")["flights"]) == 3


def test_progress_is_shown_and_can_not_move_the_cursor() -> None:
    """It is a call's own text."""
    flight_row(status=Status.RUNNING, progress={"fraction": 0.5, "text": "page 2\x1b[2J of 4"})

    text = shown()

    assert "50% page 2\N{REPLACEMENT CHARACTER}[2J of 4" in text
    assert "\x1b" not in text


@pytest.mark.parametrize("use_tz", [True, False])
def test_the_time_is_the_databases(use_tz: bool, settings: Settings) -> None:
    """In the project's time zone, whether or not Django knows of zones."""
    settings.USE_TZ = use_tz
    settings.TIME_ZONE = "Asia/Shanghai"

    assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d CST  0 live flights, 0 stuck\n", shown())


def test_a_database_that_is_away_is_an_error_with_the_next_step(outage: Outage) -> None:
    """A single look does not wait for it."""
    outage.begin()

    with pytest.raises(CommandError, match=r"out of reach.*; `manage.py singleflight_doctor` looks for the reason"):
        shown()


def test_rich_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It draws on a terminal, and nothing else hangs on it."""
    monkeypatch.setitem(sys.modules, "rich.console", None)

    assert "0 live flights" in shown()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--limit", "0"], "--limit is 0; give a number from 1 on"),
        (["--watch", "0"], "--watch is 0; give a number of seconds from 0.1 to 3600"),
        (["--watch", "nan"], "--watch is nan; give a number of seconds from 0.1 to 3600"),
        (["--database", "nowhere"], "--database 'nowhere' is no alias of DATABASES"),
    ],
)
def test_bad_input_gets_one_sentence_with_the_repair(arguments: list[str], sentence: str) -> None:
    """Before anything is asked."""
    with pytest.raises(CommandError, match=sentence):
        shown(*arguments)
