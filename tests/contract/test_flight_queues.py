"""What every store of background flights keeps: the row is the queue, and a message only tells to look at it.

Beside what test_flight_stores.py says of all flights.
"""

from dataclasses import replace

import pytest

from singleflight_app.domain.flight import BY_HAND, OWNER_LOST, Failure, Settled
from singleflight_app.domain.records import Beat, Full
from singleflight_app.domain.states import Claim, Status
from tests.held import at_once, results
from tests.kept import POLICY, KeptQueue, success
from tests.rows import granted_in, row_in

#: pytest-django makes no database for a fixture that is asked for at run time.
pytestmark = pytest.mark.django_db


def test_the_first_submission_of_a_key_is_pending_and_the_next_one_sees_the_row(queued: KeptQueue) -> None:
    """P1: one flight, with the arguments that came first; it has no owner and no lease."""
    key = queued.key()

    first = queued.queue.submit(key, label="app.score", arguments={"x": "1"})
    second = queued.queue.submit(key, label="app.score", arguments={"x": "2"})

    row = row_in(first)
    assert (first, second) == ((True, row), (False, row_in(second)))
    assert (row_in(second).flight_id, row_in(second).generation) == (row.flight_id, row.generation)
    assert (row.status, row.owner, row.attempts, row.lease_remaining) == ("pending", "", 0, None)
    assert row.has_arguments
    stored = queued.queue.arguments(row.flight_id)
    assert stored is not None
    assert stored.arguments == {"x": "1"}


def test_of_submissions_that_race_one_makes_the_flight(queued: KeptQueue) -> None:
    """P1: the losers see the row, or None, which means to ask again."""
    key = queued.key()

    answers = results(at_once(8, queued.queue.submit, key, label="", arguments={}))

    assert sum(answer is not None and answer[0] for answer in answers) == 1


@pytest.mark.parametrize("state", ["running", "settled"])
def test_a_submission_leaves_a_flight_that_there_is_alone(queued: KeptQueue, state: str) -> None:
    """It joins or replays like any caller."""
    key = queued.key()
    row = row_in(queued.store.claim(key, label="", owner="one", policy=POLICY))
    if state == "settled":
        queued.store.settle(success(row), owner="one", ttl=60)

    seen = queued.queue.submit(key, label="", arguments={"x": "1"})

    assert seen is not None
    assert (seen[0], seen[1].generation, seen[1].is_settled) == (False, row.generation, state == "settled")
    assert queued.queue.arguments(row.flight_id) is None


def test_a_worker_starts_a_pending_flight_at_once_and_whoever_waits_when_none_comes(queued: KeptQueue) -> None:
    """R8: past `pending_timeout` any caller may; no takeover is counted, as nobody had begun."""
    by_a_worker, by_a_caller = queued.submitted(), queued.submitted()

    refused = queued.grant(by_a_caller)
    started = granted_in(queued.start(by_a_worker))
    queued.wait(101)
    run = granted_in(queued.grant(by_a_caller))

    assert refused is None
    for row, pending in ((started, by_a_worker), (run, by_a_caller)):
        assert (row.status, row.attempts, row.takeovers, row.pending_age) == ("running", 1, 0, None)
        assert row.generation > pending.generation


def test_a_pending_flight_tells_its_age(queued: KeptQueue) -> None:
    """To a claim, to the poll and to who looks; a claim leaves it pending."""
    key = queued.key()
    row = row_in(queued.queue.submit(key, label="", arguments={}))
    queued.wait(50)

    claimed = queued.store.claim(key, label="", owner="one", policy=POLICY)
    (state,) = queued.store.poll([row.flight_id])

    assert isinstance(claimed, tuple)
    assert not claimed[0]
    for seen in (claimed[1], state, queued.read(row)):
        assert (seen.status, seen.generation, seen.lease_remaining) == ("pending", row.generation, None)
        assert seen.pending_age is not None
        assert 50 <= seen.pending_age < 60


def test_a_message_that_comes_twice_starts_one_call(queued: KeptQueue) -> None:
    """C27: of workers that race for a flight one gets it, and who comes later sees that it moved."""
    row = queued.submitted()

    started = [granted for granted in results(at_once(6, queued.start, row)) if granted is not None]

    assert len(started) == 1
    assert queued.start(row) is None


