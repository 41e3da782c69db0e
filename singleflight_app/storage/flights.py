"""The PostgreSQL store: each method is one named statement of queries.sql with types."""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any

from psycopg.types.json import Jsonb

from singleflight_app.domain.exceptions import seconds
from singleflight_app.domain.flight import BY_HAND, NO_RESULT, Failure, Settled
from singleflight_app.domain.keys import FlightKey
from singleflight_app.domain.policy import StagePolicy
from singleflight_app.domain.records import (
    Beat,
    ExpiredFlight,
    FlightSnapshot,
    Forgotten,
    Full,
    LeaseState,
    StoredArguments,
)
from singleflight_app.domain.states import Claim
from singleflight_app.storage.pool import Database, Rows
from singleflight_app.storage.queries import query

_KINDS = {Claim.OWNER_TAKEOVER: "taken_over", Claim.OWNER_RETRY: "retried"}
_NO_FAILURE = Failure("", "", retryable=False)


class PostgresFlights:
    """Flight rows in the table `singleflight_flight`; implements FlightStore and FlightQueue."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def claim(
        self, key: FlightKey, *, label: str, owner: str, policy: StagePolicy, trace_parent: str = ""
    ) -> tuple[bool, FlightSnapshot] | Full | None:
        """Insert a running row, or return the visible one; None: a rival committed meanwhile, ask again."""
        parameters = {**_of_key(key, label), "owner": owner, "lease": policy.lease, "trace_parent": trace_parent}
        if policy.max_concurrency is None:
            return _claimed(self._run("claim_flight", parameters))
        is_free, is_new, *row = self._run_in_room("claim_flight_in_room", parameters, key.stage, policy)
        if is_new is None:
            return None if is_free else Full.of("max_concurrency", key.stage, policy)
        return is_new, FlightSnapshot._make(row)

    def find(self, digest: bytes) -> FlightSnapshot | None:
        """Return the key's row, or None when there is none."""
        rows = self._run("find_flight", {"digest": digest})
        return FlightSnapshot._make(rows[0]) if rows else None

    def submit(self, key: FlightKey, *, label: str, arguments: Mapping[str, str]) -> tuple[bool, FlightSnapshot] | None:
        """Insert a pending row, or return the visible one; None: a rival committed meanwhile, ask again."""
        return _claimed(self._run("submit_flight", {**_of_key(key, label), "arguments": Jsonb(dict(arguments))}))

    def grant(
        self,
        row: FlightSnapshot,
        claim: Claim,
        *,
        owner: str,
        stage: str,
        policy: StagePolicy,
        starts_pending: bool = False,
        is_fresh: bool = False,
        trace_parent: str = "",
    ) -> FlightSnapshot | Full | None:
        """Grant a new generation over `row`; None: the row moved, or another caller is moving it."""
        pending_timeout = seconds(policy.pending_timeout)
        parameters = {
            **_open_flight(row, pending_timeout=pending_timeout, starts_pending=starts_pending, is_fresh=is_fresh),
            "owner": owner,
            "lease": policy.lease,
            "again": claim in _KINDS,
            "kind": _KINDS.get(claim, "granted"),
            "trace_parent": trace_parent,
        }
        if policy.max_concurrency is None:
            rows = self._run("grant_flight", parameters)
            return FlightSnapshot._make(rows[0]) if rows else None
        is_free, *granted = self._run_in_room("grant_flight_in_room", parameters, stage, policy)
        if granted[0] is None:
            return None if is_free else Full.of("max_concurrency", stage, policy)
        return FlightSnapshot._make(granted)

    def queue(
        self,
        row: FlightSnapshot,
        *,
        kind: str,
        policy: StagePolicy,
        arguments: Mapping[str, str] | None = None,
        grace: float = 0.0,
        is_fresh: bool = False,
        actor: str = "",
    ) -> FlightSnapshot | None:
        """Make a settled or expired flight pending again; None: it moved meanwhile."""
        stored = None if arguments is None else Jsonb(dict(arguments))
        pending_timeout = seconds(policy.pending_timeout)
        is_open = _open_flight(row, grace=grace, pending_timeout=pending_timeout, is_fresh=is_fresh)
        rows = self._run("queue_flight", {**is_open, "kind": kind, "arguments": stored, "actor": actor})
        return FlightSnapshot._make(rows[0]) if rows else None

    def read(self, flight_id: int) -> FlightSnapshot | None:
        """Return the row, or None when it is gone."""
        rows = self._run("read_flight", {"flight_id": flight_id})
        return FlightSnapshot._make(rows[0]) if rows else None

    def poll(self, flight_ids: Collection[int]) -> list[LeaseState]:
        """Return where these flights are; one that is gone is missing."""
        return [LeaseState._make(row) for row in self._run("poll_flights", {"flight_ids": list(flight_ids)})]

    def renew(self, beats: Sequence[Beat], *, owner: str) -> set[int]:
        """Renew leases in one statement; the ids that come back were renewed."""
        columns = {
            "flight_ids": [beat.flight_id for beat in beats],
            "generations": [beat.generation for beat in beats],
            "leases": [beat.lease for beat in beats],
            "progress": [None if beat.progress is None else Jsonb(beat.progress._asdict()) for beat in beats],
        }
        return {row[0] for row in self._run("renew_leases", {**columns, "owner": owner})}

    def settle(self, settled: Settled, *, owner: str, ttl: float) -> bool | None:
        """Write the end of a generation; None: refused, or stored by a try whose reply was lost."""
        result = settled.result or NO_RESULT
        failure = settled.failure or _NO_FAILURE
        rows = self._run(
            "settle_flight",
            {
                "flight_id": settled.flight_id,
                "generation": settled.generation,
                "owner": owner,
                "status": settled.status.value,
                "ttl": ttl,
                "payload": result.payload if settled.result and not result.location else None,
                "location": result.location,
                "encoding": result.encoding,
                "checksum": result.checksum if settled.result else None,
                "size": result.size if settled.result else failure.size or None,
                "error_type": failure.error_type,
                "error_message": failure.message,
                "retryable": failure.retryable,
                "retry_after": failure.retry_after,
                "retries": settled.retries,
                "model": settled.usage.model,
                "input_tokens": settled.usage.input_tokens,
                "output_tokens": settled.usage.output_tokens,
                "cost": settled.usage.cost,
            },
        )
        return bool(rows[0][0]) if rows else None

    def record_fence(self, flight_id: int, generation: int, *, owner: str) -> None:
        """Leave the audit row of a refused settle, once per generation."""
        self._run("record_fence", {"flight_id": flight_id, "generation": generation, "owner": owner})

    def lose(self, flight_id: int, generation: int, *, ttl: float, message: str, grace: float = 0.0) -> bool:
        """Settle an expired flight as lost; False: it moved, or another caller is moving it."""
        return bool(
            self._run(
                "lose_flight",
                {
                    "flight_id": flight_id,
                    "generation": generation,
                    "ttl": ttl,
                    "grace": grace,
                    "message": message,
                },
            )
        )

    def forget(
        self,
        *,
        digest: bytes | None = None,
        flight_id: int | None = None,
        generation: int | None = None,
        actor: str = "",
    ) -> Forgotten | None:
        """Mark an outcome as forgotten; None: there is none to drop."""
        rows = self._run(
            "forget_flight",
            {"digest": digest, "flight_id": flight_id, "generation": generation, "actor": actor},
        )
        return Forgotten._make(rows[0]) if rows else None

    def expire_lease(self, flight_id: int, generation: int, *, actor: str) -> Forgotten | None:
        """End the lease of a running generation by hand; None: it is not running."""
        rows = self._run("expire_lease", {"flight_id": flight_id, "generation": generation, "actor": actor})
        return Forgotten._make(rows[0]) if rows else None

    def cancel(self, flight_id: int, generation: int, *, actor: str, ttl: float) -> Forgotten | None:
        """End a pending or running generation by hand; None: it has ended otherwise, or moved."""
        parameters = {"flight_id": flight_id, "generation": generation, "actor": actor}
        rows = self._run("cancel_flight", {**parameters, "ttl": ttl, "message": BY_HAND.message})
        return Forgotten._make(rows[0]) if rows else None

    def allow_retry(self, flight_id: int, generation: int, *, actor: str) -> Forgotten | None:
        """Let whoever asks next call again after a failure; None: it is past, forgotten or replaced."""
        rows = self._run("allow_retry", {"flight_id": flight_id, "generation": generation, "actor": actor})
        return Forgotten._make(rows[0]) if rows else None

    def send_again(self, flight_id: int, generation: int, *, actor: str) -> bool:
        """Mark a pending generation as sent again; False: it needs no worker any more."""
        return bool(self._run("send_again", {"flight_id": flight_id, "generation": generation, "actor": actor}))

    def expired(self, limit: int) -> list[ExpiredFlight]:
        """Return running flights whose lease is over, oldest first."""
        return [ExpiredFlight._make(row) for row in self._run("expired_flights", {"limit": limit})]

    def unsent(self, *, spacing: float, limit: int) -> list[int]:
        """Mark pending flights as sent again and return their ids."""
        return [row[0] for row in self._run("unsent_flights", {"spacing": spacing, "limit": limit})]

    def arguments(self, flight_id: int) -> StoredArguments | None:
        """Return what a worker needs to run a flight; None: it needs none any more."""
        rows = self._run("stored_arguments", {"flight_id": flight_id})
        return StoredArguments._make(rows[0]) if rows else None

    def may_take_over(self, lease: float) -> bool:
        """Tell whether this process has had the server in reach for one lease (rule R18)."""
        return self._database.was_reachable_for(lease)

    def close(self) -> None:
        """Close the pool."""
        self._database.close()

    def _run(self, name: str, parameters: Mapping[str, Any]) -> Rows:
        return self._database.run(query(name), parameters)

    def _run_in_room(
        self, name: str, parameters: Mapping[str, Any], stage: str, policy: StagePolicy
    ) -> tuple[Any, ...]:
        """Run a grant that counts the stage's running calls first, behind the lock that makes the count exact."""
        lock = {"stage_lock": _stage_lock(stage)}
        counted = {**parameters, "stage": stage, "most": policy.max_concurrency}
        return self._database.run(query(name), counted, after=(query("lock_stage"), lock))[0]


def _of_key(key: FlightKey, label: str) -> dict[str, Any]:
    return {"digest": key.digest, "stage": key.stage, "scope": key.scope, "label": label}


def _claimed(rows: Rows) -> tuple[bool, FlightSnapshot] | None:
    return (rows[0][0], FlightSnapshot._make(rows[0][1:])) if rows else None


@lru_cache(maxsize=1000)
def _stage_lock(stage: str) -> int:
    """Return the number of a stage's advisory lock: the same in every process, and hardly anybody else's."""
    digest = hashlib.sha256(f"singleflight_app.stage:{stage}".encode()).digest()
    return int.from_bytes(digest[:8], signed=True)


def _open_flight(
    row: FlightSnapshot,
    *,
    grace: float = 0.0,
    pending_timeout: float = 0.0,
    starts_pending: bool = False,
    is_fresh: bool = False,
) -> dict[str, Any]:
    return {
        "flight_id": row.flight_id,
        "generation": row.generation,
        "status": row.status,
        "grace": grace,
        "pending_timeout": pending_timeout,
        "starts_pending": starts_pending,
        "is_fresh": is_fresh,
    }
