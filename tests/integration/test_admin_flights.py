"""The admin pages of flights with real rows: what they show, to whom, and what the actions do."""

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from singleflight_app.domain.states import Status
from singleflight_app.models import Flight, FlightEvent
from tests.rows import flight_row, stat_row
from tests.staff import staff

# The actions go through the app's own connections, which see only what is committed.
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("empty_tables")]

LIST = "admin:singleflight_flight_changelist"


def _page(client: Client, name: str, *args: object, **query: str) -> str:
    response = client.get(reverse(name, args=args), query)
    assert response.status_code == 200, response
    return response.content.decode()


def _act(client: Client, action: str, *flights: Flight) -> str:
    chosen = {"action": action, "_selected_action": [str(flight.pk) for flight in flights]}
    response = client.post(reverse(LIST), chosen, follow=True)
    assert response.status_code == 200
    return " ".join(str(message) for message in response.context["messages"])


def test_nothing_can_be_added_changed_or_deleted(admin_client: Client) -> None:
    """Not even by a superuser: flights move by the protocol alone."""
    flight = flight_row()

    add = admin_client.get(reverse("admin:singleflight_flight_add"))
    delete = admin_client.post(reverse("admin:singleflight_flight_delete", args=[flight.pk]), {"post": "yes"})
    change = admin_client.post(reverse("admin:singleflight_flight_change", args=[flight.pk]), {"status": "failed"})

    assert (add.status_code, delete.status_code, change.status_code) == (403, 403, 403)
    assert "delete_selected" not in _page(admin_client, LIST)
    assert Flight.objects.get().status == Status.SUCCEEDED


def test_pages_need_the_view_permission() -> None:
    """A staff user without it is refused."""
    flight = flight_row()
    client = staff()

    assert client.get(reverse(LIST)).status_code == 403
    assert client.get(reverse("admin:singleflight_flight_change", args=[flight.pk])).status_code == 403


def test_forget_drops_outcomes_and_leaves_the_users_name() -> None:
    """The message says how many there were to drop."""
    flight, cancelled = flight_row(), flight_row(status=Status.CANCELLED)

    said = _act(staff("view_flight", "forget_flight"), "forget_flights", flight, cancelled)

    assert said == "1 of 2 flights forgotten; the others had no outcome to drop."
    assert set(Flight.objects.values_list("pk", "forgotten")) == {(flight.pk, True), (cancelled.pk, False)}
    event = FlightEvent.objects.get()
    assert (event.flight_id, event.kind, event.actor) == (flight.pk, "forgotten", "mira")


def test_expire_lease_lets_the_next_caller_take_over() -> None:
    """Of running flights only."""
    running, settled = flight_row(status=Status.RUNNING), flight_row()

    said = _act(staff("view_flight", "expire_lease_flight"), "expire_leases", running, settled)

    assert said == "Leases expired on 1 of 2 flights; the others were not running."
    running.refresh_from_db()
    assert running.lease_expires_at is not None
    assert running.lease_expires_at <= timezone.now()
    event = FlightEvent.objects.get()
    assert (event.flight_id, event.kind, event.actor) == (running.pk, "expired", "mira")


@pytest.mark.parametrize(
    ("action", "permission"),
    [("forget_flights", "forget_flight"), ("expire_leases", "expire_lease_flight")],
)
def test_an_action_is_hidden_and_refused_without_its_permission(action: str, permission: str) -> None:
    """The other action's permission is not enough."""
    flight = flight_row(status=Status.RUNNING)
    client = staff("view_flight", *({"forget_flight", "expire_lease_flight"} - {permission}))

    page = _page(client, LIST)
    said = _act(client, action, flight)

    assert f'value="{action}"' not in page
    assert said == "No action selected."
    assert not FlightEvent.objects.exists()


def test_stage_statistics_are_a_list_to_read() -> None:
    """By stage and hour, newest first; there is nothing to change."""
    stat_row(stage="final-report", requests=41, calls=7, tokens_saved=123_457)
    client = staff("view_stagestat")

    page = _page(client, "admin:singleflight_stagestat_changelist")

    assert "final-report" in page
    assert "123457" in page
    assert client.get(reverse("admin:singleflight_stagestat_add")).status_code == 403
