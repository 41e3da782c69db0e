"""What every flight store keeps, PostgreSQL's and the one in memory: the moves, and which of them are refused.

Long, since a contract that is read in two places is two contracts.
"""

import threading
from dataclasses import replace

import pytest

from singleflight_app.domain.flight import OWNER_LOST, Failure, Settled, Usage
from singleflight_app.domain.records import Beat, FlightSnapshot, Full, Progress
from singleflight_app.domain.states import Claim, Status
from tests.held import at_once, results
from tests.kept import POLICY, RESULT, Kept, failure, success
from tests.rows import granted_in, row_in

#: pytest-django makes no database for a fixture that is asked for at run time.
pytestmark = pytest.mark.django_db

ONE_CALL = replace(POLICY, max_concurrency=1)


def test_the_first_claim_of_a_key_is_granted_and_the_next_one_sees_the_row(kept: Kept) -> None:
    """P1: the row that both see is the same."""
    key = kept.key()
    first = kept.store.claim(key, label="app.score", owner="one", policy=POLICY)
    second = kept.store.claim(key, label="app.score", owner="two", policy=POLICY)

    assert isinstance(first, tuple)
    assert isinstance(second, tuple)
    (granted, row), (granted_too, seen) = first, second
    assert (granted, granted_too) == (True, False)
    assert (seen.flight_id, seen.generation, seen.owner) == (row.flight_id, row.generation, "one")
    assert (row.status, row.attempts, row.takeovers, row.forgotten) == ("running", 1, 0, False)
    assert row.lease_remaining is not None
    assert 50 < row.lease_remaining <= 60
    assert row.outcome_remaining is None
    assert not row.is_settled


def test_keys_are_apart(kept: Kept) -> None:
    """Two keys are two flights, with generations of their own."""
    one, other = kept.claimed(), kept.claimed()

    assert one.flight_id != other.flight_id
    assert one.generation != other.generation


def test_of_claims_that_race_one_is_granted(kept: Kept) -> None:
    """P1: the losers get the row, or None, which means to ask again."""
    key = kept.key()

    answers = results(
        at_once(8, lambda: kept.store.claim(key, label="", owner=threading.current_thread().name, policy=POLICY))
    )

    assert sum(isinstance(answer, tuple) and answer[0] for answer in answers) == 1


def test_a_success_is_read_as_it_was_written(kept: Kept) -> None:
    """P2: bytes, checksum and cost to the last digit."""
    row = kept.claimed()

    answer = kept.store.settle(success(row), owner="one", ttl=60)

    now = kept.read(row)
    assert answer is False
    assert now.is_settled
    assert now.settled() == success(row)
    assert now.lease_remaining is None
    assert now.outcome_remaining is not None
    assert 50 < now.outcome_remaining <= 60


@pytest.mark.parametrize("retryable", [True, False])
def test_a_failure_is_read_as_it_was_written(kept: Kept, *, retryable: bool) -> None:
    """C10: class by name, text, and whether a later caller may try again."""
    now = kept.settled(failure(retryable=retryable))

    assert now.status == "failed"
    assert now.settled().failure == Failure("app.Refused", "refused", retryable)
    assert (now.retry_remaining is not None) is retryable


def test_a_generation_is_settled_once_and_by_its_owner_alone(kept: Kept) -> None:
    """P3: another's name, another's generation and a second end match no row."""
    row = kept.claimed()
    foreign = Settled(row.flight_id, row.generation + 1, Status.SUCCEEDED, RESULT)

    refused = [
        kept.store.settle(success(row), owner="two", ttl=60),
        kept.store.settle(foreign, owner="one", ttl=60),
    ]
    stored = kept.store.settle(success(row), owner="one", ttl=60)
    again = kept.store.settle(success(row), owner="one", ttl=60)

    assert refused == [None, None]
    assert (stored, again) == (False, None)


def test_a_live_lease_is_not_taken_over(kept: Kept) -> None:
    """P1: whatever was decided, the store looks at the lease again."""
    row = kept.claimed()

    assert kept.grant(row, Claim.OWNER_TAKEOVER) is None
    assert kept.read(row).owner == "one"


def test_an_expired_lease_is_taken_over_once(kept: Kept) -> None:
    """P4, R8: of those who race for it one gets it; the duplicate is counted; the late owner is fenced."""
    row = kept.claimed()
    kept.wait(61)
    seen = kept.read(row)

    granted = [new for new in results(at_once(6, kept.grant, seen, Claim.OWNER_TAKEOVER)) if new is not None]

    assert len(granted) == 1
    assert granted[0].generation > row.generation
    assert (granted[0].takeovers, granted[0].attempts, granted[0].owner) == (1, 2, "two")
    assert (granted[0].lease_remaining or 0) > 50
    assert kept.store.settle(success(row), owner="one", ttl=60) is None
    assert kept.store.renew([Beat(row.flight_id, row.generation, 60)], owner="one") == set()


