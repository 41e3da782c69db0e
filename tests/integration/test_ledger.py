"""The ledger from the engine's announcements to its rows: sums that may be short, never too high."""

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from django.db import transaction

from singleflight_app import GLOBAL, FlightFailed, current_flight, run
from singleflight_app.conf import get_settings
from singleflight_app.domain.exceptions import CoordinationUnavailable
from singleflight_app.domain.flight import Usage
from singleflight_app.domain.states import Layer, Role, Status
from singleflight_app.models import Flight, StageStat
from singleflight_app.storage.pool import Database
from singleflight_app.storage.stats import StageStats
from singleflight_app.telemetry import ledger, signals
from singleflight_app.telemetry.ledger import Ledger
from singleflight_app.wiring import close, runtime
from tests.outages import Outage
from tests.rows import flight_row
from tests.waiting import until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("empty_tables")]

USAGE = Usage("small-1", 100, 20, Decimal("0.25"))
NOON = datetime(2026, 5, 1, 12, 59, 59, 999999, UTC)


class Clock:
    """The clock and the timer of a ledger, moved by hand."""

    def __init__(self) -> None:
        self.wall = NOON
        self.scheduled: list[Callable[[], None]] = []

    def now(self) -> float:
        return self.wall.timestamp()


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    """Keep the process's own ledger from writing the same announcements."""
    runtime()  # which connects it
    ledger.reset()
    ledger.disconnect()
    yield
    close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def database() -> Iterator[Database]:
    database = Database(get_settings())
    yield database
    database.close()


@pytest.fixture
def sums(clock: Clock, database: Database) -> Iterator[Ledger]:
    """A ledger that listens and writes to the test's database."""
    sums = Ledger(now=clock.now, flush_later=clock.scheduled.append)
    sums.connect(StageStats(database))
    yield sums
    sums.disconnect()


def _answered(role: Role, **facts: object) -> None:
    defaults = {"stage": "score", "role": role, "layer": Layer.DATABASE, "waited": 0.1, "failed": False}
    flight = {"flight_id": 1, "generation": 1, "usage": USAGE}
    signals.announce(signals.request_answered, **{**defaults, **flight, **facts})


def _settled(status: Status = Status.SUCCEEDED, **facts: object) -> None:
    defaults = {
        "stage": "score",
        "flight_id": 1,
        "generation": 1,
        "status": status,
        "seconds": 2.0,
        "usage": USAGE,
    }
    signals.announce(signals.flight_settled, **{**defaults, **facts})


def test_one_call_shared_by_four_saves_three(sums: Ledger) -> None:
    """Spent once, saved for each request that was answered without a call of its own."""
    _settled()
    _answered(Role.OWNER)
    _answered(Role.FOLLOWER)
    _answered(Role.FOLLOWER)
    _answered(Role.REPLAY)

    sums.flush()

    row = StageStat.objects.get(stage="score")
    assert (row.requests, row.calls, row.followers, row.replays) == (4, 1, 2, 1)
    assert (row.tokens_spent, row.tokens_saved, row.tokens_wasted) == (120, 360, 0)
    assert (row.cost_spent, row.cost_saved) == (Decimal("0.25"), Decimal("0.75"))
    assert row.hour == datetime(2026, 5, 1, 12, tzinfo=UTC)


def test_a_real_flight_is_counted(sums: Ledger) -> None:
    """One call and one replay of it, as the engine announces them."""

    def score() -> str:
        current_flight().record_usage(USAGE)
        return "good"

    for _ in range(2):
        run("ledger-score", {"answer": 1}, score, scope=GLOBAL)

    sums.flush()

    row = StageStat.objects.get(stage="ledger-score")
    assert (row.requests, row.calls, row.followers, row.replays) == (2, 1, 0, 1)
    assert (row.tokens_spent, row.tokens_saved) == (120, 120)
    assert (row.cost_spent, row.cost_saved) == (Decimal("0.25"), Decimal("0.25"))


def test_a_call_that_raises_is_spent_and_a_failure(sums: Ledger) -> None:
    """Its tokens are paid for all the same, and a replay of the failure saves them."""

    def score() -> str:
        current_flight().record_usage(USAGE)
        raise ValueError("no JSON in the reply")

    with pytest.raises(ValueError, match="no JSON"):
        run("ledger-failing", {"answer": 1}, score, scope=GLOBAL)
    with pytest.raises(FlightFailed, match="no JSON"):
        run("ledger-failing", {"answer": 1}, score, scope=GLOBAL)

    sums.flush()

    row = StageStat.objects.get(stage="ledger-failing")
    assert (row.requests, row.calls, row.replays, row.failures) == (2, 1, 1, 1)
    assert (row.tokens_spent, row.tokens_saved) == (120, 120)


