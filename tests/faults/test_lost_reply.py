"""Statements that were committed and whose reply never came (rule R6)."""

import pytest

from tests.callers import callers, events_of
from tests.proxy import proxy

pytestmark = pytest.mark.django_db


def test_a_claim_whose_reply_was_lost_is_adopted(unique: str) -> None:
    """R6, orphan grant: the process finds its own lease in the row and makes the call, once."""
    with proxy() as cut, callers("calm", unique, 1, TEST_DATABASE_HOST=cut.folder) as (caller,):
        caller.warm_up()
        cut.lose_next_reply()

        caller.call()
        (called,) = caller.wait_for("called")
        caller.done("mine")
        (outcome,) = caller.wait_for("outcome")

        assert cut.lost_replies == 1
        assert (outcome["value"], outcome["role"], outcome["degraded"]) == ("mine", "owner", False)
        assert outcome["generation"] == called["generation"]
        assert events_of("calm", called["generation"]) == ["granted", "settled"]


def test_a_settle_whose_reply_was_lost_is_not_taken_for_a_refusal(unique: str) -> None:
    """R6: the row has this generation with the status that was written, so the end is stored."""
    with proxy() as cut, callers("calm", unique, 2, TEST_DATABASE_HOST=cut.folder) as (caller, later):
        caller.call()
        (called,) = caller.wait_for("called")
        cut.lose_next_reply()

        caller.done("stored once")
        (outcome,) = caller.wait_for("outcome")
        later.call()
        (replayed,) = later.wait_for("outcome")

        assert cut.lost_replies == 1
        assert (outcome["value"], outcome["role"], outcome["superseded"]) == ("stored once", "owner", False)
        assert (replayed["value"], replayed["generation"]) == ("stored once", called["generation"])
        assert events_of("calm", called["generation"]) == ["granted", "settled"]
