"""The states of a flight, the claims a caller can make on it, and who it was in the end.

A state says who enters it and what a crash in it means. The values are stored, sent and
exported as metric labels, so they never change.
"""

from enum import StrEnum


class Status(StrEnum):
    """Where a flight is; the `status` column."""

    PENDING = "pending"  #: `submit()` or the sweep put it here; no owner yet. A crash changes nothing.
    RUNNING = "running"  #: an owner holds the lease, or died holding it
    SUCCEEDED = "succeeded"  #: the owner settled with a result
    FAILED = "failed"  #: the owner settled with an error, or the sweep gave up on dead owners
    TIMED_OUT = "timed_out"  #: the call outlived `execution_timeout`; its owner settled it
    CANCELLED = "cancelled"  #: an operator or a leaving process ended it; the next caller starts anew

    @property
    def is_settled(self) -> bool:
        """The flight has ended: it has an expiry and no lease."""
        return self not in LIVE

    @property
    def is_failure(self) -> bool:
        """The flight ended with an error that is replayed while it lasts."""
        return self in {Status.FAILED, Status.TIMED_OUT}


LIVE = frozenset({Status.PENDING, Status.RUNNING})


class Claim(StrEnum):
    """What a caller may do about a row, as `decision.decide` reads it."""

    OWNER_NEW = "owner_new"  #: no usable outcome: grant a new generation
    OWNER_TAKEOVER = "owner_takeover"  #: the owner's lease is over: grant and count a duplicate
    OWNER_RETRY = "owner_retry"  #: a retryable failure is due again
    ORPHAN_GRANT = "orphan_grant"  #: the lease is this process's own; the reply of its grant was lost
    FOLLOWER_WAIT = "follower_wait"  #: somebody runs it: wait for the end
    WAIT_OUT = "wait_out"  #: somebody runs it, but its end is no answer: claim again after it
    REPLAY_SUCCESS = "replay_success"  #: a stored result answers
    REPLAY_FAILURE = "replay_failure"  #: a stored failure answers
    OWNER_LOST = "owner_lost"  #: dead owners used up `max_takeovers`: settle as lost, then replay that


class Role(StrEnum):
    """What a caller turned out to be; a label of the metrics."""

    OWNER = "owner"  #: it made the call
    FOLLOWER = "follower"  #: it waited for the owner's outcome
    REPLAY = "replay"  #: a stored outcome answered


class Layer(StrEnum):
    """Where a caller's answer came from, nearest first."""

    CALL = "call"  #: the function ran for it
    PROCESS = "process"  #: shared with another caller of this process
    MEMORY = "memory"  #: this process's replay memory
    REDIS = "redis"  #: the replay cache
    DATABASE = "database"  #: the flight's row
