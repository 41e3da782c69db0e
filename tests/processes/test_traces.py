"""Traces across real processes, and processes without the package: nothing breaks, and nothing of it is imported."""

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.callers import Caller, callers


def spans_of(caller: Caller, name: str) -> list[dict[str, Any]]:
    return [fact for fact in caller.all("span") if fact["name"] == f"singleflight.{name}"]


@pytest.mark.django_db
def test_a_follower_in_another_process_points_to_the_owners_call(unique: str) -> None:
    """Each in a trace of its own; the row tells the one of the other."""
    with callers("calm-row", unique, 2, TEST_TRACED="yes") as (owner, follower):
        owner.call()
        owner.wait_for("called")
        follower.warm_up()
        follower.call()
        follower.wait_for("span", 4)  # claim, call and settle of the warm-up, and the claim that found the owner
        owner.done("answer")
        follower.wait_for("outcome")
        owner.wait_for("outcome")

        (called,), (waited,) = spans_of(owner, "call"), spans_of(follower, "wait")
    assert waited["links"] == [called["traceparent"]]
    assert waited["traceparent"][:35] != called["traceparent"][:35]
    assert waited["attributes"]["generation"] == called["attributes"]["generation"]


@pytest.mark.django_db
def test_whoever_takes_over_from_a_killed_owner_points_to_its_call(unique: str) -> None:
    """A killed owner sends no span; the row has told which one it would have been."""
    with callers("fast", unique, 2, TEST_TRACED="yes") as (owner, follower):
        owner.call()
        (dead,) = owner.wait_for("called")
        follower.call()
        follower.wait_for("span", 1)
        owner.kill()
        follower.wait_for("called")
        follower.done("answer")
        follower.wait_for("outcome")

        (called,), waits = spans_of(follower, "call"), spans_of(follower, "wait")
    assert waits[0]["attributes"]["generation"] == dead["generation"] < called["attributes"]["generation"]
    assert len(waits[0]["links"]) == 1
    assert waits[0]["links"] != [called["traceparent"]]


def test_without_the_package_a_flight_goes_its_way() -> None:
    """No span machinery is imported, and the one null span serves every call."""
    program = [sys.executable, "-m", "tests.programs.untraced"]
    told = json.loads(subprocess.run(program, check=True, capture_output=True, text=True, timeout=60).stdout)

    assert told == {"value": "answer", "imported": [], "is_traced": False}
