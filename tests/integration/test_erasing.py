"""`purge_flights --unexpired` and `--scope`: what a person asks to have erased is gone from every layer."""

import io
import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone
from pytest_django.fixtures import Settings

from singleflight_app.domain.states import Status
from singleflight_app.models import Flight, FlightEvent
from singleflight_app.storage import purging
from tests.held import Counted, Held, begin
from tests.nodes import nodes
from tests.rows import event_row, flight_row
from tests.storages import Folder
from tests.waiting import until

if TYPE_CHECKING:
    from concurrent.futures import Future

    from singleflight_app.domain.flight import Outcome

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("empty_tables")]


def erase(*arguments: str) -> str:
    out = io.StringIO()
    call_command("purge_flights", *arguments, stdout=out)
    return out.getvalue()


@pytest.fixture
def no_redis(settings: Settings) -> Iterator[None]:
    """A Redis that is away."""
    nowhere = {**settings.CACHES["default"], "LOCATION": "unix:///nonexistent/valkey.sock?db=0"}
    settings.CACHES = {**settings.CACHES, "default": nowhere}
    yield
    del settings.CACHES


@pytest.mark.parametrize("stage", ["calm-row", "calm-redis", "calm-memory"])
def test_an_erased_answer_comes_back_from_no_layer(unique: str, stage: str) -> None:
    """Neither the row, nor Redis, nor the memory of a process replays it: who asks gets a new call."""
    call = Counted("old", "new")
    with nodes(2) as (one, other):
        for node in (one, other):
            node.run(stage, {"key": unique}, call)
        key = one.key(stage, {"key": unique})

        said = erase("--unexpired")

        assert "purged 1 flights and 0 audit rows" in said
        assert not Flight.objects.exists()
        for node in (one, other):
            until(lambda: not node.remembers(key), "the memory to forget")  # noqa: B023  (called at once)
        assert [node.run(stage, {"key": unique}, call).value for node in (other, one)] == ["new", "new"]
    assert call.count == 2


def test_an_erased_outcome_leaves_the_audit_row_of_its_forgetting(unique: str) -> None:
    """R16: who dropped an outcome in its TTL is on record; one past it needed no forgetting."""
    with nodes(1) as (node,):
        node.run("calm", {"key": unique}, Counted("old"))
    flight_row(expires_at=timezone.now())

    erase("--unexpired")

    (event,) = FlightEvent.objects.filter(kind="forgotten")
    assert (event.actor, event.stage) == ("purge_flights", "calm")


def test_a_live_flight_is_never_erased(unique: str) -> None:
    """Not even when told: its owner settles it, and the next run erases it."""
    held = Held("answer")
    flight_row(status=Status.PENDING, scope="someone")
    with nodes(1) as (node,):
        caller = begin(node.run, "calm", {"key": unique}, held, scope="someone")
        held.wait_until_begun()

        said = erase("--unexpired", "--scope", "someone")

        assert "purged 0 flights" in said
        assert "2 flights of the scope stay" in said
        held.let_go()
        assert caller.result(20).value == "answer"
        assert "purged 1 flights" in erase("--unexpired", "--scope", "someone")
    assert Flight.objects.get().status == "pending"


@pytest.mark.usefixtures("no_redis")
def test_without_redis_nothing_is_erased(unique: str) -> None:
    """The outcome could still be replayed from there; a second run does it all."""
    flight = flight_row()

    with pytest.raises(
        CommandError, match=r"Redis did not confirm .* \(until then 0 flights .*; run the command again"
    ):
        erase("--unexpired")

    flight.refresh_from_db()
    assert flight.forgotten


def test_a_second_run_ends_what_the_first_began(settings: Settings, unique: str) -> None:
    """Marked as forgotten by a run that found no Redis, a flight still gets its floors before it goes."""
    call = Counted("old", "new")
    with nodes(1) as (node,):
        node.run("calm-redis", {"key": unique}, call)
        Flight.objects.update(forgotten=True)  # and Redis still has it

        erase("--unexpired")

        assert node.run("calm-redis", {"key": unique}, call).value == "new"


