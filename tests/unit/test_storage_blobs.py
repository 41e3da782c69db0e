"""A storage that hangs holds no caller for long, and one that fails costs no answer (P4, P8)."""

from collections.abc import Iterator

import pytest
from pytest_django.fixtures import Settings

from singleflight_app import CoordinationUnavailable, outcomes
from singleflight_app.outcomes.blobs import MOST_AT_ONCE, PAUSE, StorageBlobs
from tests.held import at_once, results
from tests.storages import HangingStorage, hanging, storage_threads
from tests.waiting import until


@pytest.fixture
def blobs(settings: Settings) -> Iterator[StorageBlobs]:
    """Blobs on a storage that hangs."""
    with hanging() as options:
        settings.STORAGES = {**settings.STORAGES, "results": options}
        yield StorageBlobs("results", monotonic=lambda: clock[0])


clock = [0.0]


def test_a_reader_waits_no_longer_than_it_may(blobs: StorageBlobs) -> None:
    """Its own wait budget bounds the storage too; for a while after that nobody waits for it at all."""
    with pytest.raises(CoordinationUnavailable, match="did not give back a stored result"):
        blobs.get("name", most=10, within=0.05)
    HangingStorage.may_answer.set()
    with pytest.raises(CoordinationUnavailable):
        blobs.get("name", most=10, within=20)

    clock[0] += PAUSE

    assert blobs.get("name", most=10, within=20) == b"content"


def test_a_result_that_the_storage_takes_too_long_for_stays_in_the_row(
    blobs: StorageBlobs, monkeypatch: pytest.MonkeyPatch, failures: list[str]
) -> None:
    """The owner's lease and its followers are not held up for ever."""
    monkeypatch.setattr(outcomes.blobs, "ANSWER_WITHIN", 0.05)

    assert blobs.put("name", b"content") is None
    assert failures == ["storage"]


def test_a_burst_of_readers_waits_for_its_turn(blobs: StorageBlobs) -> None:
    """P4: threads are bounded; who finds none free is not refused."""
    readers = at_once(2 * MOST_AT_ONCE, blobs.get, "name", most=10, within=20)
    until(lambda: storage_threads() == MOST_AT_ONCE, "all threads to be busy")

    HangingStorage.may_answer.set()

    assert results(readers) == [b"content"] * 2 * MOST_AT_ONCE
