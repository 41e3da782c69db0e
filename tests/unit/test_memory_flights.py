"""Flights in memory are bounded: by their number, and by the bytes of their results."""

import secrets

from django.test import override_settings

from singleflight_app import Role, run
from singleflight_app.domain.flight import Settled, StoredResult
from singleflight_app.domain.keys import FlightKey
from singleflight_app.domain.policy import StagePolicy
from singleflight_app.domain.records import FlightSnapshot
from singleflight_app.domain.states import Claim, Status
from singleflight_app.storage.memory import MemoryFlights

POLICY = StagePolicy()


def claimed(flights: MemoryFlights) -> FlightSnapshot:
    """Return the row of a flight that runs."""
    key = FlightKey("bounded", "test", secrets.token_bytes(32))
    answer = flights.claim(key, label="", owner="one", policy=POLICY)
    assert isinstance(answer, tuple)
    return answer[1]


def settled(flights: MemoryFlights, row: FlightSnapshot, size: int) -> FlightSnapshot:
    """End a flight with a result of that many bytes."""
    result = StoredResult(b"x" * size, "1/json", b"", size)
    flights.settle(Settled(row.flight_id, row.generation, Status.SUCCEEDED, result), owner="one", ttl=60)
    return row


def left(flights: MemoryFlights, rows: list[FlightSnapshot]) -> list[bool]:
    """Return which of the flights are still there."""
    return [flights.read(row.flight_id) is not None for row in rows]


def test_results_take_no_more_bytes_than_allowed() -> None:
    """Those that settled first go first, whenever they began."""
    flights = MemoryFlights(entries=100, size=1000)
    rows = [claimed(flights) for _ in range(3)]
    for row in (rows[1], rows[0], rows[2]):
        settled(flights, row, 400)

    assert left(flights, rows) == [True, False, True]


def test_the_newest_result_stays_however_large() -> None:
    """Its followers are on their way to it; the next one drops it."""
    flights = MemoryFlights(entries=100, size=1000)
    large = settled(flights, claimed(flights), 5000)
    assert left(flights, [large]) == [True]

    small = settled(flights, claimed(flights), 10)

    assert left(flights, [large, small]) == [False, True]


def test_a_new_generation_frees_the_bytes_of_the_old_one() -> None:
    """Counted once, however often a key is called again."""
    flights = MemoryFlights(entries=100, size=1000)
    other, row = settled(flights, claimed(flights), 400), claimed(flights)

    for _ in range(5):
        settled(flights, row, 500)
        found = flights.read(row.flight_id)
        assert found is not None
        granted = flights.grant(found, Claim.OWNER_NEW, owner="one", stage="bounded", policy=POLICY, is_fresh=True)
        assert isinstance(granted, FlightSnapshot)
        row = granted

    assert left(flights, [other, row]) == [True, True]


def test_flights_that_run_or_wait_for_a_worker_are_never_dropped() -> None:
    """More than the bound may be under way; what has settled makes room."""
    flights = MemoryFlights(entries=2)
    running = [claimed(flights) for _ in range(2)]
    queued = flights.submit(FlightKey("bounded", "test", b"queued"), label="", arguments={})
    assert queued is not None
    done = settled(flights, claimed(flights), 1)

    more = claimed(flights)

    assert left(flights, [*running, queued[1], done, more]) == [True, True, True, False, True]


def test_local_mode_is_bounded_by_its_settings() -> None:
    """A process that keeps large answers drops the oldest, and calls again."""
    policy = {"replay_memory": False, "compress": False}
    local = {"MODE": "local", "CACHE": None, "MEMORY_BYTES": 1000, "STAGES": {"bounded-local": policy}}

    def ask(question: str) -> Role:
        return run("bounded-local", {"question": question}, lambda: "x" * 600, scope="test").role

    with override_settings(SINGLEFLIGHT=local):
        roles = [ask("a"), ask("a"), ask("b"), ask("a")]

    assert roles == [Role.OWNER, Role.REPLAY, Role.OWNER, Role.OWNER]