def test_a_late_owner_may_settle_while_nobody_took_over(kept: Kept) -> None:
    """C13: the lease was over, but the answer is paid and nobody else has begun."""
    row = kept.claimed()
    kept.wait(61)

    assert kept.store.settle(success(row), owner="one", ttl=60) is False


def test_a_takeover_that_was_decided_too_late_is_refused(kept: Kept) -> None:
    """C14: the first owner settled in between, and that end stands."""
    row = kept.claimed()
    kept.wait(61)
    seen = kept.read(row)
    kept.store.settle(success(row), owner="one", ttl=60)

    assert kept.grant(seen, Claim.OWNER_TAKEOVER) is None
    assert kept.read(row).settled() == success(row)


def test_a_beat_renews_the_leases_that_are_still_held(kept: Kept) -> None:
    """R2: one statement for all; those that come back were renewed."""
    held, settled, foreign = kept.claimed(), kept.settled(), kept.claimed("two")
    kept.wait(50)
    beats = [Beat(row.flight_id, row.generation, 60) for row in (held, settled, foreign)]

    renewed = kept.store.renew([*beats, Beat(2**40, 1, 60)], owner="one")

    assert renewed == {held.flight_id}
    assert (kept.read(held).lease_remaining or 0) > 50
    assert (kept.read(foreign).lease_remaining or 0) < 20


def test_a_beat_revives_a_lease_that_nobody_took_over(kept: Kept) -> None:
    """C17: a beat that comes late is still good."""
    row = kept.claimed()
    kept.wait(61)

    assert kept.store.renew([Beat(row.flight_id, row.generation, 60)], owner="one") == {row.flight_id}
    assert kept.grant(row, Claim.OWNER_TAKEOVER) is None


def test_a_beat_for_nothing_is_no_error(kept: Kept) -> None:
    """A process may have nothing to renew, or to poll."""
    assert kept.store.renew([], owner="one") == set()
    assert kept.store.poll([]) == []


def test_a_poll_tells_where_flights_are(kept: Kept) -> None:
    """R9: one statement for all; one that is gone is missing."""
    running, settled = kept.claimed(), kept.settled()

    states = {state.flight_id: state for state in kept.store.poll([running.flight_id, settled.flight_id, 2**40])}

    assert set(states) == {running.flight_id, settled.flight_id}
    assert (states[running.flight_id].status, states[settled.flight_id].status) == ("running", "succeeded")
    assert states[running.flight_id].owner == "one"
    assert (states[running.flight_id].lease_remaining or 0) > 50
    assert states[settled.flight_id].lease_remaining is None


def test_a_flight_that_never_was_is_none(kept: Kept) -> None:
    """Gone and never there look the same."""
    assert kept.store.read(2**40) is None


def test_an_outcome_in_its_ttl_is_not_granted_over(kept: Kept) -> None:
    """P2: not even to one whose clock or decision is wrong."""
    row = kept.settled()

    assert kept.grant(row) is None


def test_an_outcome_past_its_ttl_makes_room_for_a_new_generation(kept: Kept) -> None:
    """C21: the new flight has nothing of the old one, and a takeover count of its own."""
    row = kept.settled()
    kept.wait(61)

    new = kept.grant(kept.read(row))

    assert new is not None
    assert new.generation > row.generation
    assert (new.flight_id, new.status, new.attempts, new.takeovers) == (row.flight_id, "running", 1, 0)
    assert (new.payload, new.encoding, new.checksum, new.usage) == (None, "", None, Usage())
    assert new.outcome_remaining is None


def test_a_grant_is_over_the_generation_that_was_seen(kept: Kept) -> None:
    """P3: a decision that was made a generation ago is refused, although the row is open to a grant again."""
    row = kept.settled()
    kept.wait(61)
    seen = kept.read(row)
    newer = kept.grant(seen)
    assert newer is not None
    kept.store.settle(success(newer), owner="two", ttl=60)
    kept.wait(61)

    assert kept.grant(seen) is None
    assert kept.grant(kept.read(row)) is not None


def test_a_retryable_failure_is_granted_over_at_once_another_not(kept: Kept) -> None:
    """C10: and the attempt is counted."""
    retryable, final = kept.settled(failure(retryable=True)), kept.settled(failure())

    new = kept.grant(retryable, Claim.OWNER_RETRY)

    assert new is not None
    assert (new.attempts, new.error_type, new.error_message, new.retryable) == (2, "", "", False)
    assert kept.grant(final, Claim.OWNER_RETRY) is None


