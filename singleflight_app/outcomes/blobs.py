"""Results too large for a row, as files of a Django storage: the file system, S3, whatever `STORAGES` names.

What the storage can't take stays in the row; what it can't give just now is no reason to pay for it again.
"""

from django.core.files.base import ContentFile
from django.core.files.storage import Storage, storages

from singleflight_app.domain.exceptions import CoordinationUnavailable, UnknownEnvelope
from singleflight_app.telemetry.signals import announce, coordination_failed


class StorageBlobs:
    """Files of the storage with an alias; implements Blobs."""

    is_there = True

    def __init__(self, alias: str) -> None:
        self._alias = alias

    def put(self, name: str, payload: bytes) -> str | None:
        """Write a file and return the name that it got; None: the storage did not take it."""
        try:
            return self._storage.save(name, ContentFile(payload))
        except Exception as exc:  # noqa: BLE001  (each backend has its own errors, and the row takes the result instead)
            self._failed(exc)
            return None

    def get(self, location: str, *, most: int) -> bytes | None:
        """Return a file, cut off after `most` bytes; None: it is gone. CoordinationUnavailable: no answer."""
        try:
            with self._storage.open(location) as file:
                payload: bytes = file.read(most)
                return payload
        except FileNotFoundError:
            return None
        except Exception as exc:
            self._failed(exc)
            problem = f"the storage {self._alias!r} did not give back a stored result ({type(exc).__name__})"
            raise CoordinationUnavailable(problem, is_outage=False) from exc

    def delete(self, location: str) -> bool:
        """Delete a file, if it is there; False: the storage did not do it."""
        try:
            self._storage.delete(location)
        except Exception as exc:  # noqa: BLE001  (as for put; the next purge tries again)
            self._failed(exc)
            return False
        return True

    @property
    def _storage(self) -> Storage:
        return storages[self._alias]

    @staticmethod
    def _failed(exc: Exception) -> None:
        announce(coordination_failed, component="storage", error=type(exc).__name__)


class NoBlobs:
    """Stands in where no storage is configured: every result stays in its row."""

    is_there = False

    def put(self, name: str, payload: bytes) -> str | None:
        """Take nothing."""
        return None

    def get(self, location: str, *, most: int) -> bytes | None:
        """Say that this process can't know."""
        raise UnknownEnvelope("the stored result lies in a storage, and this process has no BLOB_STORAGE")

    def delete(self, location: str) -> bool:
        """Delete nothing."""
        return False
