"""Machines whose clocks are an hour wrong: leases and TTLs are the database's to judge (C18, R1)."""

import time
from contextlib import ExitStack

import pytest
from django.db import connection

from tests.callers import Caller, callers
from tests.waiting import until

pytestmark = pytest.mark.django_db

HOUR = 3600.0


def _has_beaten_past_its_lease(owner: str) -> bool:
    """Tell whether the one flight of an owner was kept by beats for longer than its lease of 1.5 s."""
    with connection.cursor() as cursor:
        kept = "select heartbeat_at > started_at + interval '2 s' from singleflight_flight where owner = %s"
        cursor.execute(kept, [owner])
        return bool(cursor.fetchall() == [(True,)])


def test_a_clock_that_is_wrong_neither_ends_nor_extends_anything(unique: str) -> None:
    """An hour fast or slow, as owner, follower or later caller: nobody takes over, nobody calls again."""
    with ExitStack() as stack:
        (fast,) = stack.enter_context(callers("fast", unique, 1, TEST_CLOCK=str(HOUR)))
        (slow,) = stack.enter_context(callers("fast", unique, 1, TEST_CLOCK=str(-HOUR)))
        (other_fast,) = stack.enter_context(callers("fast", f"{unique}-2", 1, TEST_CLOCK=str(HOUR)))
        (other_slow,) = stack.enter_context(callers("fast", f"{unique}-2", 1, TEST_CLOCK=str(-HOUR)))
        (late_fast,) = stack.enter_context(callers("fast", f"{unique}-2", 1, TEST_CLOCK=str(HOUR)))
        (late_slow,) = stack.enter_context(callers("fast", unique, 1, TEST_CLOCK=str(-HOUR)))
        assert fast.all("ready")[0]["now"] > time.time() + HOUR / 2
        assert slow.all("ready")[0]["now"] < time.time() - HOUR / 2
        for owner, follower in ((fast, slow), (other_slow, other_fast)):
            owner.call()
            owner.wait_for("called")
            follower.call()

        for owner in (fast, other_slow):
            name = owner.all("ready")[0]["owner"]
            until(lambda: _has_beaten_past_its_lease(name), "beats")  # noqa: B023  (called at once)
            owner.done("answer")

        for later in (late_fast, late_slow):
            later.call()
        ones = [_outcome(caller) for caller in (fast, slow, late_slow)]
        twos = [_outcome(caller) for caller in (other_slow, other_fast, late_fast)]
        assert [role for role, _, _ in ones] == [role for role, _, _ in twos] == ["owner", "follower", "replay"]
        assert {value for _, value, _ in (*ones, *twos)} == {"answer"}
        assert len({generation for _, _, generation in ones}) == len({generation for _, _, generation in twos}) == 1


def test_a_dead_owners_lease_ends_for_whoever_thinks_it_earlier(unique: str) -> None:
    """An owner an hour fast dies, and a follower an hour slow takes over once the database says so."""
    with ExitStack() as stack:
        (fast,) = stack.enter_context(callers("fast", unique, 1, TEST_CLOCK=str(HOUR)))
        (slow,) = stack.enter_context(callers("fast", unique, 1, TEST_CLOCK=str(-HOUR)))
        fast.call()
        fast.wait_for("called")
        slow.call()

        fast.kill()

        slow.wait_for("called")
        slow.done("taken over")
        assert _outcome(slow)[:2] == ("owner", "taken over")


def _outcome(caller: Caller) -> tuple[str, str, int]:
    (fact,) = caller.wait_for("outcome")
    return fact["role"], fact["value"], fact["generation"]
