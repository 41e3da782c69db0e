"""Processes that ask for one key at once share one call (P1, P2)."""

import pytest

from tests.callers import Fact, callers
from tests.waiting import until

pytestmark = pytest.mark.django_db


def test_processes_that_race_for_one_key_make_one_call(unique: str) -> None:
    """P1, P2: five processes with eight threads each ask at once; one call, one answer for all forty."""
    with callers("calm", unique, 5, threads=8) as five:
        for caller in five:
            caller.call()
        owner = until(lambda: next((c for c in five if c.all("called")), None), "an owner")
        assert owner is not None

        owner.done("the answer")
        outcomes: list[Fact] = [fact for caller in five for fact in caller.wait_for("outcome", 8)]

        assert sum(len(caller.all("called")) for caller in five) == 1
        assert {fact["value"] for fact in outcomes} == {"the answer"}
        assert len({fact["generation"] for fact in outcomes}) == 1
        assert [fact["role"] for fact in outcomes].count("owner") == 1
        assert not any(caller.all("error") for caller in five)


def test_a_later_process_replays_without_a_call(unique: str) -> None:
    """P2: whoever comes after the end gets the stored answer."""
    with callers("calm", unique, 2) as (first, second):
        first.call()
        first.wait_for("called")
        first.done("stored")
        first.wait_for("outcome")

        second.call()
        (outcome,) = second.wait_for("outcome")

        assert (outcome["value"], outcome["role"]) == ("stored", "replay")
        assert not second.all("called")


def test_an_owner_that_is_interrupted_holds_no_key(unique: str) -> None:
    """R11: an interrupted owner releases its lease; a waiter calls at once, long before a lease of 60 s is over."""
    with callers("calm", unique, 2) as (leaving, waiting):
        leaving.call()
        leaving.wait_for("called")
        waiting.call()
        leaving.interrupt_call()

        waiting.wait_for("called")
        waiting.done("mine")
        (outcome,) = waiting.wait_for("outcome")

        assert (outcome["value"], outcome["role"]) == ("mine", "owner")
