"""Results too large for a row, as files of a Django storage: the file system, S3, whatever `STORAGES` names.

What the storage can't take stays in the row; what it can't give just now is no reason to pay for it again. A storage
that hangs holds threads of its own, and no caller for long.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from django.core.exceptions import SuspiciousOperation
from django.core.files.base import ContentFile
from django.core.files.storage import Storage, storages

from singleflight_app.domain.exceptions import CoordinationUnavailable, UnknownEnvelope
from singleflight_app.telemetry.signals import announce, coordination_failed

ANSWER_WITHIN = 30.0  #: seconds for one file, written, read or deleted
PAUSE = 5.0  #: seconds without a storage that did not answer in time, so that it costs some callers, not each
MOST_AT_ONCE = 16  #: files under way in one process; those of a storage that hangs count until it answers

T = TypeVar("T")


class StorageBlobs:
    """Files of the storage with an alias; implements Blobs."""

    is_there = True

    def __init__(self, alias: str, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._alias, self._monotonic = alias, monotonic
        self._places = threading.BoundedSemaphore(MOST_AT_ONCE)
        self._paused_until = float("-inf")

    def put(self, name: str, payload: bytes) -> str | None:
        """Write a file and return the name that it got; None: the storage did not take it."""
        try:
            return self._within(ANSWER_WITHIN, lambda storage: storage.save(name, ContentFile(payload)))
        except Exception as exc:  # noqa: BLE001  (each backend has its own errors, and the row takes the result instead)
            self._failed(exc)
            return None

    def get(self, location: str, *, most: int, within: float) -> bytes | None:
        """Return a file, cut off after `most` bytes; None: it is gone. CoordinationUnavailable: no answer in time."""

        def read(storage: Storage) -> bytes:
            with storage.open(location) as file:
                payload: bytes = file.read(most)
                return payload

        try:
            return self._within(min(within, ANSWER_WITHIN), read)
        except (FileNotFoundError, IsADirectoryError, SuspiciousOperation):
            return None  # no file has this name, or could have it: the row is damaged
        except Exception as exc:
            self._failed(exc)
            problem = f"the storage {self._alias!r} did not give back a stored result ({type(exc).__name__})"
            raise CoordinationUnavailable(problem, is_outage=False) from exc

    def delete(self, location: str) -> bool:
        """Delete a file, if it is there; False: the storage did not do it."""
        try:
            self._within(ANSWER_WITHIN, lambda storage: storage.delete(location))
        except (FileNotFoundError, SuspiciousOperation):
            return True  # not every backend passes over what is gone
        except Exception as exc:  # noqa: BLE001  (as for put; the next purge tries again)
            self._failed(exc)
            return False
        return True

    def _within(self, seconds: float, work: Callable[[Storage], T]) -> T:
        """Return what the work returns, or raise what it raises; TimeoutError: it goes on, and nobody waits for it."""
        if self._monotonic() < self._paused_until or not self._places.acquire(timeout=seconds):
            raise TimeoutError
        answer: Future[T] = Future()

        def steps() -> None:
            try:
                answer.set_result(work(storages[self._alias]))
            except BaseException as exc:  # noqa: BLE001  (whoever waits gets it)
                answer.set_exception(exc)
            finally:
                self._places.release()

        # No pool: the interpreter would wait for its threads at exit, one that hangs included.
        try:
            threading.Thread(target=steps, name="singleflight-storage", daemon=True).start()
        except RuntimeError:  # the system gives no thread
            self._places.release()
            raise
        try:
            return answer.result(seconds)
        except TimeoutError:
            if not answer.done():
                self._paused_until = self._monotonic() + PAUSE
            raise

    @staticmethod
    def _failed(exc: Exception) -> None:
        announce(coordination_failed, component="storage", error=type(exc).__name__)


class NoBlobs:
    """Stands in where no storage is configured: every result stays in its row."""

    is_there = False

    def put(self, name: str, payload: bytes) -> str | None:
        """Take nothing."""
        return None

    def get(self, location: str, *, most: int, within: float) -> bytes | None:
        """Say that this process can't know."""
        raise UnknownEnvelope("the stored result lies in a storage, and this process has no BLOB_STORAGE")

    def delete(self, location: str) -> bool:
        """Delete nothing."""
        return False
