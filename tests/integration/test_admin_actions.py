"""An operator's moves in the admin: asked before, made one commit each, refused without their permission, audited."""

import re
from collections.abc import Callable
from datetime import timedelta
from html import unescape
from typing import TYPE_CHECKING

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client, override_settings
from django.urls import reverse
from django.utils import timezone
from pytest_django.fixtures import Settings

from singleflight_app.admin.moves import MOVES
from singleflight_app.domain.exceptions import CoordinationUnavailable
from singleflight_app.domain.states import Status
from singleflight_app.models import Flight, FlightEvent
from singleflight_app.wiring import Runtime
from tests.rows import flight_row

if TYPE_CHECKING:
    from django.test.client import _MonkeyPatchedWSGIResponse as Answer

# The moves go through the app's own connections, which see only what is committed.
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("empty_tables")]

LIST = "admin:singleflight_flight_changelist"
ALL = ("view_flight", "forget_flight", "expire_lease_flight", "cancel_flight", "retry_flight")
#: An action, its permission, the status of a flight that it moves, and what it leaves in the audit.
EACH = [
    ("forget_flights", "forget_flight", Status.SUCCEEDED, "forgotten"),
    ("expire_leases", "expire_lease_flight", Status.RUNNING, "expired"),
    ("cancel_flights", "cancel_flight", Status.RUNNING, "cancelled"),
    ("retry_flights", "retry_flight", Status.FAILED, "retry_allowed"),
]
Login = Callable[..., Client]


