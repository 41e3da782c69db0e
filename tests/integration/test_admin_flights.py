"""The admin pages of flights with real rows: what they show, to whom, and what the actions do."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from singleflight_app.domain.states import Status
from singleflight_app.models import Flight
from singleflight_app.storage import selectors
from tests.rows import event_row, flight_row, result_columns, stat_row

# The actions go through the app's own connections, which see only what is committed.
pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("empty_tables")]

LIST = "admin:singleflight_flight_changelist"
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


def _page(client: Client, name: str, *args: object, **query: str) -> str:
    response = client.get(reverse(name, args=args), query)
    assert response.status_code == 200, response
    return response.content.decode()


def _listed(client: Client, **query: str) -> set[int]:
    response = client.get(reverse(LIST), query)
    assert response.status_code == 200
    return {flight.pk for flight in response.context["cl"].result_list}


def test_the_views_divide_flights_by_their_end(login: Login) -> None:
    """In flight: pending or running; failed: an error or a time-out; a cancelled one is in the full list."""
    rows = {status: flight_row(status=status).pk for status in Status}
    client = login("view_flight")

    assert _listed(client, view="in_flight") == {rows[Status.PENDING], rows[Status.RUNNING]}
    assert _listed(client, view="succeeded") == {rows[Status.SUCCEEDED]}
    assert _listed(client, view="failed") == {rows[Status.FAILED], rows[Status.TIMED_OUT]}
    assert _listed(client) == set(rows.values())


def test_the_list_tells_owner_and_heartbeat_age(login: Login) -> None:
    """The age is by the database clock, and only while somebody should be beating."""
    flight_row(status=Status.RUNNING, owner="node-b:7:fe", heartbeat_at=timezone.now() - timedelta(seconds=90))
    flight_row(status=Status.SUCCEEDED, heartbeat_at=timezone.now() - timedelta(days=4))

    page = _page(login("view_flight"), LIST)

    assert "node-b:7:fe" in page
    assert page.count(" s</td>") == 1
    assert ">9" in page.split("field-heartbeat_age")[2]


def test_the_list_reads_neither_results_nor_arguments(login: Login) -> None:
    """A page of large results would be megabytes."""
    flight_row(**result_columns('"x"'))
    client = login("view_flight")

    with CaptureQueriesContext(
        connection,
    ) as queries:
        _listed(client)

    from_flights = [query["sql"] for query in queries if 'FROM "singleflight_flight"' in query["sql"]]
    assert from_flights
    assert not [sql for sql in from_flights if '"result"' in sql or '"arguments"' in sql]


def test_search_finds_by_id_digest_and_scope(login: Login) -> None:
    """Each exactly; a part of a scope finds nothing."""
    flight, other = flight_row(scope="interview:77"), flight_row(scope="interview:778")
    client = login("view_flight")

    assert _listed(client, q=str(flight.pk)) == {flight.pk}
    assert _listed(client, q=other.digest_hex.upper()) == {other.pk}
    assert _listed(client, q=" interview:77 ") == {flight.pk}
    assert _listed(client, q="interview") == set()
    assert _listed(client, q="9" * 30) == set()


def test_search_stays_within_a_view(login: Login) -> None:
    """A scope may have flights of every status."""
    failed = flight_row(scope="tenant-1", status=Status.FAILED)
    flight_row(scope="tenant-1")

    assert _listed(login("view_flight"), q="tenant-1", view="failed") == {failed.pk}


def test_an_old_live_flight_is_found_by_its_scope(login: Login, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settled ones only among the newest, for there is no index on the scope."""
    monkeypatch.setattr(selectors, "SEARCH_DEPTH", 1)
    live, _settled = flight_row(scope="s", status=Status.RUNNING), flight_row(scope="s")
    newest = flight_row(scope="s")

    assert _listed(login("view_flight"), q="s") == {live.pk, newest.pk}


@pytest.mark.parametrize("lookup", ["error_message__contains", "result__gt", "status", "scope__startswith", "id__gt"])
def test_filters_by_url_are_refused(login: Login, lookup: str) -> None:
    """They would scan the table, and tell a result to those who may not read it, bit by bit."""
    flight_row()

    response = login("view_flight").get(reverse(LIST), {lookup: "1"})

    assert response.status_code == 400