@pytest.mark.usefixtures("no_redis")
def test_what_is_past_its_ttl_needs_no_redis() -> None:
    """No layer replays it."""
    flight_row(scope="someone", expires_at=timezone.now() - timedelta(days=1))

    assert "purged 1 flights" in erase("--scope", "someone")


def test_a_scope_is_erased_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it, in whatever stretch it lies, and nobody else's; audit rows hold no scope and stay."""
    monkeypatch.setattr(purging, "WINDOW", 2)
    for number in range(30):
        flight = flight_row(scope="someone" if number % 7 in {1, 2, 3} else f"someone{number}")
        event_row(flight, at=timezone.now() - timedelta(days=400))

    said = erase("--scope", "someone", "--unexpired", "--batch-size", "2")

    assert "purged 13 flights and 0 audit rows" in said
    assert Flight.objects.filter(scope="someone").count() == 0
    assert Flight.objects.count() == 17
    assert FlightEvent.objects.filter(kind="granted").count() == 30


def test_a_scope_alone_waits_for_the_ttl() -> None:
    """Without `--unexpired` outcomes in their TTL, and those a follower may come for, stay."""
    flight_row(scope="someone", expires_at=timezone.now() - timedelta(days=1))
    flight_row(scope="someone", expires_at=timezone.now() - timedelta(seconds=1))
    flight_row(scope="someone")

    said = erase("--scope", "someone")

    assert "purged 1 flights" in said
    assert "2 flights of the scope stay" in said


def test_unexpired_with_an_age_counts_from_the_settle() -> None:
    """`--older-than 2h --unexpired`: what was settled two hours ago, whenever it expires."""
    flight_row(settled_at=timezone.now() - timedelta(hours=1))
    flight_row(settled_at=timezone.now() - timedelta(hours=3))

    assert "purged 1 flights" in erase("--unexpired", "--older-than", "2h")


def test_a_dry_run_of_an_erasure_counts_what_would_go() -> None:
    """And forgets nothing."""
    for _ in range(3):
        flight_row(scope="someone")
    flight_row(scope="someone", status=Status.RUNNING)
    flight_row()

    said = erase("--scope", "someone", "--unexpired", "--dry-run", "--json", "--batch-size", "2")

    facts = json.loads(said)
    assert (facts["flights"], facts["left"], facts["dry_run"]) == (3, 1, True)
    assert Flight.objects.filter(forgotten=False).count() == 5


def test_a_flight_that_began_anew_between_is_left_alone(monkeypatch: pytest.MonkeyPatch, unique: str) -> None:
    """A caller who asks after the mark gets a new call, and that is live: its old answer is gone all the same."""
    held = Held("new")
    begun: list[Future[Outcome[str]]] = []
    with nodes(1) as (node,):
        node.run("calm-row", {"key": unique}, Counted("old"))
        really = purging.ExpiredRows.erase

        def erase_late(rows: purging.ExpiredRows, flights: object) -> object:
            if not begun:
                begun.append(begin(node.run, "calm-row", {"key": unique}, held))
                held.wait_until_begun()
            return really(rows, flights)  # type: ignore[arg-type]

        monkeypatch.setattr(purging.ExpiredRows, "erase", erase_late)
        said = erase("--unexpired")

        assert "purged 0 flights" in said
        assert Flight.objects.get().result is None
        held.let_go()
        assert begun[0].result(20).value == "new"


def test_the_files_of_erased_results_go_too(settings: Settings, tmp_path: Path, unique: str) -> None:
    """A large result is in the storage, under a name that the row has."""
    folder = Folder(tmp_path / "results")
    settings.STORAGES = {**settings.STORAGES, "results": folder.options}
    settings.SINGLEFLIGHT = {**settings.SINGLEFLIGHT, "BLOB_STORAGE": "results"}
    with nodes(1) as (node,):
        node.run("large", {"key": unique}, Counted("x" * 1200))
        assert len(folder.names()) == 1

        said = erase("--unexpired", "--json")

    assert json.loads(said)["blobs"] == 1
    assert folder.names() == []


def test_an_empty_scope_is_refused() -> None:
    """It is no flight's, and must not be taken for all of them."""
    flight_row()

    with pytest.raises(CommandError, match="--scope is empty"):
        erase("--scope", "", "--unexpired")

    assert Flight.objects.count() == 1
