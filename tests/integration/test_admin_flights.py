"""The admin pages of flights with real rows: to whom they are shown, and that nothing on them can be changed."""

import pytest
from django.test import Client
from django.urls import reverse

from singleflight_app.domain.states import Status
from singleflight_app.models import Flight
from tests.rows import flight_row, stat_row
from tests.staff import staff

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("empty_tables")]

LIST = "admin:singleflight_flight_changelist"


def _page(client: Client, name: str, *args: object, **query: str) -> str:
    response = client.get(reverse(name, args=args), query)
    assert response.status_code == 200, response
    return response.content.decode()


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


def test_stage_statistics_are_a_list_to_read() -> None:
    """By stage and hour, newest first; there is nothing to change."""
    stat_row(stage="final-report", requests=41, calls=7, tokens_saved=123_457)
    client = staff("view_stagestat")

    page = _page(client, "admin:singleflight_stagestat_changelist")

    assert "final-report" in page
    assert "123457" in page
    assert client.get(reverse("admin:singleflight_stagestat_add")).status_code == 403