def test_a_cancelled_flight_is_granted_over_at_once(kept: Kept) -> None:
    """R11: whoever waits takes it."""
    cancelled = kept.settled(Settled(0, 0, Status.CANCELLED, failure=Failure("x", "left", retryable=True)))

    assert kept.grant(cancelled) is not None


def test_a_flight_is_lost_only_when_its_lease_is_over_for_the_grace(kept: Kept) -> None:
    """C15, R18: lost is a failure like any other, and not retryable."""
    row = kept.claimed()
    alive = kept.store.lose(row.flight_id, row.generation, ttl=60, message="died")
    kept.wait(61)
    in_grace = kept.store.lose(row.flight_id, row.generation, ttl=60, message="died", grace=60)
    other = kept.store.lose(row.flight_id, row.generation + 1, ttl=60, message="died")
    lost = kept.store.lose(row.flight_id, row.generation, ttl=60, message="died")

    now = kept.read(row)
    assert (alive, in_grace, other, lost) == (False, False, False, True)
    assert now.settled().failure == Failure(OWNER_LOST, "died", retryable=False)
    assert kept.grant(now) is None
    assert kept.store.settle(success(row), owner="one", ttl=60) is None


def test_a_forgotten_outcome_makes_room_at_once(kept: Kept) -> None:
    """R15: it is told which generation to refuse from now on, and whether that was known before."""
    row = kept.settled()
    key_of_another = kept.key()

    first = kept.store.forget(flight_id=row.flight_id, actor="test")
    again = kept.store.forget(flight_id=row.flight_id)
    nothing = kept.store.forget(digest=key_of_another.digest)

    assert first is not None
    assert again is not None
    assert nothing is None
    assert (first.flight_id, first.generation, first.stage) == (row.flight_id, row.generation, kept.stage)
    assert (first.already, again.already) == (False, True)
    assert kept.read(row).settled().result == RESULT
    new = kept.grant(kept.read(row))
    assert new is not None
    assert not new.forgotten


def test_forget_names_the_generation_that_it_means(kept: Kept) -> None:
    """R13: dropping an unreadable result never drops the newer one."""
    row = kept.settled()

    assert kept.store.forget(flight_id=row.flight_id, generation=row.generation + 1) is None
    assert not kept.read(row).forgotten
    assert kept.store.forget(flight_id=row.flight_id, generation=row.generation) is not None


def test_a_running_flight_is_forgotten_without_being_disturbed(kept: Kept) -> None:
    """Its owner is told so when it settles; until then nobody else gets the lease."""
    row = kept.claimed()

    forgotten = kept.store.forget(flight_id=row.flight_id)

    assert forgotten is not None
    assert kept.grant(kept.read(row)) is None
    assert kept.store.renew([Beat(row.flight_id, row.generation, 60)], owner="one") == {row.flight_id}
    assert kept.store.settle(success(row), owner="one", ttl=60) is True
    assert kept.grant(kept.read(row)) is not None


def test_what_is_no_outcome_can_not_be_forgotten(kept: Kept) -> None:
    """Past its TTL or cancelled, there is nothing to drop."""
    past, cancelled = kept.settled(), kept.settled(Settled(0, 0, Status.CANCELLED))
    kept.wait(61)

    assert kept.store.forget(flight_id=past.flight_id) is None
    assert kept.store.forget(flight_id=cancelled.flight_id) is None


def test_a_key_is_found_without_a_claim(kept: Kept) -> None:
    """Whoever has no room for a call looks at what there is."""
    key = kept.key()

    before = kept.store.find(key.digest)
    kept.store.claim(key, label="", owner="one", policy=POLICY)
    found = kept.store.find(key.digest)

    assert before is None
    assert found is not None
    assert (found.status, found.owner) == ("running", "one")


def test_a_fresh_caller_is_granted_over_an_outcome_in_its_ttl(kept: Kept) -> None:
    """C37: over a success and a final failure; not over a live lease, nor over another generation than was seen."""
    succeeded, failed, running = kept.settled(), kept.settled(failure()), kept.claimed()

    def fresh(row: FlightSnapshot) -> FlightSnapshot | Full | None:
        return kept.store.grant(row, Claim.OWNER_NEW, owner="two", stage=kept.stage, policy=POLICY, is_fresh=True)

    new = [granted_in(fresh(row)) for row in (succeeded, failed)]

    assert [(row.status, row.payload, row.error_type, row.attempts) for row in new] == [("running", None, "", 1)] * 2
    assert [row.generation > old.generation for row, old in zip(new, (succeeded, failed), strict=True)] == [True, True]
    assert fresh(running) is None
    assert fresh(succeeded) is None


