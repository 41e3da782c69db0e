"""Owners that die: somebody waiting takes over, and a request that kills its owners is stopped (P4)."""

import pytest

from tests.callers import callers, events_of
from tests.waiting import until

pytestmark = pytest.mark.django_db


def test_one_of_many_followers_takes_over_from_a_killed_owner(unique: str) -> None:
    """C11: SIGKILL under fifty-two followers in four processes; one call more, and all get that answer."""
    with callers("fast", unique, 1) as (owner,), callers("fast", unique, 4, threads=13) as four:
        owner.call()
        (called,) = owner.wait_for("called")
        for caller in four:
            caller.call()

        owner.kill()
        heir = until(lambda: next((c for c in four if c.all("called")), None), "a takeover")
        assert heir is not None
        heir.done("second answer")
        outcomes = [fact for caller in four for fact in caller.wait_for("outcome", 13)]

        assert sum(len(caller.all("called")) for caller in four) == 1
        assert {fact["value"] for fact in outcomes} == {"second answer"}
        (generation,) = {fact["generation"] for fact in outcomes}
        assert generation > called["generation"]
        assert events_of("fast", generation) == ["taken_over", "settled"]


def test_a_request_that_kills_its_owners_stops(unique: str) -> None:
    """C15: after `max_takeovers` (here 1) the flight is settled as lost, and that failure is replayed."""
    with callers("fast-twice", unique, 3) as (first, second, third):
        first.call()
        first.wait_for("called")
        first.kill()
        second.call()
        second.wait_for("called")
        second.kill()

        third.call()
        (error,) = third.wait_for("error")

        assert error["type"] == "OwnerLost"
        assert "no further takeover is allowed" in error["message"]
        assert not third.all("called")