def test_failures_takeovers_and_waste_are_counted(sums: Ledger) -> None:
    """What a fenced owner used is wasted and no part of what was spent."""
    _settled(Status.FAILED)
    _settled(Status.TIMED_OUT)
    _settled(Status.CANCELLED)
    signals.announce(signals.lease_taken_over, stage="score", flight_id=1, generation=2)
    signals.announce(signals.flight_fenced, stage="score", flight_id=1, generation=1, usage=USAGE)

    sums.flush()

    row = StageStat.objects.get(stage="score")
    assert (row.calls, row.failures, row.takeovers, row.fenced) == (4, 2, 1, 1)
    assert (row.tokens_spent, row.tokens_wasted, row.cost_wasted) == (360, 120, Decimal("0.25"))


def test_a_degraded_call_is_spent_although_no_end_was_stored(sums: Ledger) -> None:
    """Its answer is all there is to tell of it."""
    signals.announce(signals.flight_degraded, stage="score")
    _answered(Role.OWNER, flight_id=None, generation=None)

    sums.flush()

    row = StageStat.objects.get(stage="score")
    assert (row.calls, row.tokens_spent) == (1, 120)


def test_flushes_add_up_by_stage_and_hour(sums: Ledger, clock: Clock) -> None:
    """Two processes that add to the same hour do not overwrite each other."""
    _answered(Role.OWNER)
    sums.flush()
    _answered(Role.OWNER)
    _answered(Role.OWNER, stage="report")
    clock.wall = clock.wall.replace(hour=13)
    _answered(Role.OWNER)

    sums.flush()

    rows = StageStat.objects.order_by("stage", "hour").values_list("stage", "hour__hour", "requests")
    assert list(rows) == [("report", 12, 1), ("score", 12, 2), ("score", 13, 1)]


def test_followers_are_added_to_the_flight_they_joined(sums: Ledger) -> None:
    """Replays are counted beside them, the owner is neither; a flight of a newer generation keeps its numbers."""
    flight, newer = flight_row(generation=5), flight_row(generation=9)
    for _ in range(3):
        _answered(Role.FOLLOWER, flight_id=flight.pk, generation=5)
    _answered(Role.REPLAY, flight_id=flight.pk, generation=5)
    _answered(Role.OWNER, flight_id=flight.pk, generation=5)
    _answered(Role.FOLLOWER, flight_id=newer.pk, generation=8)
    sums.flush()
    _answered(Role.FOLLOWER, flight_id=flight.pk, generation=5)

    sums.flush()

    counted = set(Flight.objects.values_list("pk", "joins", "replays"))
    assert counted == {(flight.pk, 4, 1), (newer.pk, 0, 0)}


def test_replays_are_told_apart_by_where_they_came_from(sums: Ledger) -> None:
    """Memory, Redis, and the rest: the database."""
    for layer in (Layer.MEMORY, Layer.PROCESS, Layer.REDIS, Layer.DATABASE, Layer.DATABASE):
        _answered(Role.REPLAY, layer=layer)

    sums.flush()

    row = StageStat.objects.get()
    assert (row.replays, row.replays_process, row.replays_cache) == (5, 2, 1)


def test_waits_and_durations_are_counted_by_length(sums: Ledger) -> None:
    """Who gave up counts with its wait, or the slowest ones would be missing; flushes add up, shorter lists too."""
    _answered(Role.OWNER, waited=0.01)
    _answered(Role.REPLAY, waited=0.011)
    signals.announce(signals.wait_timed_out, stage="score", waited=301.0)
    _settled(seconds=4.0)
    sums.flush()
    StageStat.objects.update(runs=[7])
    _answered(Role.OWNER, waited=0.001)
    _settled(seconds=0.0)
    _settled(seconds=5.0)
    _settled(seconds=None)

    sums.flush()

    row = StageStat.objects.get()
    assert row.waits == [2, 1, *[0] * 13, 1]
    assert row.runs == [8, *[0] * 7, 1, *[0] * 7]
    assert row.wait_timeouts == 1


def test_a_flight_that_somebody_holds_gets_its_joins_later(sums: Ledger) -> None:
    """The flush waits for no row, and forgets none."""
    held, free = flight_row(generation=1), flight_row(generation=1)
    for flight in (held, free):
        _answered(Role.FOLLOWER, flight_id=flight.pk, generation=1)
    with transaction.atomic():
        Flight.objects.select_for_update().get(pk=held.pk)
        sums.flush()
        assert set(Flight.objects.values_list("pk", "joins")) == {(held.pk, 0), (free.pk, 1)}
    _answered(Role.FOLLOWER, flight_id=held.pk, generation=1)

    sums.flush()

    assert set(Flight.objects.values_list("pk", "joins")) == {(held.pk, 2), (free.pk, 1)}
    assert StageStat.objects.get().followers == 3