def test_arguments_are_there_as_long_as_a_worker_may_need_them(queued: KeptQueue) -> None:
    """Stage, scope, key and text as submitted, through the first worker's death, and gone with the end."""
    key, text = queued.key(), {"answer": '"\\u0000 \u4f60"', "n": "9007199254740993"}
    pending = row_in(queued.queue.submit(key, label="", arguments=text))
    run = granted_in(queued.start(pending))

    stored = queued.queue.arguments(run.flight_id)
    queued.store.settle(success(run), owner="worker", ttl=60)

    assert stored == (queued.stage, "test", key.digest, text)
    assert queued.queue.arguments(run.flight_id) is None
    assert not queued.read(run).has_arguments


def test_what_was_never_submitted_has_no_arguments(queued: KeptQueue) -> None:
    """A call of a foreground caller; a flight that is gone."""
    assert queued.queue.arguments(queued.claimed().flight_id) is None
    assert queued.queue.arguments(2**40) is None


def test_the_flight_of_a_dead_worker_is_queued_again_after_the_grace(queued: KeptQueue) -> None:
    """C11, R18: with its arguments, the takeover counted, and the late worker fenced."""
    run = queued.begun()
    alive = queued.queue.queue(run, kind="requeued", policy=POLICY)
    queued.wait(61)
    in_grace = queued.queue.queue(run, kind="requeued", policy=POLICY, grace=60)

    pending = queued.queue.queue(run, kind="requeued", policy=POLICY)

    assert (alive, in_grace) == (None, None)
    assert pending is not None
    assert pending.generation > run.generation
    assert (pending.status, pending.owner, pending.takeovers, pending.has_arguments) == ("pending", "", 1, True)
    assert pending.lease_remaining is None
    assert queued.store.settle(success(run), owner="worker", ttl=60) is None
    assert queued.store.renew([Beat(run.flight_id, run.generation, 60)], owner="worker") == set()
    again = granted_in(queued.start(pending, "another"))
    assert (again.takeovers, again.owner) == (1, "another")


def test_of_sweeps_that_meet_one_queues_the_flight(queued: KeptQueue) -> None:
    """C21: and a later one sees that it moved."""
    run = queued.begun()
    queued.wait(61)

    answers = results(at_once(6, queued.queue.queue, run, kind="requeued", policy=POLICY))

    assert sum(answer is not None for answer in answers) == 1
    assert queued.queue.queue(run, kind="requeued", policy=POLICY) is None


def test_an_outcome_is_queued_over_when_it_is_past_or_for_a_fresh_submitter(queued: KeptQueue) -> None:
    """P2: the new flight has the new arguments, and nothing of the old one."""
    in_its_ttl, past, fresh = queued.settled(), queued.settled(), queued.settled()
    refused = queued.queue.queue(in_its_ttl, kind="submitted", policy=POLICY, arguments={"x": "2"})
    early = queued.queue.queue(fresh, kind="submitted", policy=POLICY, arguments={"x": "2"}, is_fresh=True)
    queued.wait(61)

    late = queued.queue.queue(past, kind="submitted", policy=POLICY, arguments={"x": "2"})

    assert refused is None
    for row, old in ((early, fresh), (late, past)):
        assert row is not None
        assert row.generation > old.generation
        assert (row.flight_id, row.status, row.payload, row.takeovers) == (old.flight_id, "pending", None, 0)
        assert (row.outcome_remaining, row.forgotten) == (None, False)
        stored = queued.queue.arguments(row.flight_id)
        assert stored is not None
        assert stored.arguments == {"x": "2"}


def test_a_flight_is_queued_over_the_generation_that_was_seen(queued: KeptQueue) -> None:
    """P3: a decision made a generation ago is refused, although the row is open again."""
    seen = queued.settled()
    queued.wait(61)
    newer = granted_in(queued.grant(seen))
    queued.store.settle(success(newer), owner="two", ttl=60)
    queued.wait(61)

    assert queued.queue.queue(seen, kind="submitted", policy=POLICY, arguments={}) is None


