"""The table of claims: for each row a caller can see, what it may do (docs/protocol.md)."""

from decimal import Decimal
from typing import Any

import pytest

from singleflight_app.domain.decision import Asking, decide
from singleflight_app.domain.policy import StagePolicy
from singleflight_app.domain.records import FlightSnapshot
from singleflight_app.domain.states import Claim, Status

POLICY = StagePolicy(lease_timeout=30, pending_timeout=300, max_takeovers=3)
ROW = FlightSnapshot(
    flight_id=1,
    generation=7,
    status="running",
    owner="another",
    attempts=1,
    takeovers=0,
    lease_remaining=None,
    outcome_remaining=None,
    retry_remaining=None,
    pending_age=None,
    server_age=3600.0,
    forgotten=False,
    payload=None,
    encoding="",
    checksum=None,
    size=None,
    error_type="",
    error_message="",
    retryable=False,
    model="",
    input_tokens=0,
    output_tokens=0,
    cost=Decimal(0),
    has_arguments=False,
)
RUNNING = {"status": "running", "lease_remaining": 10.0}
EXPIRED = {"status": "running", "lease_remaining": -0.001}
SUCCEEDED = {"status": "succeeded", "outcome_remaining": 10.0}
FAILED = {"status": "failed", "outcome_remaining": 10.0}
RETRYABLE = {**FAILED, "retryable": True}


def claim(row: dict[str, Any], **asking: Any) -> Claim:  # noqa: ANN401  (columns, and what a caller brings)
    return decide(ROW._replace(**row), Asking(**{"policy": POLICY, "owner": "me", **asking}))


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (RUNNING, Claim.FOLLOWER_WAIT),
        ({**RUNNING, "forgotten": True}, Claim.WAIT_OUT),
        (EXPIRED, Claim.OWNER_TAKEOVER),
        ({**EXPIRED, "lease_remaining": 0.0}, Claim.OWNER_TAKEOVER),
        ({**EXPIRED, "takeovers": 2}, Claim.OWNER_TAKEOVER),
        ({**EXPIRED, "takeovers": 3}, Claim.OWNER_LOST),
        ({**EXPIRED, "forgotten": True}, Claim.OWNER_TAKEOVER),
        ({"status": "pending", "pending_age": 299.0}, Claim.FOLLOWER_WAIT),
        ({"status": "pending", "pending_age": 300.0}, Claim.OWNER_NEW),
        (SUCCEEDED, Claim.REPLAY_SUCCESS),
        ({**SUCCEEDED, "outcome_remaining": 0.0}, Claim.OWNER_NEW),
        ({**SUCCEEDED, "outcome_remaining": -5.0}, Claim.OWNER_NEW),
        ({**SUCCEEDED, "forgotten": True}, Claim.OWNER_NEW),
        (FAILED, Claim.REPLAY_FAILURE),
        ({**FAILED, "status": "timed_out"}, Claim.REPLAY_FAILURE),
        ({**FAILED, "outcome_remaining": 0.0}, Claim.OWNER_NEW),
        ({**FAILED, "forgotten": True}, Claim.OWNER_NEW),
        ({**RETRYABLE, "retry_remaining": 5.0}, Claim.REPLAY_FAILURE),
        ({**RETRYABLE, "retry_remaining": 0.0}, Claim.OWNER_RETRY),
        ({**RETRYABLE, "status": "timed_out", "retry_remaining": -1.0}, Claim.OWNER_RETRY),
        ({"status": "cancelled", "outcome_remaining": 10.0}, Claim.OWNER_NEW),
        ({"status": "cancelled", "outcome_remaining": -10.0}, Claim.OWNER_NEW),
    ],
)
def test_a_row_admits_one_claim(row: dict[str, Any], expected: Claim) -> None:
    """Each line of the table."""
    assert claim(row) is expected


def test_a_lease_of_ones_own_that_one_does_not_run_is_a_lost_reply() -> None:
    """R6: the grant committed, its reply never came; it is adopted."""
    mine = {**RUNNING, "owner": "me"}

    assert claim(mine) is Claim.ORPHAN_GRANT
    assert claim(mine, running={6, 8}) is Claim.ORPHAN_GRANT
    assert claim(mine, running={7}) is Claim.FOLLOWER_WAIT


@pytest.mark.parametrize("reason", ["an outage of this process", "a young server", "a stage that forbids it"])
def test_when_an_expired_lease_is_not_taken_over(reason: str) -> None:
    """R18: after an outage everybody's lease looks expired, so healthy owners get one lease to speak."""
    if reason == "an outage of this process":
        assert claim(EXPIRED, may_take_over=False) is Claim.FOLLOWER_WAIT
    elif reason == "a young server":
        assert claim({**EXPIRED, "server_age": 29.9}) is Claim.FOLLOWER_WAIT
        assert claim({**EXPIRED, "server_age": 30.0}) is Claim.OWNER_TAKEOVER
    else:
        assert claim(EXPIRED, policy=StagePolicy(takeover=False)) is Claim.OWNER_LOST


def test_no_takeover_at_all_is_a_policy() -> None:
    """A call that must never be made twice stops at its first dead owner."""
    assert claim(EXPIRED, policy=StagePolicy(max_takeovers=0)) is Claim.OWNER_LOST


def test_a_worker_starts_the_pending_flight_that_it_came_for() -> None:
    """And nothing else: a live lease is still another's."""
    assert claim({"status": "pending", "pending_age": 0.0}, starts_pending=True) is Claim.OWNER_NEW
    assert claim(RUNNING, starts_pending=True) is Claim.FOLLOWER_WAIT


def test_who_waited_for_what_was_cancelled_by_hand_begins_nothing() -> None:
    """R8: nor does the worker that came for it. R11: what its owner released is taken at once."""
    cancelled = {"status": "cancelled", "outcome_remaining": 10.0}
    released = {**cancelled, "retryable": True}

    assert claim(cancelled, followed=7) is Claim.REPLAY_FAILURE
    assert claim(cancelled, followed=6) is Claim.OWNER_NEW
    assert claim(released, followed=7) is Claim.OWNER_NEW
    assert claim({**cancelled, "forgotten": True}, followed=7) is Claim.OWNER_NEW
    assert claim(cancelled, followed=7, above=7) is Claim.OWNER_NEW
    assert claim(cancelled, starts_pending=True) is Claim.REPLAY_FAILURE
    assert claim(released, starts_pending=True) is Claim.REPLAY_FAILURE


@pytest.mark.parametrize("status", list(Status))
def test_no_row_lets_two_callers_call_while_a_lease_lives(status: Status) -> None:
    """P1: only what is settled, pending or expired can be granted."""
    found = claim({"status": status.value, "lease_remaining": 1.0, "outcome_remaining": 1.0, "pending_age": 1.0})

    assert found not in {Claim.OWNER_NEW, Claim.OWNER_RETRY, Claim.OWNER_TAKEOVER} or status is Status.CANCELLED
