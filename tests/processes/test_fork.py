"""A forked child is another process: new identity, nothing inherited but memory (R12)."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from django.db import connection

from tests.callers import events_of

pytestmark = pytest.mark.django_db


Facts = dict[tuple[str, bool], dict[str, Any]]


def forked(key: str, child: str) -> Facts:
    """Run a process that forks in the middle of its call, and return what both said, by event and by who it was."""
    database = str(connection.settings_dict["NAME"])
    ended = subprocess.run(
        [sys.executable, "-m", "tests.programs.forking", key, child],
        env={**os.environ, "TEST_DATABASE_NAME": database},
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        check=True,
    )
    facts: list[dict[str, Any]] = [json.loads(line) for line in ended.stdout.splitlines()]
    return {(fact["event"], fact["is_child"]): fact for fact in facts}


def test_a_forked_child_neither_renews_nor_settles_its_parents_flight(unique: str) -> None:
    """R12: the child has an identity and connections of its own; the parent's flight ends as the parent says."""
    by_event = forked(unique, "returns")

    parent, child = by_event["outcome", False], by_event["outcome", True]
    assert (parent["value"], parent["role"], parent["superseded"]) == ("from the parent", "owner", False)
    assert by_event["held", False]["held"] == [parent["generation"]]
    assert (by_event["own", True]["value"], by_event["own", True]["role"]) == ("child's own", "owner")
    assert by_event["own", True]["owner"] != by_event["ready", False]["owner"]
    assert child["value"] == "from the child"
    assert events_of("calm", parent["generation"]) == ["granted", "settled"]


def test_a_forked_child_that_leaves_takes_nothing_of_its_parent_with_it(unique: str) -> None:
    """R12: it closes what it has and exits in mid-call; the parent's lease, call and connections go on."""
    by_event = forked(unique, "leaves")

    parent, after = by_event["outcome", False], by_event["after", False]
    assert (parent["value"], parent["role"], parent["superseded"]) == ("from the parent", "owner", False)
    assert by_event["held", False]["held"] == [parent["generation"]]
    assert (after["value"], after["degraded"]) == ("after the child", False)
    assert by_event["own", True]["value"] == "child's own"
    assert events_of("calm", parent["generation"]) == ["granted", "settled"]