def test_the_sweep_sees_running_flights_whose_lease_is_over_the_oldest_first(queued: KeptQueue) -> None:
    """C21: no more of them than it asked for, and what it needs to decide."""
    oldest = queued.begun()
    queued.wait(30)
    older = queued.claimed()
    queued.submitted()
    queued.settled()
    queued.wait(61)
    alive = queued.claimed()

    seen = queued.queue.expired(100)

    assert [row.flight_id for row in seen] == [oldest.flight_id, older.flight_id]
    assert alive.flight_id not in {row.flight_id for row in seen}
    first, second = seen
    assert (first.stage, first.generation, first.takeovers) == (queued.stage, oldest.generation, 0)
    assert (first.has_arguments, second.has_arguments) == (True, False)
    assert 31 <= first.expired_for < 40
    assert 1 <= second.expired_for < 10
    assert [row.flight_id for row in queued.queue.expired(1)] == [oldest.flight_id]


def test_a_message_is_sent_again_after_the_spacing(queued: KeptQueue) -> None:
    """C27: for pending flights alone, the first submitted first, and then not before its time has come once more."""
    first, second = queued.submitted(), queued.submitted()
    queued.begun()
    early = queued.queue.unsent(spacing=30, limit=100)
    queued.wait(31)

    limited = queued.queue.unsent(spacing=30, limit=1)
    rest = queued.queue.unsent(spacing=30, limit=100)
    none = queued.queue.unsent(spacing=30, limit=100)
    queued.wait(31)
    again = queued.queue.unsent(spacing=30, limit=100)

    assert (early, limited, rest, none) == ([], [first.flight_id], [second.flight_id], [])
    assert sorted(again) == [first.flight_id, second.flight_id]


def test_a_flight_that_is_queued_again_counts_as_just_sent(queued: KeptQueue) -> None:
    """Who queues it sends its message."""
    run = queued.begun()
    queued.wait(61)
    queued.queue.queue(run, kind="requeued", policy=POLICY)

    assert queued.queue.unsent(spacing=30, limit=100) == []


def test_of_sweeps_that_meet_one_sends_a_message_again(queued: KeptQueue) -> None:
    """A second message would harm nothing, but ten sweeps must not send ten."""
    rows = [queued.submitted() for _ in range(5)]
    queued.wait(31)

    sent = results(at_once(4, queued.queue.unsent, spacing=30, limit=100))

    assert sorted(sum(sent, [])) == sorted(row.flight_id for row in rows)  # noqa: RUF017 (four short lists)


def test_a_flight_that_kills_its_workers_is_lost(queued: KeptQueue) -> None:
    """C15: its arguments go, it is in no queue any more, and it is replayed as a failure."""
    run = queued.begun()
    queued.wait(61)

    lost = queued.queue.lose(run.flight_id, run.generation, ttl=60, message="died")

    now = queued.read(run)
    assert lost
    assert now.settled().failure == Failure(OWNER_LOST, "died", retryable=False)
    assert queued.queue.arguments(run.flight_id) is None
    assert queued.queue.expired(100) == []
    assert queued.start(now) is None


def test_a_pending_flight_has_no_owner_to_lose_and_no_outcome_to_forget(queued: KeptQueue) -> None:
    """Whoever asks anew gets its call, which has not begun."""
    row = queued.submitted()
    queued.wait(1000)

    assert not queued.queue.lose(row.flight_id, row.generation, ttl=60, message="died")
    assert queued.store.forget(flight_id=row.flight_id) is None
    assert queued.queue.expire_lease(row.flight_id, row.generation, actor="test") is None
    assert queued.read(row).status == "pending"


def test_a_pending_flight_takes_no_room(queued: KeptQueue) -> None:
    """`max_concurrency` counts running calls; a worker for which there is no room is told so."""
    one_call = replace(POLICY, max_concurrency=1)
    first, second = queued.submitted(), queued.submitted()
    started, refused = (queued.start(row, policy=one_call) for row in (first, second))

    assert granted_in(started).generation > first.generation
    assert isinstance(refused, Full)
    assert queued.read(second).status == "pending"


def test_a_lease_that_is_ended_by_hand_fences_its_owner_at_once(queued: KeptQueue) -> None:
    """R16: it is told which flight; anyone may take it over; there is nothing to end twice once it is settled."""
    row, settled = queued.claimed(), queued.settled()

    ended = queued.queue.expire_lease(row.flight_id, row.generation, actor="mira")
    again = queued.queue.expire_lease(row.flight_id, row.generation, actor="mira")

    assert ended is not None
    assert (ended.flight_id, ended.generation, ended.stage, ended.already) == (*row[:2], queued.stage, False)
    assert again == ended._replace(already=True)
    assert queued.store.settle(success(row), owner="one", ttl=60) is None
    assert queued.store.renew([Beat(row.flight_id, row.generation, 60)], owner="one") == set()
    assert granted_in(queued.grant(row, Claim.OWNER_TAKEOVER)).takeovers == 1
    assert queued.queue.expire_lease(row.flight_id, row.generation, actor="mira") is None
    assert queued.queue.expire_lease(settled.flight_id, settled.generation, actor="mira") is None
    assert queued.queue.expire_lease(2**40, 1, actor="mira") is None


