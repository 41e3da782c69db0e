"""What the page of a flight shows beside its columns: its state in a sentence, its timeline, its audit rows."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django.utils import timezone

from singleflight_app.admin import sentences, timeline
from singleflight_app.admin.timeline import Move, Present
from singleflight_app.domain.states import LIVE, Status
from singleflight_app.models import FlightEvent
from singleflight_app.storage import selectors


def page_context(flight: Any, *, may_read: bool) -> dict[str, Any]:  # noqa: ANN401  (with what `selectors.flights` adds)
    """Return the context of the page; `may_read`: its reader may read the result."""
    events = list(selectors.events_of(flight.pk))
    # Arguments wait with a flight until it has ended, its result is there from then on.
    has_content = flight.status in LIVE or flight.status == Status.SUCCEEDED
    return {
        "badge": sentences.badge_of(flight),
        "meaning": sentences.meaning(flight),
        "saved": sentences.saved(flight),
        "events": events,
        "is_cut": len(events) >= selectors.EVENTS_SHOWN,
        "picture": timeline.picture(list(_moves(reversed(events))), _present(flight)),
        "has_content": may_read and has_content,
    }


def _moves(events: Iterable[FlightEvent]) -> Iterable[Move]:
    for event in events:
        yield Move(event.kind, event.generation, event.owner, _local(event.at), event.actor, event.detail)


def _present(flight: Any) -> Present | None:  # noqa: ANN401
    if Status(flight.status).is_settled:
        return None
    is_running = flight.status == Status.RUNNING
    return Present(
        now=_local(flight.seen_at),
        generation=flight.generation,
        owner=flight.owner,
        since=_local((is_running and flight.started_at) or flight.created_at),
        heartbeat_at=_local(flight.heartbeat_at) if flight.heartbeat_at else None,
        lease_expires_at=_local(flight.lease_expires_at) if is_running else None,
    )


def _local(at: datetime) -> datetime:
    """Return a time as the admin shows it; with USE_TZ off it is so already."""
    return timezone.localtime(at) if timezone.is_aware(at) else at
