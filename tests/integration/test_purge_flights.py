"""`purge_flights` on real rows: what goes, what must stay, what it says."""

import io
import json
import sys
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta

import psycopg
import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.utils import timezone
from psycopg.conninfo import make_conninfo

from singleflight_app.conf import get_settings
from singleflight_app.domain.keys import flight_key
from singleflight_app.domain.policy import StagePolicy
from singleflight_app.domain.purging import PurgePlan
from singleflight_app.domain.states import Claim, Status
from singleflight_app.engine.erasing import Floors
from singleflight_app.engine.large import LargeResults
from singleflight_app.engine.maintenance import purge
from singleflight_app.models import Flight, FlightEvent
from singleflight_app.notify.null import NullNotifier
from singleflight_app.outcomes.blobs import NoBlobs
from singleflight_app.outcomes.null import NoReplayCache
from singleflight_app.storage.blobs import NoBlobNotes
from singleflight_app.storage.flights import PostgresFlights
from singleflight_app.storage.pool import Database
from singleflight_app.storage.purging import ExpiredRows
from singleflight_app.storage.queries import query
from singleflight_app.tasks import purge as purge_task
from tests.held import at_once, results
from tests.outages import Outage
from tests.rows import event_row, flight_row, row_in

NO_FILES = LargeResults(NoBlobNotes(), NoBlobs())
NO_REDIS = Floors(NoReplayCache(), NullNotifier())

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("empty_tables")]


def _purge(*arguments: str) -> str:
    out = io.StringIO()
    call_command("purge_flights", *arguments, stdout=out)
    return out.getvalue()


def _expired(ago: timedelta = timedelta(days=1), **columns: object) -> Flight:
    return flight_row(**{"expires_at": timezone.now() - ago, **columns})


@pytest.fixture
def locked() -> Iterator[Flight]:
    """An expired flight on which somebody holds a row lock."""
    flight = _expired()
    with (
        psycopg.connect(_conninfo()) as other,
        other.transaction(),
    ):
        other.execute("select from singleflight_flight where id = %s for update", [flight.pk])
        yield flight


def _conninfo() -> str:
    names = ("host", "port", "user", "password", "dbname")
    parameters = connection.get_connection_params()
    return make_conninfo("", **{name: parameters[name] for name in names if parameters.get(name)})


def test_expired_flights_go_and_their_audit_rows_stay() -> None:
    """Audit rows outlive their flight by the retention."""
    flight = _expired()
    event_row(flight)

    said = _purge()

    assert "purged 1 flights and 0 audit rows in " in said
    assert not Flight.objects.exists()
    assert FlightEvent.objects.filter(flight_id=flight.pk).exists()


@pytest.mark.parametrize("status", [Status.PENDING, Status.RUNNING])
def test_a_live_flight_stays_whatever_its_age(status: Status) -> None:
    """Not even an expiry left behind, or a lease long over, makes a live flight expired."""
    old = timezone.now() - timedelta(days=9)
    flight_row(status=status, expires_at=old, lease_expires_at=old)

    _purge()

    assert Flight.objects.count() == 1


def test_an_outcome_in_its_ttl_stays() -> None:
    """It still answers callers."""
    flight_row(expires_at=timezone.now() + timedelta(seconds=60))

    _purge()

    assert Flight.objects.count() == 1


def test_a_flight_stays_for_the_longest_wait_past_its_expiry() -> None:
    """A follower that kept its id may come for the outcome until then (rule R8)."""
    longest_wait = timedelta(seconds=get_settings().wait_timeout_max)
    _expired(longest_wait - timedelta(seconds=20))
    gone = _expired(longest_wait + timedelta(seconds=1))

    _purge()

    assert Flight.objects.count() == 1
    assert not Flight.objects.filter(pk=gone.pk).exists()


