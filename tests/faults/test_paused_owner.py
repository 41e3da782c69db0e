"""Owners that were paused past their lease: their late end is refused (P3)."""

import pytest

from tests.callers import callers, events_of

pytestmark = pytest.mark.django_db


def test_a_paused_owner_gets_the_newer_answer(unique: str) -> None:
    """C12: SIGSTOP past the lease; the late result is refused, and its own caller gets the answer of the heir."""
    with callers("fast", unique, 2) as (paused, heir):
        paused.call()
        (late,) = paused.wait_for("called")
        paused.pause()
        heir.call()
        (newer,) = heir.wait_for("called")
        heir.done("newer")
        heir.wait_for("outcome")

        paused.resume()
        paused.done("late")
        (outcome,) = paused.wait_for("outcome")

        assert outcome["value"] == "newer"
        assert (outcome["role"], outcome["generation"]) == ("follower", newer["generation"])
        assert events_of("fast", late["generation"]) == ["granted", "fenced"]


def test_a_paused_owner_waits_for_the_heir_that_still_runs(unique: str) -> None:
    """R3: the fenced owner follows the newer generation to its end, and does not take it over."""
    with callers("fast", unique, 2) as (paused, heir):
        paused.call()
        paused.wait_for("called")
        paused.pause()
        heir.call()
        heir.wait_for("called")

        paused.resume()
        paused.done("late")
        paused.wait_for("returning")
        heir.done("newer")
        (outcome,) = paused.wait_for("outcome")

        assert outcome["value"] == "newer"
        assert len(paused.all("called")) == 1


def test_a_late_owner_whom_nobody_replaced_settles(unique: str) -> None:
    """C13: the lease is over, but nobody took the flight; its result stands."""
    with callers("fast", unique, 2) as (paused, later):
        paused.call()
        (called,) = paused.wait_for("called")
        paused.pause_past_lease()

        paused.resume()
        paused.done("late but first")
        (outcome,) = paused.wait_for("outcome")
        later.call()
        (replayed,) = later.wait_for("outcome")

        assert (outcome["role"], outcome["superseded"]) == ("owner", False)
        assert (replayed["value"], replayed["generation"]) == ("late but first", called["generation"])
