"""What every queue of background flights keeps, PostgreSQL's and the one in memory: its moves, and their refusals."""

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest

from singleflight_app.conf import get_settings
from singleflight_app.domain.flight import OWNER_LOST, Failure, Settled, StoredResult
from singleflight_app.domain.keys import FlightKey
from singleflight_app.domain.policy import StagePolicy
from singleflight_app.domain.records import FlightSnapshot
from singleflight_app.domain.states import Claim, Status
from singleflight_app.storage.flights import PostgresFlights
from singleflight_app.storage.memory import MemoryFlights
from singleflight_app.storage.pool import Database

# pytest-django sees no database in a fixture that is asked for at run time, and then sets none up.
pytestmark = pytest.mark.django_db

POLICY = StagePolicy(lease_timeout=60, heartbeat_interval=15, wait_timeout=60, pending_timeout=300)
ARGUMENTS = {"answer": '"a"', "n": "1"}
SHIFT = (
    b"update singleflight_flight set lease_expires_at = lease_expires_at - make_interval(secs => %(by)s), "
    b"expires_at = expires_at - make_interval(secs => %(by)s), "
    b"created_at = created_at - make_interval(secs => %(by)s), "
    b"sent_at = sent_at - make_interval(secs => %(by)s) where stage = %(stage)s returning id"
)


@dataclass
class Kept:
    """A queue, and the means to let time pass in it."""

    queue: PostgresFlights | MemoryFlights
    stage: str
    wait: Callable[[float], object]

    def key(self) -> FlightKey:
        """Return a key that no other test uses."""
        return FlightKey(self.stage, "test", secrets.token_bytes(32))

    def submitted(self, key: FlightKey | None = None) -> FlightSnapshot:
        """Return the row of a flight that was just submitted."""
        answer = self.queue.submit(key or self.key(), label="", arguments=ARGUMENTS)
        assert answer is not None
        assert answer[0]
        return answer[1]

    def begun(self, row: FlightSnapshot | None = None, owner: str = "worker") -> FlightSnapshot:
        """Return the row of a flight that a worker runs."""
        granted = self.queue.grant(
            row or self.submitted(), Claim.OWNER_NEW, owner=owner, stage=self.stage, policy=POLICY, starts_pending=True
        )
        assert isinstance(granted, FlightSnapshot)
        return granted

    def ended(self) -> FlightSnapshot:
        """Return the row of a flight that a worker ended."""
        row = self.begun()
        result = StoredResult(b"7", "1/json", b"c" * 32, 1)
        self.queue.settle(Settled(row.flight_id, row.generation, Status.SUCCEEDED, result), owner="worker", ttl=60)
        return self.read(row)

    def read(self, row: FlightSnapshot) -> FlightSnapshot:
        """Return the row as it is now."""
        now = self.queue.read(row.flight_id)
        assert now is not None
        return now


@pytest.fixture(params=["postgresql", "memory"])
def kept(request: pytest.FixtureRequest, unique: str) -> Iterator[Kept]:
    """Both queues in turn."""
    if request.param == "memory":
        passed = [0.0]
        memory = MemoryFlights(entries=1000, monotonic=lambda: passed[0])
        yield Kept(memory, unique, lambda seconds: passed.append(passed.pop() + seconds))
        return
    database = Database(get_settings())
    yield Kept(PostgresFlights(database), unique, lambda by: database.run(SHIFT, {"by": float(by), "stage": unique}))
    database.close()


def test_the_first_submit_of_a_key_is_queued_and_the_next_one_sees_the_row(kept: Kept) -> None:
    """Without an owner or a lease, and with what a worker needs."""
    key = kept.key()
    row = kept.submitted(key)

    answer = kept.queue.submit(key, label="", arguments={})

    assert answer is not None
    assert answer[0] is False
    assert answer[1][:6] == (row.flight_id, row.generation, "pending", "", 0, 0)
    assert (row.lease_remaining, row.outcome_remaining, row.has_arguments) == (None, None, True)
    assert row.pending_age is not None
    assert row.pending_age < 20
    stored = kept.queue.arguments(row.flight_id)
    assert stored is not None
    assert stored == (key.stage, key.scope, key.digest, ARGUMENTS)


def test_a_claim_of_a_queued_key_sees_the_row(kept: Kept) -> None:
    """And so does a poll."""
    key = kept.key()
    row = kept.submitted(key)

    answer = kept.queue.claim(key, label="", owner="one", policy=POLICY)
    (state,) = kept.queue.poll([row.flight_id])

    assert isinstance(answer, tuple)
    assert (answer[0], answer[1].status) == (False, "pending")
    assert (state.status, state.lease_remaining) == ("pending", None)
    assert state.pending_age is not None


def test_a_queued_flight_is_begun_by_a_worker_or_after_its_time(kept: Kept) -> None:
    """A caller that came too early is refused."""
    first, second = kept.submitted(), kept.submitted()
    facts = {"owner": "one", "stage": kept.stage, "policy": POLICY}

    assert kept.queue.grant(first, Claim.OWNER_NEW, **facts) is None  # type: ignore[arg-type]
    begun = kept.begun(first)
    kept.wait(300)
    late = kept.queue.grant(second, Claim.OWNER_NEW, **facts)  # type: ignore[arg-type]

    assert (begun.status, begun.owner, begun.attempts, begun.takeovers) == ("running", "worker", 1, 0)
    assert begun.generation > first.generation
    assert begun.has_arguments
    assert isinstance(late, FlightSnapshot)