def test_a_full_stage_grants_nothing_and_shows_what_there_is(kept: Kept) -> None:
    """`max_concurrency`: Full, with the reason and when to ask again; a key that has a row is shown it all the same."""
    key, settled = kept.key(), kept.settled()
    kept.wait(61)
    running = row_in(kept.store.claim(key, label="", owner="one", policy=ONE_CALL))

    claimed = kept.store.claim(kept.key(), label="", owner="two", policy=ONE_CALL)
    granted = kept.store.grant(kept.read(settled), Claim.OWNER_NEW, owner="two", stage=kept.stage, policy=ONE_CALL)
    seen = kept.store.claim(key, label="", owner="two", policy=ONE_CALL)

    assert isinstance(claimed, Full)
    assert claimed == granted
    assert (claimed.limit, claimed.retry_after, claimed.is_final) == ("max_concurrency", 15, False)
    assert f"1 calls of stage {kept.stage} run in the cluster" in claimed.reason
    assert row_in(seen).generation == running.generation


@pytest.mark.parametrize("how", ["settled", "expired"])
def test_an_ended_call_makes_room(kept: Kept, how: str) -> None:
    """Settled, or its lease over: it counts no more."""
    running = row_in(kept.store.claim(kept.key(), label="", owner="one", policy=ONE_CALL))
    if how == "settled":
        kept.store.settle(success(running), owner="one", ttl=60)
    else:
        kept.wait(61)

    assert row_in(kept.store.claim(kept.key(), label="", owner="two", policy=ONE_CALL)).owner == "two"
    takeover = kept.store.grant(
        kept.read(running), Claim.OWNER_TAKEOVER, owner="two", stage=kept.stage, policy=ONE_CALL
    )
    assert isinstance(takeover, Full) is (how == "expired")


def test_a_row_that_moved_is_no_lack_of_room(kept: Kept) -> None:
    """The loser of a race for a takeover and the last place is to look again, and follow."""
    row = row_in(kept.store.claim(kept.key(), label="", owner="one", policy=ONE_CALL))
    kept.wait(61)
    seen = kept.read(row)

    def take() -> FlightSnapshot | Full | None:
        return kept.store.grant(seen, Claim.OWNER_TAKEOVER, owner="two", stage=kept.stage, policy=ONE_CALL)

    assert granted_in(take()).takeovers == 1
    assert take() is None


def test_claims_that_race_never_pass_the_limit(kept: Kept) -> None:
    """Eight keys at once, three places: three are granted, the others are told."""
    policy = replace(POLICY, max_concurrency=3)
    answers = results(at_once(8, lambda: kept.store.claim(kept.key(), label="", owner="one", policy=policy)))

    assert sum(isinstance(answer, Full) for answer in answers) == 5
    assert sum(isinstance(answer, tuple) and answer[0] for answer in answers) == 3


def test_tries_inside_a_call_are_counted_when_it_is_settled(kept: Kept) -> None:
    """C38: beside the grants."""
    row = kept.claimed()

    kept.store.settle(replace(success(row), retries=2), owner="one", ttl=60)

    assert kept.read(row).attempts == 3


def test_a_failure_is_not_retried_before_its_time(kept: Kept) -> None:
    """C39: a Retry-After; the store keeps to it whatever was decided."""
    row = kept.claimed()
    busy = Failure("app.Busy", "busy", retryable=True, retry_after=30)
    kept.store.settle(Settled(row.flight_id, row.generation, Status.FAILED, failure=busy), owner="one", ttl=60)
    early = kept.read(row)
    refused = kept.grant(early, Claim.OWNER_RETRY)
    kept.wait(31)
    granted = kept.grant(early, Claim.OWNER_RETRY)

    assert early.retry_remaining is not None
    assert 20 < early.retry_remaining <= 30
    assert refused is None
    assert granted is not None
    assert granted.attempts == 2


def test_a_beat_may_carry_progress(kept: Kept) -> None:
    """A store that shows none takes it all the same."""
    row = kept.claimed()
    beats = [Beat(row.flight_id, row.generation, 60, Progress(0.5, "half"))]

    assert kept.store.renew(beats, owner="one") == {row.flight_id}
    assert kept.store.renew(beats, owner="two") == set()


def test_a_fence_is_recorded_without_a_word(kept: Kept) -> None:
    """R16: also for a flight that is gone, and more than once."""
    row = kept.claimed()

    for flight_id in (row.flight_id, row.flight_id, 2**40):
        kept.store.record_fence(flight_id, row.generation, owner="one")


def test_a_store_that_answered_may_be_taken_over_from(kept: Kept) -> None:
    """R18: only an outage forbids it."""
    kept.claimed()

    assert kept.store.may_take_over(3600)