def test_a_forgotten_outcome_waits_for_its_followers_too() -> None:
    """Forgetting leaves the expiry alone, and so does the purge."""
    flight_row(forgotten=True)

    _purge()

    assert Flight.objects.count() == 1


def test_older_than_counts_from_the_expiry() -> None:
    """`--older-than 7d`: a week after the outcome ended, not after the call."""
    _expired(timedelta(days=6))
    _expired(timedelta(days=8))

    _purge("--older-than", "7d")

    assert Flight.objects.count() == 1


def test_stage_and_status_narrow_the_purge() -> None:
    """Both may be repeated; what they don't name stays."""
    for stage in ("a", "b", "c"):
        for status in (Status.SUCCEEDED, Status.FAILED, Status.TIMED_OUT):
            _expired(stage=stage, status=status)

    _purge("--stage", "a", "--stage", "b", "--status", "failed", "--status", "timed_out")

    left = set(Flight.objects.values_list("stage", "status"))
    assert left == {
        ("a", "succeeded"),
        ("b", "succeeded"),
        *(("c", s) for s in ("succeeded", "failed", "timed_out")),
    }


def test_audit_rows_past_their_retention_go() -> None:
    """Whether or not their flight is still there."""
    flight = flight_row()
    event_row(flight, at=timezone.now() - get_settings().event_retention - timedelta(seconds=5))
    event_row(flight)

    said = _purge()

    assert "purged 0 flights and 1 audit rows" in said
    assert FlightEvent.objects.count() == 1


def test_a_dry_run_says_what_would_go_and_deletes_nothing() -> None:
    """Its numbers are those of the purge that follows."""
    for _ in range(3):
        event_row(_expired(), at=timezone.now() - timedelta(days=365))

    said = _purge("--dry-run")

    assert said == "would purge 3 flights and 3 audit rows\n"
    assert Flight.objects.count() == FlightEvent.objects.count() == 3
    assert "purged 3 flights and 3 audit rows" in _purge()


def test_many_batches_leave_nothing_behind() -> None:
    """Rows that expired at the same moment straddle the batches' borders."""
    moment = timezone.now() - timedelta(days=1)
    for _ in range(25):
        flight_row(expires_at=moment)

    said = _purge("--batch-size", "4")

    assert "purged 25 flights" in said
    assert not Flight.objects.exists()


def test_a_locked_row_is_passed_over(locked: Flight) -> None:
    """Neither does the purge wait for it, nor does it stop there."""
    for _ in range(5):
        _expired(timedelta(days=2))
        _expired(timedelta(hours=2))

    said = _purge("--batch-size", "3")

    assert "purged 10 flights" in said
    assert list(Flight.objects.values_list("pk", flat=True)) == [locked.pk]


def test_every_batch_is_committed_by_itself() -> None:
    """Stopped in the middle, a purge keeps what it did."""
    for _ in range(4):
        _expired()
    plan = PurgePlan(wait_timeout_max=1, event_retention=timedelta(days=1), batch_size=2)

    with closing(Database(get_settings())) as database:
        progress = purge(ExpiredRows(database), NO_FILES, plan, floors=NO_REDIS)
        next(progress)
        purged = next(progress)

    assert purged.flights == Flight.objects.count() == 2


def test_when_time_is_up_no_further_batch_begins() -> None:
    """The sum so far comes back, marked as incomplete."""
    for _ in range(4):
        _expired()
    plan = PurgePlan(wait_timeout_max=1, event_retention=timedelta(days=1), batch_size=2, max_seconds=10)
    clock = iter([0.0, 11.0])

    with closing(Database(get_settings())) as database:
        *_, purged = purge(ExpiredRows(database), NO_FILES, plan, floors=NO_REDIS, monotonic=lambda: next(clock))

    assert (purged.flights, purged.is_complete) == (2, False)


