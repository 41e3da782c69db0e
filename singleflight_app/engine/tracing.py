"""What the spans of a claim and of a wait tell, once it is known what came of it."""

from singleflight_app.domain.records import FlightSnapshot
from singleflight_app.domain.states import Layer, Role
from singleflight_app.engine.call import Follow, Found, Granted
from singleflight_app.engine.claiming import Step
from singleflight_app.engine.local import LocalFlight
from singleflight_app.engine.ports import Span


def tell_claim(span: Span, step: Step) -> None:
    """Say what the claim made of its caller; the span of one that was granted goes on as the call's."""
    if isinstance(step, Granted):
        span.become_call()
        span.tell(role=Role.OWNER, layer=Layer.CALL, flight_id=step.row.flight_id, generation=step.row.generation)
        return
    if isinstance(step, Found):
        end = step.settled
        span.link(end.trace_parent)
        span.tell(
            role=Role.REPLAY,
            layer=Layer.DATABASE,
            flight_id=end.flight_id,
            generation=end.generation,
            status=end.status,
        )
    elif isinstance(step, Follow) and step.row is not None:
        row = step.row
        span.tell(role=Role.FOLLOWER, flight_id=row.flight_id, generation=row.generation, status=row.status)
    span.end()


def tell_followed(span: Span, row: FlightSnapshot) -> None:
    """Say which call of another process is waited for."""
    span.link(row.trace_parent)
    span.tell(role=Role.FOLLOWER, layer=Layer.DATABASE, flight_id=row.flight_id, generation=row.generation)


def tell_shared(span: Span, flight: LocalFlight) -> None:
    """Say which call this process's leader made, followed or found, as far as it came."""
    end = None if flight.shared is None else flight.shared.settled
    span.link((end and end.trace_parent) or flight.trace_parent)
    span.tell(
        role=Role.FOLLOWER,
        layer=Layer.PROCESS,
        flight_id=flight.flight_id if end is None else end.flight_id,
        generation=flight.generation if end is None else end.generation,
        status=None if end is None else end.status,
    )
