"""What a caller may do about the row it sees: one pure function, the table of docs/protocol.md.

The store's statements check again what was decided here, so a decision over a stale snapshot costs a
round trip and never a second call.
"""

from collections.abc import Collection
from dataclasses import dataclass

from singleflight_app.domain.exceptions import seconds
from singleflight_app.domain.policy import StagePolicy
from singleflight_app.domain.records import FlightSnapshot
from singleflight_app.domain.states import Claim, Status


@dataclass(frozen=True, slots=True)
class Asking:
    """What a caller brings to the decision.

    `owner` is this process, `running` the generations that it runs or is settling. `may_take_over` is
    False for one lease after an outage (rule R18). `starts_pending`: a worker came for this very flight.
    """

    policy: StagePolicy
    owner: str
    running: Collection[int] = frozenset()
    may_take_over: bool = True
    starts_pending: bool = False
    #: The generation that the caller has waited for.
    followed: int | None = None
    #: Of a `fresh` caller: the generation that was there when it asked; only a higher one is an answer.
    above: int | None = None


def decide(row: FlightSnapshot, asking: Asking) -> Claim:
    """Return the claim that `row` admits for this caller."""
    status = Status(row.status)
    if status is Status.RUNNING:
        return _about_running(row, asking)
    if status is Status.PENDING:
        return _about_pending(row, asking)
    if status is Status.CANCELLED and _is_meant_by_the_cancel(row, asking):
        return Claim.REPLAY_FAILURE
    if status is Status.CANCELLED or is_no_answer(row, asking.above) or _is_past(row.outcome_remaining):
        return Claim.OWNER_NEW
    if status is Status.SUCCEEDED:
        return Claim.REPLAY_SUCCESS
    if row.retryable and _is_past(row.retry_remaining):
        return Claim.OWNER_RETRY
    return Claim.REPLAY_FAILURE


def _is_meant_by_the_cancel(row: FlightSnapshot, asking: Asking) -> bool:
    """The caller waited for what was cancelled by hand, or is the worker that came to run it; others start anew."""
    has_waited = row.generation == asking.followed and not row.retryable and not is_no_answer(row, asking.above)
    return asking.starts_pending or has_waited


def _about_running(row: FlightSnapshot, asking: Asking) -> Claim:
    if not _is_past(row.lease_remaining):
        if row.owner == asking.owner and row.generation not in asking.running:
            return Claim.ORPHAN_GRANT
        return Claim.WAIT_OUT if is_no_answer(row, asking.above) else Claim.FOLLOWER_WAIT
    if not asking.may_take_over or row.server_age < asking.policy.lease:
        return Claim.FOLLOWER_WAIT
    if not asking.policy.takeover or row.takeovers >= asking.policy.max_takeovers:
        return Claim.OWNER_LOST
    return Claim.OWNER_TAKEOVER


def _about_pending(row: FlightSnapshot, asking: Asking) -> Claim:
    timed_out = row.pending_age is not None and row.pending_age >= seconds(asking.policy.pending_timeout)
    if asking.starts_pending or timed_out:
        return Claim.OWNER_NEW
    return Claim.FOLLOWER_WAIT  # a fresh caller as well: its call has not begun, and gets a generation above


def is_no_answer(row: FlightSnapshot, above: int | None) -> bool:
    """Tell whether what this generation came or comes to answers nobody who asks now, or no fresh caller of `above`."""
    return row.forgotten or (above is not None and row.generation <= above)


def _is_past(remaining: float | None) -> bool:
    return remaining is None or remaining <= 0