def test_two_at_once_share_the_work() -> None:
    """Neither waits for the other, and nothing is counted twice."""
    for _ in range(200):
        event_row(_expired(), at=timezone.now() - timedelta(days=365))

    said = [json.loads(text) for text in results(at_once(2, _purge, "--batch-size", "7", "--json"))]

    assert sum(facts["flights"] for facts in said) == 200
    assert sum(facts["events"] for facts in said) == 200
    assert not Flight.objects.exists()


def test_claims_go_on_beside_a_batch_that_is_not_committed_yet() -> None:
    """A new key is granted at once; a caller of a row that is about to go finds it held, waits for no lock."""
    key, other = (flight_key("test", "calm", "test", {"key": name}) for name in ("old", "new"))
    flight = _expired(digest=key.digest, stage="calm")
    batch = {"keep": timedelta(0), "stages": None, "statuses": ["succeeded"], "since": None, "limit": 10}
    policy = StagePolicy()
    with (
        closing(Database(get_settings())) as database,
        psycopg.connect(_conninfo()) as purger,
        purger.transaction(),
    ):
        assert purger.execute(query("purge_flights"), batch).fetchall()[0][0] == 1
        store = PostgresFlights(database)

        # A statement that waited for the purger would run into its deadline, and raise.
        found = row_in(store.claim(key, label="", owner="a:1:1", policy=policy))
        granted = store.grant(found, Claim.OWNER_NEW, owner="a:1:1", stage="calm", policy=policy)
        is_new, _ = store.claim(other, label="", owner="a:1:1", policy=policy) or (False, None)  # type: ignore[misc]
        waiting = purger.execute(
            "select count(*) from pg_locks where not granted "
            "and database = (select oid from pg_database where datname = current_database())"
        ).fetchall()

    assert (found.flight_id, granted, is_new, waiting) == (flight.pk, None, True, [(0,)])
    assert Flight.objects.get().digest == other.digest


def test_the_answer_to_programs_is_one_object() -> None:
    """Nothing else is on the output, dry or not."""
    event_row(_expired(), at=timezone.now() - timedelta(days=365))

    dry, real = json.loads(_purge("--json", "--dry-run")), json.loads(_purge("--json"))

    assert dry.pop("seconds") >= 0
    assert real.pop("seconds") >= 0
    assert dry == {"flights": 1, "events": 1, "blobs": 0, "complete": True, "dry_run": True}
    assert real == {"flights": 1, "events": 1, "blobs": 0, "complete": True, "dry_run": False}


def test_the_task_purges() -> None:
    """Beat's way to the same command."""
    _expired()

    purge_task()

    assert not Flight.objects.exists()


def test_a_database_that_is_away_is_said_with_what_was_done(outage: Outage) -> None:
    """And the command fails."""
    _expired()
    outage.begin()

    with pytest.raises(CommandError, match=r"out of reach: .* \(until then 0 flights and 0 audit rows were purged"):
        _purge()


def test_rich_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It draws on a terminal, and nothing else hangs on it."""
    monkeypatch.setitem(sys.modules, "rich.console", None)
    _expired()

    assert "purged 1 flights" in _purge()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--older-than", "7 days"], r"--older-than '7 days' is no duration; give a number and a unit"),
        (
            ["--older-than", "99999999d"],
            r"--older-than '99999999d' is more than ten years; give a shorter time",
        ),
        (["--status", "running"], r"--status 'running' can't be purged; use one of: succeeded, failed"),
        (["--batch-size", "0"], r"--batch-size is 0; give a number from 1 on"),
        (["--max-seconds", "-1"], r"--max-seconds is -1; give a number of seconds above zero"),
        (["--database", "nowhere"], r"--database 'nowhere' is no alias of DATABASES; use one of: .*default"),
    ],
)
def test_bad_input_gets_one_sentence_with_the_repair(arguments: list[str], sentence: str) -> None:
    """And nothing is deleted."""
    _expired()

    with pytest.raises(CommandError, match=sentence):
        _purge(*arguments)

    assert Flight.objects.count() == 1
