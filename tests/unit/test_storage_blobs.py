"""A storage that hangs holds no caller for long, and one that fails costs no answer (P4, P8)."""

import threading
from collections.abc import Iterator

import pytest
from django.core.files.base import ContentFile, File
from django.core.files.storage import InMemoryStorage
from pytest_django.fixtures import Settings

from singleflight_app import CoordinationUnavailable
from singleflight_app.outcomes import blobs
from singleflight_app.outcomes.blobs import MOST_AT_ONCE, PAUSE, StorageBlobs
from tests.held import at_once, results
from tests.waiting import until


class HangingStorage(InMemoryStorage):
    """A storage that answers nobody until the test lets it."""

    may_answer = threading.Event()

    def _open(self, name: str, mode: str = "rb") -> "File[bytes]":
        self.may_answer.wait(40)
        return ContentFile(b"content")

    def _save(self, name: str, content: "File[bytes]") -> str:
        self.may_answer.wait(40)
        return name


@pytest.fixture
def hanging(settings: Settings) -> Iterator[StorageBlobs]:
    """Blobs on a storage that hangs."""
    settings.STORAGES = {**settings.STORAGES, "results": {"BACKEND": f"{__name__}.HangingStorage"}}
    HangingStorage.may_answer.clear()
    yield StorageBlobs("results", monotonic=lambda: clock[0])
    HangingStorage.may_answer.set()


clock = [0.0]


def test_a_reader_waits_no_longer_than_it_may(hanging: StorageBlobs) -> None:
    """Its own wait budget bounds the storage too; for a while after that nobody waits for it at all."""
    with pytest.raises(CoordinationUnavailable, match="did not give back a stored result"):
        hanging.get("name", most=10, within=0.05)
    HangingStorage.may_answer.set()
    with pytest.raises(CoordinationUnavailable):
        hanging.get("name", most=10)

    clock[0] += PAUSE

    assert hanging.get("name", most=10) == b"content"


def test_a_result_that_the_storage_takes_too_long_for_stays_in_the_row(
    hanging: StorageBlobs, monkeypatch: pytest.MonkeyPatch, failures: list[str]
) -> None:
    """The owner's lease and its followers are not held up for ever."""
    monkeypatch.setattr(blobs, "ANSWER_WITHIN", 0.05)

    assert hanging.put("name", b"content") is None
    assert failures == ["storage"]


def test_a_burst_of_readers_waits_for_its_turn(hanging: StorageBlobs) -> None:
    """P4: threads are bounded; who finds none free is not refused."""
    readers = at_once(2 * MOST_AT_ONCE, hanging.get, "name", most=10)
    until(lambda: len(_threads()) == MOST_AT_ONCE, "all threads to be busy")

    HangingStorage.may_answer.set()

    assert results(readers) == [b"content"] * 2 * MOST_AT_ONCE


def _threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "singleflight-storage"]