def test_a_flight_that_ended_needs_no_arguments(kept: Kept) -> None:
    """They are erased with its end."""
    row = kept.ended()

    assert (row.status, row.has_arguments) == ("succeeded", False)
    assert kept.queue.arguments(row.flight_id) is None


def test_what_is_pending_can_not_be_forgotten_or_expired(kept: Kept) -> None:
    """There is no outcome and no lease."""
    row = kept.submitted()

    assert kept.queue.forget(flight_id=row.flight_id) is None
    assert kept.queue.expire_lease(row.flight_id, actor="mira") is None


def test_a_running_flight_is_queued_again_once_its_lease_is_over_for_the_grace(kept: Kept) -> None:
    """With the arguments that it had; the takeover is counted, and once."""
    row = kept.begun()
    kept.wait(61)

    assert kept.queue.queue(row, kind="requeued", policy=POLICY, grace=60) is None
    kept.wait(60)
    again = kept.queue.queue(row, kind="requeued", policy=POLICY, grace=60)

    assert again is not None
    assert (again.status, again.owner, again.attempts, again.takeovers) == ("pending", "", 1, 1)
    assert again.generation > row.generation
    assert again.has_arguments
    assert kept.queue.queue(row, kind="requeued", policy=POLICY, grace=60) is None
    assert kept.begun(again).takeovers == 1


def test_an_outcome_is_queued_over_when_it_is_past_or_not_fresh_enough(kept: Kept) -> None:
    """With new arguments, and nothing of the old result."""
    past, fresh = kept.ended(), kept.ended()
    kept.wait(30)
    assert kept.queue.queue(past, kind="submitted", policy=POLICY, arguments={}) is None

    again = kept.queue.queue(fresh, kind="submitted", policy=POLICY, arguments={"x": "1"}, is_fresh=True)
    kept.wait(31)
    renewed = kept.queue.queue(past, kind="submitted", policy=POLICY, arguments={})

    assert again is not None
    assert (again.status, again.payload, again.takeovers) == ("pending", None, 0)
    stored = kept.queue.arguments(again.flight_id)
    assert stored is not None
    assert stored.arguments == {"x": "1"}
    assert renewed is not None


def test_the_sweep_sees_running_flights_whose_lease_is_over_oldest_first(kept: Kept) -> None:
    """And nothing else: not the pending, not the healthy, not the ended."""
    first = kept.begun()
    kept.wait(10)
    second = kept.begun()
    kept.ended()
    kept.wait(55)
    kept.begun()
    kept.submitted()

    def seen() -> list[tuple[int, int, bool]]:
        mine = [flight for flight in kept.queue.expired(1000) if flight.stage == kept.stage]
        return [(flight.flight_id, flight.generation, flight.has_arguments) for flight in mine]

    assert seen() == [(first.flight_id, first.generation, True)]
    kept.wait(4)
    assert [flight_id for flight_id, _, _ in seen()] == [first.flight_id]
    kept.wait(2)
    assert [flight_id for flight_id, _, _ in seen()] == [first.flight_id, second.flight_id]


def test_a_message_is_sent_again_after_the_spacing(kept: Kept) -> None:
    """Once per spacing, the oldest flights first, up to the limit."""
    ids = [kept.submitted().flight_id for _ in range(3)]
    kept.begun()
    assert not set(ids) & set(kept.queue.unsent(spacing=30, limit=1000))
    kept.wait(30)

    sent = [found for found in kept.queue.unsent(spacing=30, limit=1000) if found in ids]

    assert sorted(sent) == ids
    assert not set(ids) & set(kept.queue.unsent(spacing=30, limit=1000))


def test_a_lost_flight_keeps_no_arguments(kept: Kept) -> None:
    """It is settled for good."""
    row = kept.begun()
    kept.wait(61)

    assert kept.queue.lose(row.flight_id, row.generation, ttl=10, message="gone")

    now = kept.read(row)
    assert (now.status, now.error_type, now.has_arguments) == ("failed", OWNER_LOST, False)


def test_a_lease_that_was_ended_by_hand_fences_its_owner(kept: Kept) -> None:
    """Neither a beat nor a settle of it matches any more, and the next caller takes over."""
    row = kept.begun()

    moved = kept.queue.expire_lease(row.flight_id, actor="mira")

    assert moved is not None
    assert (moved.flight_id, moved.generation, moved.stage) == (row.flight_id, row.generation, kept.stage)
    failed = Settled(row.flight_id, row.generation, Status.FAILED, failure=Failure("a.B", "", retryable=False))
    assert kept.queue.settle(failed, owner="worker", ttl=10) is None
    granted = kept.queue.grant(
        kept.read(row), Claim.OWNER_TAKEOVER, owner="two", stage=kept.stage, policy=replace(POLICY)
    )
    assert isinstance(granted, FlightSnapshot)
    assert (granted.takeovers, granted.attempts) == (1, 2)
