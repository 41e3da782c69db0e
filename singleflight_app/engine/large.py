"""Results too large for a row: their bytes go to a storage before the settle, and the row keeps the name.

A name is noted in the database before anything is written under it, so that a crash leaves no file that nobody
knows of: what no row names any more, a purge deletes.
"""

import logging
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from singleflight_app.domain.exceptions import CoordinationUnavailable, ResultUnreadable
from singleflight_app.domain.flight import NO_RESULT, Settled, StoredResult
from singleflight_app.domain.policy import StagePolicy
from singleflight_app.engine.heartbeat import Lease
from singleflight_app.engine.ports import BlobNotes, Blobs
from singleflight_app.engine.rim import Rim
from singleflight_app.telemetry.signals import announce, coordination_failed

logger = logging.getLogger("singleflight_app")

ORPHAN_GRACE = 600.0  #: seconds that a file stays whose owner was fenced: it may still be writing
LEAST_WAIT = 1.0  #: seconds for a stored result of a caller whose wait budget is over, but which is there


class LargeResults:
    """Puts results of one process out of their rows, and fetches anybody's."""

    def __init__(self, notes: BlobNotes, blobs: Blobs) -> None:
        self._notes, self._blobs = notes, blobs

    def is_too_large(self, policy: StagePolicy, settled: Settled) -> bool:
        """Tell whether a result belongs into the storage."""
        result = settled.result
        return result is not None and self._blobs.is_there and len(result.payload) > policy.store_over_bytes

    def put_out(self, lease: Lease, settled: Settled) -> Settled:
        """Write a large result to the storage and return the end with its name; what it can't take stays in the row."""
        result = settled.result or NO_RESULT
        digest = lease.key.digest.hex()
        # The random part: another database may share the storage, and count its generations as well.
        name = f"singleflight/{digest[:2]}/{digest[:16]}-{lease.generation}-{secrets.token_hex(8)}"
        location = self._note(lease, name) and self._blobs.put(name, result.payload)
        if location is None:
            return settled
        if location != name and self._note(lease, location) is None:
            self._blobs.delete(location)
            return settled
        return replace(settled, result=result._replace(location=location))

    def _note(self, lease: Lease, name: str) -> str | None:
        """Note a name and return it; None: the database did not take it, and the result must go into the row."""
        try:
            self._notes.note(lease.flight_id, lease.generation, name)
        except CoordinationUnavailable:
            return None  # the settle finds the same, and keeps the end until the database is back
        except Exception as exc:
            # PostgreSQL refused it: a storage may give any name. The answer is paid for, whatever its file is called.
            logger.exception("the name of a file of %s could not be noted", lease.key)
            announce(coordination_failed, component="storage", error=type(exc).__name__)
            return None
        return name

    async def fetched(self, rim: Rim, settled: Settled, *, within: float) -> Settled:
        """Return an end with its result at hand; CoordinationUnavailable: the storage gave no answer in time.

        A result whose file is gone stays without its bytes, which is unreadable.
        """
        result = settled.result
        if result is None or not result.location or result.payload:
            return settled
        payload = await rim.do(partial(self._get, result, max(within, LEAST_WAIT)), is_slow=True)
        return replace(settled, result=result._replace(payload=payload or b""))

    def at_hand(self, result: StoredResult, *, within: float) -> StoredResult:
        """Return a result with its bytes, for a person who has `within` seconds; ResultUnreadable: its file is gone."""
        if not result.location or result.payload:
            return result
        payload = self._get(result, within)
        if payload is None:
            raise ResultUnreadable(f"the file {result.location!r} of the stored result is gone from the storage")
        return result._replace(payload=payload)

    def _get(self, result: StoredResult, within: float) -> bytes | None:
        # Neither compression nor a seal makes it much longer.
        most = result.size + result.size // 100 + 1000
        return self._blobs.get(result.location, most=most, within=within)

    def discard(self, settled: Settled) -> None:
        """Delete what was written for an end that was refused."""
        if settled.result is not None and settled.result.location:
            self.remove([settled.result.location])

    def remove(self, locations: Sequence[str]) -> int:
        """Delete files, then their notes, and return how many; what can't be deleted now is left for a purge."""
        gone = [location for location in locations if self._blobs.delete(location)]
        if gone:
            try:
                self._notes.erase(gone)
            except CoordinationUnavailable:
                return 0  # the next purge deletes them once more, which is harmless
        return len(gone)

    def remove_orphans(self, batch_size: int) -> Iterator[int]:
        """Delete the files of fenced, dead and replaced owners, and yield how many after each batch."""
        after = 0
        while self._blobs.is_there:
            found = self._notes.noted(after=after, grace=ORPHAN_GRACE, limit=batch_size)
            yield self.remove([blob.location for blob in found if not blob.is_needed])
            if len(found) < batch_size:
                return
            after = found[-1].blob_id  # one that can't be deleted now does not hold up the others
