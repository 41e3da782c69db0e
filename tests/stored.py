"""What the database holds of a flight that a caller got an outcome of, or a handle."""

from typing import Any

from singleflight_app import FlightHandle, Outcome
from singleflight_app.models import Flight, FlightEvent


def row_of(found: Outcome[Any] | FlightHandle[Any]) -> Flight:
    """Return the flight's row as it is now."""
    assert found.flight_id is not None
    return Flight.objects.get(pk=found.flight_id)


def events_of(found: Outcome[Any] | FlightHandle[Any]) -> list[str]:
    """Return the kinds of the flight's audit rows, oldest first."""
    assert found.flight_id is not None
    return list(FlightEvent.objects.filter(flight_id=found.flight_id).order_by("pk").values_list("kind", flat=True))
