"""Flights in any store, and how they come about in it, for cases that every store must pass."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

from singleflight_app.domain.flight import Failure, Settled, StoredResult, Usage
from singleflight_app.domain.keys import FlightKey
from singleflight_app.domain.policy import StagePolicy
from singleflight_app.domain.records import FlightSnapshot, Full
from singleflight_app.domain.states import Claim, Status
from singleflight_app.engine.ports import FlightStore
from tests.compared import Queue
from tests.rows import granted_in, row_in

POLICY = StagePolicy(lease_timeout=60, heartbeat_interval=15, wait_timeout=60, pending_timeout=100)
USAGE = Usage("small-1", 100, 20, Decimal("0.000000001"))
RESULT = StoredResult(b"\x00\xff payload", "1/json/gzip", b"c" * 32, 99)


@dataclass
class Kept:
    """A store, and the means to let time pass in it."""

    store: FlightStore
    stage: str
    wait: Callable[[float], object]

    def key(self) -> FlightKey:
        """Return a key that no other test uses."""
        return FlightKey(self.stage, "test", secrets.token_bytes(32))

    def claimed(self, owner: str = "one") -> FlightSnapshot:
        """Return the row of a flight that was just claimed."""
        answer = self.store.claim(self.key(), label="", owner=owner, policy=POLICY)
        assert isinstance(answer, tuple)
        is_new, row = answer
        assert is_new
        return row

    def settled(self, end: Settled | None = None) -> FlightSnapshot:
        """Return the row of a flight that was just settled, by default as a success with a TTL of 60 s."""
        row = self.claimed()
        written = end or success(row)
        self.store.settle(
            Settled(row.flight_id, row.generation, written.status, written.result, written.failure),
            owner="one",
            ttl=60,
        )
        return self.read(row)

    def read(self, row: FlightSnapshot) -> FlightSnapshot:
        """Return the row as it is now."""
        now = self.store.read(row.flight_id)
        assert now is not None
        return now

    def grant(self, row: FlightSnapshot, claim: Claim = Claim.OWNER_NEW, owner: str = "two") -> FlightSnapshot | None:
        """Try to grant a new generation over the row as it was seen."""
        granted = self.store.grant(row, claim, owner=owner, stage=self.stage, policy=POLICY)
        assert not isinstance(granted, Full)
        return granted


@dataclass
class KeptQueue(Kept):
    """A store with background flights."""

    queue: Queue

    def submitted(self) -> FlightSnapshot:
        """Return the row of a flight that was just submitted."""
        return row_in(self.queue.submit(self.key(), label="", arguments={"x": "1"}))

    def start(
        self, row: FlightSnapshot, owner: str = "worker", policy: StagePolicy = POLICY
    ) -> FlightSnapshot | Full | None:
        """Do what a worker does when a message brings it a flight."""
        return self.store.grant(row, Claim.OWNER_NEW, owner=owner, stage=self.stage, policy=policy, starts_pending=True)

    def begun(self) -> FlightSnapshot:
        """Return the row of a flight that a worker runs."""
        return granted_in(self.start(self.submitted()))


def success(row: FlightSnapshot) -> Settled:
    return Settled(row.flight_id, row.generation, Status.SUCCEEDED, RESULT, usage=USAGE)


def failure(*, retryable: bool = False) -> Settled:
    return Settled(0, 0, Status.FAILED, failure=Failure("app.Refused", "refused", retryable))