@pytest.mark.parametrize("state", ["pending", "running"])
def test_a_flight_that_is_cancelled_has_ended_for_everybody(queued: KeptQueue, state: str) -> None:
    """R8, R16: fenced, out of the queue, not retryable; told twice where it is done twice; anyone may begin anew."""
    row = queued.submitted() if state == "pending" else queued.begun()

    first, second = (queued.queue.cancel(row.flight_id, row.generation, actor="mira", ttl=60) for _ in range(2))

    now = queued.read(row)
    assert first is not None
    assert second is not None
    assert (first.flight_id, first.generation, first.stage, first.already, second.already) == (
        *row[:2],
        queued.stage,
        False,
        True,
    )
    assert (now.status, now.lease_remaining, now.settled().failure) == ("cancelled", None, BY_HAND)
    assert queued.queue.arguments(row.flight_id) is None
    assert queued.store.settle(success(row), owner="two", ttl=60) is None
    assert queued.store.renew([Beat(row.flight_id, row.generation, 60)], owner="two") == set()
    assert queued.start(row) is None
    assert granted_in(queued.grant(now)).generation > row.generation


def test_only_a_live_flight_of_that_generation_is_cancelled(queued: KeptQueue) -> None:
    """Nor one that its owner released: a waiter takes that."""
    settled, running = queued.settled(), queued.claimed()
    left = Failure("singleflight_app.FlightCancelled", "left", retryable=True)
    released = queued.settled(Settled(0, 0, Status.CANCELLED, failure=left))

    for row in (
        settled,
        released,
        running._replace(generation=running.generation - 1),
        running._replace(flight_id=2**40),
    ):
        assert queued.queue.cancel(row.flight_id, row.generation, actor="mira", ttl=60) is None

    assert queued.read(running).status == "running"
    assert queued.read(released).retryable


def test_a_failure_may_be_retried_by_hand(queued: KeptQueue) -> None:
    """In its TTL, and not twice; a success never."""
    refused = Failure("app.Refused", "refused", retryable=False)
    failed, ended = queued.settled(Settled(0, 0, Status.FAILED, failure=refused)), queued.settled()

    first, second = (queued.queue.allow_retry(failed.flight_id, failed.generation, actor="mira") for _ in range(2))

    now = queued.read(failed)
    assert first is not None
    assert second is not None
    assert (first.already, second.already, now.retryable) == (False, True, True)
    assert granted_in(queued.grant(now, Claim.OWNER_RETRY)).attempts == failed.attempts + 1
    assert queued.queue.allow_retry(failed.flight_id, failed.generation, actor="mira") is None
    assert queued.queue.allow_retry(ended.flight_id, ended.generation, actor="mira") is None


def test_a_failure_that_is_past_or_forgotten_needs_no_retry(queued: KeptQueue) -> None:
    """Whoever asks starts anew."""
    refused = Settled(0, 0, Status.FAILED, failure=Failure("app.Refused", "refused", retryable=False))
    past, forgotten = queued.settled(refused), queued.settled(refused)
    queued.store.forget(flight_id=forgotten.flight_id)

    assert queued.queue.allow_retry(forgotten.flight_id, forgotten.generation, actor="mira") is None
    queued.wait(61)
    assert queued.queue.allow_retry(past.flight_id, past.generation, actor="mira") is None


def test_a_message_that_is_sent_by_hand_is_not_sent_by_the_sweep_as_well(queued: KeptQueue) -> None:
    """Only of a flight that waits for a worker."""
    row, run = queued.submitted(), queued.begun()
    queued.wait(30)

    assert queued.queue.send_again(row.flight_id, row.generation, actor="mira")

    assert row.flight_id not in queued.queue.unsent(spacing=30, limit=100)
    assert not queued.queue.send_again(row.flight_id, row.generation - 1, actor="mira")
    assert not queued.queue.send_again(run.flight_id, run.generation, actor="mira")