def test_what_never_reached_the_server_is_sent_when_it_is_back(sums: Ledger, outage: Outage) -> None:
    """The calls of an outage are the ones that cost twice: they must not be missing."""
    flight = flight_row(generation=1)
    outage.begin()
    signals.announce(signals.flight_degraded, stage="score")
    _answered(Role.OWNER, flight_id=None, generation=None)
    _answered(Role.REPLAY, flight_id=flight.pk, generation=1)
    sums.flush()
    _answered(Role.OWNER, flight_id=None, generation=None)
    sums.flush()
    outage.end()

    def flushed() -> bool:
        sums.flush()
        return StageStat.objects.exists()

    until(flushed, "the next probe of the database")
    sums.flush()

    row = StageStat.objects.get()
    assert (row.requests, row.calls, row.degraded, row.tokens_spent) == (3, 1, 1, 240)
    assert Flight.objects.get().replays == 1


def test_the_first_count_schedules_one_flush(sums: Ledger, clock: Clock) -> None:
    """What is counted meanwhile goes with it; the next count schedules the next."""
    _answered(Role.OWNER)
    _answered(Role.OWNER)
    (flush,) = clock.scheduled
    flush()
    _answered(Role.OWNER)

    assert StageStat.objects.get().requests == 2
    assert len(clock.scheduled) == 2


def test_a_ledger_flushes_by_itself(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has to remember it, whatever role this process has."""
    monkeypatch.setattr(ledger, "FLUSH_INTERVAL", 0.01)
    written = threading.Event()

    class Told(StageStats):
        def add_joins(self, uses: Any) -> set[int]:  # noqa: ANN401  (of StageStats)
            locked = super().add_joins(uses)
            written.set()
            return locked

    sums = Ledger()
    sums.connect(Told(database))
    try:
        _answered(Role.FOLLOWER)
        assert written.wait(10)
    finally:
        sums.disconnect()

    assert StageStat.objects.get().followers == 1


def test_a_batch_whose_reply_was_lost_is_not_sent_again(clock: Clock, database: Database) -> None:
    """It may have been stored: under, never over. The loss is announced."""
    failures: list[tuple[str, str]] = []

    def remember(*, component: str, error: str, **_: object) -> None:
        failures.append((component, error))

    class ReplyLost(StageStats):
        def add_tallies(self, tallies: Any) -> None:  # noqa: ANN401  (of StageStats)
            super().add_tallies(tallies)
            raise CoordinationUnavailable("the connection broke before the reply")

    sums = Ledger(now=clock.now, flush_later=clock.scheduled.append)
    sums.connect(ReplyLost(database))
    signals.coordination_failed.connect(remember)
    try:
        _answered(Role.OWNER)
        sums.flush()
        sums.flush()
    finally:
        signals.coordination_failed.disconnect(remember)
        sums.disconnect()

    assert StageStat.objects.get().requests == 1
    assert failures == [("ledger", "CoordinationUnavailable")]


def test_a_sum_that_postgresql_refuses_harms_no_thread(sums: Ledger) -> None:
    """The batch is dropped; the next one is counted."""
    _answered(Role.FOLLOWER, usage=Usage("m", cost=Decimal(10) ** 12))
    sums.flush()
    _answered(Role.OWNER)

    sums.flush()

    assert StageStat.objects.get().requests == 1


def test_memory_is_bounded_by_stages_and_flights(sums: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Past the bound, what is known is still counted and what is new is not."""
    monkeypatch.setattr(ledger, "MAX_TALLIES", 2)
    monkeypatch.setattr(ledger, "MAX_JOINS", 1)
    flight, other = flight_row(generation=1), flight_row(generation=1)
    for stage in ("a", "b", "c", "a"):
        _answered(Role.OWNER, stage=stage)
    for joined in (flight, other, flight):
        _answered(Role.FOLLOWER, stage="a", flight_id=joined.pk)

    sums.flush()

    assert set(StageStat.objects.values_list("stage", "requests")) == {("a", 5), ("b", 1)}
    assert set(Flight.objects.values_list("pk", "joins")) == {(flight.pk, 2), (other.pk, 0)}


def test_a_forked_child_starts_empty(sums: Ledger) -> None:
    """The parent flushes what was counted before the fork; the child must not flush it again."""
    _answered(Role.OWNER)

    sums.reset()
    sums.flush()

    assert not StageStat.objects.exists()