def test_a_large_table_is_counted_by_estimate(login: Login, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit the planner's number is taken; no statement counts the whole table."""
    monkeypatch.setattr(selectors, "EXACT_COUNT_MAX", 3)
    for _ in range(8):
        flight_row()
    with connection.cursor() as cursor:
        cursor.execute("analyze singleflight_flight")
    client = login("view_flight")

    with CaptureQueriesContext(connection) as queries:
        response = client.get(reverse(LIST))

    assert response.context["cl"].result_count == 8
    counts = [query["sql"] for query in queries if "COUNT(*)" in query["sql"] and "singleflight" in query["sql"]]
    assert counts
    assert all("LIMIT 4" in sql for sql in counts)


def test_the_last_page_is_one_that_is_reached_quickly(login: Login, monkeypatch: pytest.MonkeyPatch) -> None:
    """OFFSET walks what it skips; what is deeper is found by search."""
    monkeypatch.setattr("singleflight_app.admin.flights.LAST_PAGE_MAX", 2)
    monkeypatch.setattr("singleflight_app.admin.flights.FlightAdmin.list_per_page", 2)
    for _ in range(7):
        flight_row()

    response = login("view_flight").get(reverse(LIST), {"p": "2"})

    paginator = response.context["cl"].paginator
    assert (paginator.count, paginator.num_pages) == (7, 2)
    assert len(response.context["cl"].result_list) == 2


def test_a_view_reaches_back_a_fixed_number_of_flights(login: Login, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each status, the newest."""
    monkeypatch.setattr(selectors, "VIEW_DEPTH", 2)
    failed = [flight_row(status=Status.FAILED) for _ in range(3)]
    timed_out = [flight_row(status=Status.TIMED_OUT) for _ in range(3)]

    listed = _listed(login("view_flight"), view="failed")

    assert listed == {flight.pk for flight in (*failed[1:], *timed_out[1:])}


def test_the_page_of_a_flight_has_its_timeline(login: Login) -> None:
    """Audit rows of this flight, newest first, and nobody else's."""
    flight, other = flight_row(), flight_row()
    event_row(flight, kind="granted")
    event_row(flight, kind="forgotten", actor="ops@example.com", detail="by <hand>")
    event_row(other, kind="taken_over")

    page = _page(login("view_flight"), "admin:singleflight_flight_change", flight.pk)

    assert page.index("forgotten</td>") < page.index("granted</td>")
    assert "ops@example.com" in page
    assert "by &lt;hand&gt;" in page
    assert "taken_over" not in page
    assert flight.digest_hex in page


def test_a_result_is_shown_escaped_and_only_with_its_permission(login: Login) -> None:
    """Reading results is a right of its own; what a model wrote is never markup."""
    flight = flight_row(**result_columns('{"text":"<script>alert(1)</script>"}'), arguments={"answer": "<b>mine</b>"})
    client = login("view_flight")
    page_without = _page(client, "admin:singleflight_flight_change", flight.pk)
    User.objects.get().user_permissions.add(Permission.objects.get(codename="view_result_flight"))

    page_with = _page(client, "admin:singleflight_flight_change", flight.pk)

    assert "alert(1)" not in page_without
    assert "mine" not in page_without
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page_with
    assert "&lt;b&gt;mine&lt;/b&gt;" in page_with
    assert "<script>alert(1)" not in page_with


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"checksum": b"0" * 32}, "unreadable: the stored result is damaged"),
        ({"result": b"no gzip"}, "unreadable: the stored result is damaged"),
        ({"encoding": "9/odd"}, "unreadable: the stored result has the unknown encoding"),
    ],
)
def test_a_damaged_result_is_said_not_raised(login: Login, columns: dict[str, object], said: str) -> None:
    """The page is there to find out what happened."""
    flight = flight_row(**{**result_columns('"x"'), **columns})

    page = _page(login("view_flight", "view_result_flight"), "admin:singleflight_flight_change", flight.pk)

    assert said in page


def test_nothing_can_be_added_changed_or_deleted(admin_client: Client) -> None:
    """Not even by a superuser: flights move by the protocol alone."""
    flight = flight_row()

    add = admin_client.get(reverse("admin:singleflight_flight_add"))
    delete = admin_client.post(reverse("admin:singleflight_flight_delete", args=[flight.pk]), {"post": "yes"})
    change = admin_client.post(reverse("admin:singleflight_flight_change", args=[flight.pk]), {"status": "failed"})

    assert (add.status_code, delete.status_code, change.status_code) == (403, 403, 403)
    assert "delete_selected" not in _page(admin_client, LIST)
    assert Flight.objects.get().status == Status.SUCCEEDED


def test_pages_need_the_view_permission(login: Login) -> None:
    """A staff user without it is refused."""
    flight = flight_row()
    client = login()

    assert client.get(reverse(LIST)).status_code == 403
    assert client.get(reverse("admin:singleflight_flight_change", args=[flight.pk])).status_code == 403


def test_stage_statistics_are_a_list_to_read(login: Login) -> None:
    """By stage and hour, newest first; there is nothing to change."""
    stat_row(stage="final-report", requests=41, calls=7, tokens_saved=123_457)
    client = login("view_stagestat")

    page = _page(client, "admin:singleflight_stagestat_changelist")

    assert "final-report" in page
    assert "123457" in page
    assert client.get(reverse("admin:singleflight_stagestat_add")).status_code == 403