@pytest.fixture
def login() -> Login:
    """Return a client whose staff user has just these permissions."""

    def _login(*codenames: str) -> Client:
        user = User.objects.create_user("mira", is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
        client = Client()
        client.force_login(user)
        return client

    return _login


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Flights whose message was sent; no worker hears them."""
    seen: list[int] = []

    def send(_runtime: Runtime, flight_id: int) -> bool:
        seen.append(flight_id)
        return True

    monkeypatch.setattr(Runtime, "send", send)
    return seen


def _ask(client: Client, action: str, *flights: Flight, **query: str) -> "Answer":
    """Choose flights in the list, and an action."""
    form = {"action": action, "_selected_action": [str(flight.pk) for flight in flights]}
    return client.post(reverse(LIST, query=query) if query else reverse(LIST), form)


def _form(page: "Answer") -> dict[str, str]:
    """Return what the confirmation's form holds."""
    content = page.content.decode().split('id="result_list"')[1]
    fields = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', content)
    return {name: unescape(value) for name, value in fields}


def _confirm(client: Client, action: str, page: "Answer") -> str:
    """Say yes, and return what is said then."""
    form = _form(page)
    assert form["confirmed"] == "yes"
    response = client.post(reverse("admin:singleflight_flight_act", args=[action]), form, follow=True)
    assert response.status_code == 200
    return " ".join(str(message) for message in response.context["messages"])


def _act(client: Client, action: str, *flights: Flight) -> str:
    return _confirm(client, action, _ask(client, action, *flights))


def _page(client: Client, flight: Flight) -> str:
    return client.get(reverse("admin:singleflight_flight_change", args=[flight.pk])).content.decode()


def _buttons(page: str) -> set[str]:
    return set(re.findall(r'formaction="[^"]*/act/(\w+)/"', page))


def _press(client: Client, action: str, flight: Flight) -> "Answer":
    form = {"flights": f"{flight.pk}:{flight.generation}", "from": "page"}
    return client.post(reverse("admin:singleflight_flight_act", args=[action]), form)


@pytest.mark.parametrize(("action", "permission", "status", "kind"), EACH)
def test_a_move_is_confirmed_made_and_audited(
    login: Login, action: str, permission: str, status: Status, kind: str
) -> None:
    """R16: choosing it does nothing; the confirmation lists what was chosen; the audit names the user."""
    flight = flight_row(status=status)
    client = login("view_flight", permission)

    page = _ask(client, action, flight)

    assert (page.status_code, FlightEvent.objects.count()) == (200, 0)
    text = page.content.decode()
    for effect in MOVES[action].effects:
        assert str(effect) in unescape(text)
    assert f">{flight.pk}</a>" in text
    assert flight.stage in text
    _confirm(client, action, page)
    event = FlightEvent.objects.get()
    assert (event.flight_id, event.kind, event.actor, event.generation) == (flight.pk, kind, "mira", flight.generation)


def test_each_move_does_its_own(login: Login, sent: list[int]) -> None:
    """What each leaves in the row, and the sentence that says so."""
    client = login(*ALL)
    forgotten, cancelled, failed = flight_row(), flight_row(status=Status.PENDING), flight_row(status=Status.FAILED)
    expired = flight_row(status=Status.RUNNING)
    pending = flight_row(status=Status.PENDING, arguments={"x": "1"})

    said = [
        _act(client, "forget_flights", forgotten),
        _act(client, "expire_leases", expired),
        _act(client, "cancel_flights", cancelled),
        _act(client, "retry_flights", failed, pending),
    ]

    assert said == [
        "1 of 1 flight forgotten.",
        "Lease expired on 1 of 1 flight.",
        "1 of 1 flight cancelled.",
        "2 of 2 flights may be tried again.",
    ]
    for flight in (forgotten, expired, cancelled, failed, pending):
        flight.refresh_from_db()
    assert forgotten.forgotten
    assert expired.lease_expires_at is not None
    assert (expired.lease_expires_at <= timezone.now(), expired.owner) == (True, "")
    assert (cancelled.status, failed.retryable, sent) == ("cancelled", True, [pending.pk])


def test_what_is_left_alone_is_said_with_the_reason(login: Login) -> None:
    """On the confirmation beforehand, and afterwards with how many."""
    client = login(*ALL)
    running, ended, also = flight_row(status=Status.RUNNING), flight_row(), flight_row(status=Status.CANCELLED)

    page = _ask(client, "cancel_flights", running, ended, also)

    assert page.content.decode().count("it has ended") == 2
    assert _confirm(client, "cancel_flights", page) == "1 of 3 flights cancelled. Left alone: it has ended (2)."


@pytest.mark.parametrize(
    ("action", "columns", "reason"),
    [
        ("forget_flights", {"status": Status.PENDING}, "its call has not begun, and has no outcome yet"),
        ("forget_flights", {"status": Status.CANCELLED}, "it was cancelled, and whoever asks starts anew"),
        ("forget_flights", {"forgotten": True}, "it was forgotten, and whoever asks starts anew"),
        ("forget_flights", {"expires_at": timezone.now()}, "its outcome is past, and whoever asks starts anew"),
        ("expire_leases", {"status": Status.PENDING}, "it has no owner yet"),
        ("expire_leases", {}, "it has ended"),
        ("cancel_flights", {}, "it has ended"),
        ("retry_flights", {}, "it succeeded; forget its outcome to have it called again"),
        ("retry_flights", {"status": Status.RUNNING}, "it still runs"),
        ("retry_flights", {"status": Status.CANCELLED}, "it was cancelled, and whoever asks starts anew"),
        (
            "retry_flights",
            {"status": Status.FAILED, "forgotten": True},
            "it was forgotten, and whoever asks starts anew",
        ),
        (
            "retry_flights",
            {"status": Status.FAILED, "expires_at": timezone.now()},
            "its outcome is past, and whoever asks starts anew",
        ),
        (
            "retry_flights",
            {"status": Status.FAILED, "retryable": True, "retry_at": timezone.now()},
            "whoever asks calls again as it is",
        ),
        (
            "retry_flights",
            {"status": Status.RUNNING, "lease_expires_at": timezone.now()},
            "it runs in the foreground, and whoever waits or asks takes it over",
        ),
    ],
)
def test_a_move_that_would_do_nothing_can_not_be_confirmed(
    login: Login, action: str, columns: dict[str, object], reason: str
) -> None:
    """The page says why, and has no button; a form that comes all the same changes nothing."""
    flight = flight_row(**columns)
    client = login(*ALL)

    page = _ask(client, action, flight)

    assert reason in unescape(page.content.decode())
    assert "There is nothing to do." in page.content.decode()
    form = _form(page)
    assert "confirmed" not in form
    url = reverse("admin:singleflight_flight_act", args=[action])
    response = client.post(url, {**form, "confirmed": "yes"}, follow=True)
    assert f"Left alone: {reason} (1)." in unescape(response.content.decode())
    assert not FlightEvent.objects.exists()
    assert action not in _buttons(_page(client, flight))


def test_a_flight_that_went_on_after_the_page_was_shown_is_left_alone(login: Login) -> None:
    """The move is for what the user saw: another generation is another call, and one that is gone is no call."""
    client = login(*ALL)
    moved, gone, still = (flight_row(status=Status.RUNNING) for _ in range(3))
    page = _ask(client, "cancel_flights", moved, gone, still)
    Flight.objects.filter(pk=moved.pk).update(generation=10_000)
    gone.delete()

    said = _confirm(client, "cancel_flights", page)

    assert said.startswith("1 of 3 flights cancelled. Left alone: ")
    assert "it moved on to another generation after this page was shown (1)" in said
    assert "it is gone (1)" in said
    assert set(Flight.objects.values_list("pk", "status")) == {(moved.pk, "running"), (still.pk, "cancelled")}


@pytest.mark.parametrize("action", [action for action, *_ in EACH])
def test_a_move_is_hidden_and_refused_without_its_permission(login: Login, action: str) -> None:
    """The other three permissions are not enough: not in the list, not on the page, not by a form of one's own."""
    (_, permission, status, _) = next(each for each in EACH if each[0] == action)
    flight = flight_row(status=status)
    client = login(*(name for name in ALL if name != permission))

    listed = client.get(reverse(LIST)).content.decode()
    chosen = client.post(reverse(LIST), {"action": action, "_selected_action": [str(flight.pk)]}, follow=True)
    form = {"flights": f"{flight.pk}:{flight.generation}", "confirmed": "yes"}
    posted = client.post(reverse("admin:singleflight_flight_act", args=[action]), form)

    assert f'value="{action}"' not in listed
    assert action not in _buttons(_page(client, flight))
    assert "No action selected." in chosen.content.decode()
    assert posted.status_code == 403
    assert not FlightEvent.objects.exists()


def test_who_may_not_see_flights_may_not_move_them(login: Login) -> None:
    """A move's permission alone opens nothing; without a login there is the login page."""
    flight = flight_row(status=Status.RUNNING)
    form = {"flights": f"{flight.pk}:{flight.generation}", "confirmed": "yes"}
    url = reverse("admin:singleflight_flight_act", args=["cancel_flights"])

    assert login("cancel_flight").post(url, form).status_code == 403
    assert Client().post(url, form).status_code == 302
    assert not FlightEvent.objects.exists()


def test_a_form_of_another_site_is_refused(login: Login) -> None:
    """CSRF, for asking and for confirming."""
    flight = flight_row(status=Status.RUNNING)
    user = User.objects.create_superuser("noor")
    client = Client(enforce_csrf_checks=True)
    client.force_login(user)
    form = {"flights": f"{flight.pk}:{flight.generation}", "confirmed": "yes"}

    response = client.post(reverse("admin:singleflight_flight_act", args=["cancel_flights"]), form)

    assert response.status_code == 403
    assert 'name="csrfmiddlewaretoken"' in _page(client, flight).split("singleflight-actions")[1].split("</form>")[0]
    assert not FlightEvent.objects.exists()


@pytest.mark.parametrize(
    "flights", ["", "7", "7:1 x", "7:1;drop", "1:" + "9" * 30, " ".join(f"{n}:1" for n in range(1, 1002))]
)
def test_a_form_that_is_none_of_ours_is_refused(admin_client: Client, flights: str) -> None:
    """Bad input: 400, and nothing is done."""
    url = reverse("admin:singleflight_flight_act", args=["cancel_flights"])

    assert admin_client.post(url, {"flights": flights, "confirmed": "yes"}).status_code == 400
    assert admin_client.get(url, {"flights": flights, "confirmed": "yes"}).headers["Location"] == reverse(LIST)
    assert (
        admin_client.post(reverse("admin:singleflight_flight_act", args=["drop"]), {"flights": "1:1"}).status_code
        == 404
    )


def test_what_a_row_holds_is_escaped(login: Login) -> None:
    """A stage's name comes from code, but a table can be written by others."""
    flight = flight_row(stage="<script>alert(1)</script>")

    page = _ask(login(*ALL), "forget_flights", flight).content.decode()

    assert "<script>alert(1)" not in page
    assert "&lt;script&gt;alert(1)" in page


def test_all_that_a_search_found_can_be_chosen(login: Login) -> None:
    """`select all across`: what the confirmation lists is what is moved, however the list changes meanwhile."""
    client = login(*ALL)
    found = [flight_row(scope="tenant-1", status=Status.RUNNING) for _ in range(3)]
    other = flight_row(status=Status.RUNNING)
    form = {"action": "cancel_flights", "_selected_action": [str(found[0].pk)], "select_across": "1"}

    page = client.post(reverse(LIST, query={"q": "tenant-1"}), form)
    late = flight_row(scope="tenant-1", status=Status.RUNNING)
    said = _confirm(client, "cancel_flights", page)

    assert said == "3 of 3 flights cancelled."
    assert set(Flight.objects.filter(status="running")) == {other, late}


def test_more_than_a_move_takes_at_once_is_cut_and_said(login: Login, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand flights at once, no more: each is a commit of its own."""
    monkeypatch.setattr("singleflight_app.admin.actions.ACTION_MAX", 2)
    client = login(*ALL)
    flights = [flight_row(status=Status.RUNNING) for _ in range(3)]

    page = _ask(client, "cancel_flights", *flights)

    assert "More than 2 flights were chosen. Only the first 2 are listed" in page.content.decode()
    assert _confirm(client, "cancel_flights", page) == "2 of 2 flights cancelled."


def test_as_many_flights_as_a_move_takes_go_through_one_form(login: Login) -> None:
    """Django refuses forms of more than a thousand fields; this one has a few, whatever it holds."""
    client = login(*ALL)
    for _ in range(1001):
        flight_row(status=Status.PENDING)
    first = Flight.objects.first()
    assert first is not None
    form = {"action": "cancel_flights", "_selected_action": [str(first.pk)], "select_across": "1"}

    page = client.post(reverse(LIST), form)

    assert len(_form(page)["flights"].split()) == 1000
    assert _confirm(client, "cancel_flights", page) == "1000 of 1000 flights cancelled."


def test_the_list_comes_back_as_it_was(login: Login) -> None:
    """With its view and its search; a form can't send a user elsewhere."""
    client = login(*ALL)
    flight = flight_row(status=Status.RUNNING)
    page = _ask(client, "cancel_flights", flight, view="in_flight")
    assert f'href="{reverse(LIST)}?view=in_flight"' in page.content.decode()
    form = _form(page)
    url = reverse("admin:singleflight_flight_act", args=["cancel_flights"])

    back = client.post(url, form)
    elsewhere = client.post(url, {**form, "filters": "//example.org/?x=\r\ny"})

    assert back.headers["Location"] == f"{reverse(LIST)}?view=in_flight"
    assert elsewhere.headers["Location"].startswith(f"{reverse(LIST)}?")


def test_the_page_of_a_flight_offers_what_would_do_something(login: Login) -> None:
    """By status, for those who may; pressing asks first, and the way back is the page."""
    running, failed, ended = flight_row(status=Status.RUNNING), flight_row(status=Status.FAILED), flight_row()
    client = login(*ALL)
    assert _buttons(_page(client, running)) == {"forget_flights", "expire_leases", "cancel_flights"}
    assert _buttons(_page(client, failed)) == {"forget_flights", "retry_flights"}
    assert _buttons(_page(client, ended)) == {"forget_flights"}

    page = _press(client, "cancel_flights", running)

    assert not FlightEvent.objects.exists()
    assert _confirm(client, "cancel_flights", page) == "1 of 1 flight cancelled."
    back = client.post(reverse("admin:singleflight_flight_act", args=["cancel_flights"]), _form(page))
    assert back.headers["Location"] == reverse("admin:singleflight_flight_change", args=[running.pk])
    assert FlightEvent.objects.get(kind="cancelled").actor == "mira"


def test_a_page_without_moves_has_no_form_for_them(login: Login) -> None:
    """Who may only look sees no button."""
    page = _page(login("view_flight"), flight_row(status=Status.RUNNING))

    assert "singleflight-actions" not in page


def test_servers_that_do_not_answer_stop_a_move_with_a_sentence(login: Login, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was done before stays done and is counted; the rest is not tried."""
    client = login(*ALL)
    flights = [flight_row(status=Status.RUNNING) for _ in range(3)]
    cancel = Runtime.cancel
    tried: list[int] = []

    def cancel_once(runtime: Runtime, flight_id: int, *, actor: str, generation: int | None = None) -> bool:
        tried.append(flight_id)
        if len(tried) > 1:
            raise CoordinationUnavailable("PostgreSQL is out of reach: gone")
        return cancel(runtime, flight_id, actor=actor, generation=generation)

    monkeypatch.setattr(Runtime, "cancel", cancel_once)

    said = _act(client, "cancel_flights", *flights)

    assert said == "Stopped: PostgreSQL is out of reach: gone 1 of 3 flights cancelled."
    assert (len(tried), Flight.objects.filter(status="cancelled").count()) == (2, 1)


def test_a_broker_that_is_away_is_said(login: Login, monkeypatch: pytest.MonkeyPatch) -> None:
    """The row is the queue: the sweep sends again."""
    monkeypatch.setattr(Runtime, "send", lambda _runtime, _flight_id: False)
    flight = flight_row(status=Status.PENDING, arguments={"x": "1"})

    said = _act(login(*ALL), "retry_flights", flight)

    assert f"Stopped: flight {flight.pk} waits in its queue, but no broker took its message" in said


def test_local_mode_offers_no_move(login: Login, settings: Settings) -> None:
    """The table's flights are none of this process's memory; a form that comes all the same is told so."""
    flight = flight_row(status=Status.RUNNING)
    client = login(*ALL)
    page = _ask(client, "cancel_flights", flight)
    settings.SINGLEFLIGHT = {**settings.SINGLEFLIGHT, "MODE": "local"}

    assert "cancel_flights" not in client.get(reverse(LIST)).content.decode()
    assert _buttons(_page(client, flight)) == set()
    assert "Stopped: this needs PostgreSQL" in _confirm(client, "cancel_flights", page)
    assert not FlightEvent.objects.exists()


@pytest.mark.parametrize("use_tz", [True, False])
def test_ages_are_the_databases(login: Login, *, use_tz: bool) -> None:
    """USE_TZ on or off: no clock of this process enters."""
    with override_settings(USE_TZ=use_tz):
        flight = flight_row(status=Status.PENDING)
        Flight.objects.filter(pk=flight.pk).update(created_at=timezone.now() - timedelta(hours=3, minutes=1))

        assert "<td>3 h 1 min</td>" in _ask(login(*ALL), "cancel_flights", flight).content.decode()
