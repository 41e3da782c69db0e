"""Rows for tests, as the protocol would have left them; each column can be given."""

import gzip
import hashlib
import itertools
from datetime import timedelta
from typing import Any

from django.utils import timezone

from singleflight_app.domain.records import FlightSnapshot, Full
from singleflight_app.domain.states import Status
from singleflight_app.models import Flight, FlightEvent, StageStat

_numbers = itertools.count(1)


def flight_row(**columns: object) -> Flight:
    """Store and return a flight: by default one that succeeded a minute ago and expires in an hour."""
    number = next(_numbers)
    status = Status(str(columns.get("status", Status.SUCCEEDED)))
    now = timezone.now()
    defaults: dict[str, Any] = {
        "digest": hashlib.sha256(f"row {number}".encode()).digest(),
        "stage": "interview-score",
        "scope": f"interview:{number}",
        "status": status.value,
        "generation": number,
        "owner": "node-a:100:abc",
        "attempts": 1,
        "started_at": now - timedelta(seconds=70),
    }
    if status is Status.RUNNING:
        defaults |= {"lease_expires_at": now + timedelta(seconds=30), "heartbeat_at": now}
    if status.is_settled:
        defaults |= {"settled_at": now - timedelta(minutes=1), "expires_at": now + timedelta(hours=1)}
    return Flight.objects.create(**{**defaults, **columns})


def result_columns(text: str, *, encoding: str = "1/json/gzip") -> dict[str, Any]:
    """Return the columns of a stored result whose JSON text is `text`."""
    raw = text.encode()
    payload = gzip.compress(raw) if encoding.endswith("/gzip") else raw
    return {
        "result": payload,
        "encoding": encoding,
        "checksum": hashlib.sha256(raw).digest(),
        "size": len(raw),
    }


def event_row(flight: Flight, **columns: object) -> FlightEvent:
    """Store and return an audit row of a flight."""
    defaults: dict[str, Any] = {
        "flight_id": flight.pk,
        "digest": flight.digest,
        "stage": flight.stage,
        "generation": flight.generation,
        "kind": "granted",
        "owner": flight.owner,
    }
    return FlightEvent.objects.create(**{**defaults, **columns})


def stat_row(**columns: object) -> StageStat:
    """Store and return the ledger's row of a stage and hour."""
    hour = timezone.now().replace(minute=0, second=0, microsecond=0)
    return StageStat.objects.create(**{"stage": "interview-score", "hour": hour, **columns})


def row_in(answer: tuple[bool, FlightSnapshot] | Full | None) -> FlightSnapshot:
    """Return the row that a claim brought."""
    assert isinstance(answer, tuple), f"no row: {answer}"
    return answer[1]


def granted_in(answer: FlightSnapshot | Full | None) -> FlightSnapshot:
    """Return the row that a grant brought."""
    assert isinstance(answer, FlightSnapshot), f"not granted: {answer}"
    return answer
