"""The list of flights with real rows: what each tab, filter and search shows, in which order, and how far back."""

import re
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from singleflight_app.domain.states import Status
from singleflight_app.storage import newest, selectors
from tests.rows import flight_row
from tests.staff import LIST, listed, page, staff

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("empty_tables")]


def _ago(**units: float) -> object:
    return timezone.now() - timedelta(**units)


def test_the_tabs_divide_flights_by_their_end() -> None:
    """In flight: pending or running; failed: an error or a time-out; a cancelled one is among all."""
    rows = {status: flight_row(status=status).pk for status in Status}
    client = staff("view_flight")

    assert set(listed(client, view="in_flight")) == {rows[Status.PENDING], rows[Status.RUNNING]}
    assert listed(client, view="succeeded") == [rows[Status.SUCCEEDED]]
    assert set(listed(client, view="failed")) == {rows[Status.FAILED], rows[Status.TIMED_OUT]}
    assert set(listed(client)) == set(rows.values())


def test_the_tabs_say_which_is_chosen_and_how_many_are_in_flight() -> None:
    """The filters stay when the tab is changed."""
    flight_row(status=Status.RUNNING, stage="s-1")
    flight_row(status=Status.PENDING)
    client = staff("view_flight")

    tabs = client.get(reverse(LIST), {"view": "failed", "stage": "s-1"}).context["cl"].tabs

    assert [(tab.title, tab.is_chosen, tab.flights) for tab in tabs] == [
        ("in flight", False, 2),
        ("succeeded", False, None),
        ("failed", True, None),
        ("all", False, None),
    ]
    assert [sorted(tab.query.strip("?").split("&")) for tab in tabs] == [
        ["stage=s-1", "view=in_flight"],
        ["stage=s-1", "view=succeeded"],
        ["stage=s-1", "view=failed"],
        ["stage=s-1"],
    ]
    assert 'aria-current="page">failed<' in page(client, LIST, view="failed")


def test_the_newest_grant_comes_first() -> None:
    """A key that is asked again keeps its row and its id; its new generation is what tells."""
    first, second, third = (flight_row(generation=generation) for generation in (30, 10, 20))

    assert listed(staff("view_flight")) == [first.pk, third.pk, second.pk]


def test_pages_go_on_where_the_last_one_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through all statuses in one order."""
    monkeypatch.setattr("singleflight_app.admin.flights.FlightAdmin.list_per_page", 2)
    statuses = (Status.SUCCEEDED, Status.FAILED, Status.SUCCEEDED, Status.RUNNING, Status.SUCCEEDED)
    rows = [flight_row(status=status).pk for status in statuses]
    client = staff("view_flight")

    pages = [listed(client, p=str(number)) for number in (1, 2, 3)]

    assert [pk for one in pages for pk in one] == rows[::-1]


def test_the_list_tells_owner_and_heartbeat_age() -> None:
    """The age is by the database clock, and only while somebody should be beating."""
    flight_row(status=Status.RUNNING, owner="node-b:7:fe", heartbeat_at=_ago(seconds=90))
    flight_row(status=Status.SUCCEEDED, heartbeat_at=_ago(days=4))

    shown = page(staff("view_flight"), LIST)

    assert 'title="node-b:7:fe">node-b:7<' in shown
    assert re.search(r'<td class="field-heartbeat_age">1 min 3\d s</td>', shown)
    assert '<td class="field-heartbeat_age">-</td>' in shown


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"cost": "0.015", "joins": 3, "replays": 1}, "0.06"),
        ({"input_tokens": 1000, "output_tokens": 200, "joins": 2}, "2,400 tokens"),
        ({"cost": "0.015"}, "-"),
        ({"cost": "0.015", "joins": 3, "status": Status.FAILED}, "-"),
    ],
)
def test_the_list_tells_what_was_saved(columns: dict[str, object], said: str) -> None:
    """What those who joined or replayed would have paid; in tokens where no price was given."""
    flight_row(**columns)

    assert f'<td class="field-saved">{said}</td>' in page(staff("view_flight"), LIST)


def test_stuck_flights_stand_out_in_words() -> None:
    """One whose lease is over, and one that waits longer than its stage's pending_timeout; the others do not."""
    flight_row(status=Status.RUNNING, lease_expires_at=_ago(seconds=1))
    flight_row(status=Status.RUNNING)
    flight_row(status=Status.PENDING, stage="queued", created_at=_ago(seconds=2))
    flight_row(status=Status.PENDING, stage="calm", created_at=_ago(seconds=2))

    shown = page(staff("view_flight"), LIST)

    assert shown.count("singleflight-stuck") == 2
    assert "stuck: no lease" in shown
    assert "stuck: no worker" in shown


def test_filters_narrow_a_tab() -> None:
    """By stage, by owner's host, by age and by being stuck; together too."""
    old = flight_row(stage="a", owner="node-a:1:x", started_at=_ago(days=2))
    young = flight_row(stage="a", owner="node-b:1:x", started_at=_ago(minutes=2))
    asked = flight_row(stage="b", owner="", status=Status.PENDING, started_at=None, created_at=_ago(minutes=2))
    stuck = flight_row(stage="b", owner="node-ab:1:x", status=Status.RUNNING, lease_expires_at=_ago(seconds=1))
    client = staff("view_flight")

    assert set(listed(client, stage="a")) == {old.pk, young.pk}
    assert listed(client, node="node-a") == [old.pk]
    assert set(listed(client, age="1h")) == {young.pk, asked.pk, stuck.pk}
    assert set(listed(client, age="7d")) == {old.pk, young.pk, asked.pk, stuck.pk}
    assert listed(client, age="stuck") == [stuck.pk]
    assert listed(client, age="24h", stage="a", view="succeeded") == [young.pk]


def test_filters_offer_what_there_is() -> None:
    """Stages of the settings and of rows, hosts of rows; and the chosen one, though nobody has it any more."""
    flight_row(stage="only-in-a-row", owner="node-a:1:x")

    specs = staff("view_flight").get(reverse(LIST), {"node": "node-gone"}).context["cl"].filter_specs

    offered = {spec.parameter_name: [name for name, _ in spec.lookup_choices] for spec in specs}
    assert set(offered) == {"stage", "age", "node"}
    assert {"only-in-a-row", "calm"} <= set(offered["stage"])
    assert offered["node"] == ["node-a", "node-gone"]


def test_the_list_reads_neither_results_nor_arguments() -> None:
    """A page of large results would be megabytes."""
    flight_row()
    client = staff("view_flight")

    with CaptureQueriesContext(connection) as queries:
        listed(client)

    from_flights = [query["sql"] for query in queries if 'FROM "singleflight_flight"' in query["sql"]]
    assert from_flights
    assert not [sql for sql in from_flights if '"result"' in sql or '"arguments"' in sql]


def test_the_list_shows_no_scope() -> None:
    """It may name a person."""
    flight_row(scope="candidate:jane-roe", label="jane")

    assert "jane" not in page(staff("view_flight"), LIST)


def test_search_finds_by_id_digest_and_scope() -> None:
    """Each exactly; a part of a scope finds nothing."""
    flight, other = flight_row(scope="interview:77"), flight_row(scope="interview:778")
    client = staff("view_flight")

    assert listed(client, q=str(flight.pk)) == [flight.pk]
    assert listed(client, q=other.digest_hex.upper()) == [other.pk]
    assert listed(client, q=" interview:77 ") == [flight.pk]
    assert listed(client, q="interview") == []
    assert listed(client, q="9" * 30) == []


def test_search_stays_within_a_tab_and_its_filters() -> None:
    """A scope may have flights of every status."""
    failed = flight_row(scope="tenant-1", status=Status.FAILED)
    flight_row(scope="tenant-1")
    flight_row(scope="tenant-1", status=Status.FAILED, stage="other")
    client = staff("view_flight")

    assert listed(client, q="tenant-1", view="failed", stage=failed.stage) == [failed.pk]
    assert listed(client, q=failed.digest_hex, view="succeeded") == []


def test_an_old_flight_is_found_by_its_id_and_a_live_one_by_its_scope(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other settled ones only among the newest, for there is no index on the scope; the page says so."""
    monkeypatch.setattr(newest, "VIEW_DEPTH", 1)
    live, settled = flight_row(scope="s", status=Status.RUNNING), flight_row(scope="s")
    last = flight_row(scope="s")
    client = staff("view_flight")

    assert set(listed(client, q="s")) == {live.pk, last.pk}
    assert "looked for among the newest 1 flights" in page(client, LIST, q="s")
    assert listed(client, q=str(settled.pk)) == [settled.pk]


@pytest.mark.parametrize("lookup", ["error_message__contains", "result__gt", "status", "scope__startswith", "id__gt"])
def test_filters_by_url_are_refused(lookup: str) -> None:
    """They would scan the table, and tell a result to those who may not read it, bit by bit."""
    flight_row()

    response = staff("view_flight").get(reverse(LIST), {lookup: "1"})

    assert response.status_code == 400


def test_a_large_table_is_counted_by_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit the planner's number is taken; no statement counts the whole table."""
    for _ in range(8):
        flight_row()
    with connection.cursor() as cursor:
        cursor.execute("analyze singleflight_flight")
    monkeypatch.setattr(selectors, "EXACT_COUNT_MAX", 3)
    client = staff("view_flight")

    with CaptureQueriesContext(connection) as queries:
        response = client.get(reverse(LIST))

    assert response.context["cl"].result_count == 8
    counts = [query["sql"] for query in queries if "COUNT(*)" in query["sql"] and "singleflight" in query["sql"]]
    assert counts
    assert all("LIMIT" in sql for sql in counts)


def test_a_small_table_is_counted_exactly_whatever_the_planner_thinks() -> None:
    """Its estimate is as old as the last look at the table."""
    rows = [flight_row() for _ in range(5)]
    with connection.cursor() as cursor:
        cursor.execute("analyze singleflight_flight")
    for row in rows[1:]:
        row.delete()

    assert staff("view_flight").get(reverse(LIST)).context["cl"].result_count == 1


def test_the_last_page_is_one_that_is_reached_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """OFFSET walks what it skips; what is deeper is found by search, and the page says so."""
    monkeypatch.setattr(newest, "VIEW_DEPTH", 4)
    monkeypatch.setattr("singleflight_app.admin.flights.FlightAdmin.list_per_page", 2)
    rows = [flight_row() for _ in range(7)]
    client = staff("view_flight")

    response = client.get(reverse(LIST), {"p": "2"})

    found = response.context["cl"]
    assert (found.result_count, found.paginator.num_pages) == (7, 2)
    assert [flight.pk for flight in found.result_list] == [rows[4].pk, rows[3].pk]
    assert "The list reaches back 4 flights." in response.content.decode()
    assert client.get(reverse(LIST), {"p": "3"}).status_code == 302


def test_a_filter_looks_at_the_newest_of_each_status(monkeypatch: pytest.MonkeyPatch) -> None:
    """And at all that are live; the page says so when there are older ones."""
    monkeypatch.setattr(newest, "VIEW_DEPTH", 2)
    running = [flight_row(status=Status.RUNNING) for _ in range(3)]
    failed = [flight_row(status=Status.FAILED) for _ in range(3)]
    timed_out = [flight_row(status=Status.TIMED_OUT) for _ in range(2)]
    client = staff("view_flight")

    response = client.get(reverse(LIST), {"stage": failed[0].stage})

    assert response.context["cl"].result_count == 7
    assert listed(client, stage=failed[0].stage) == [timed_out[1].pk, timed_out[0].pk]
    assert set(newest.Newest(selectors.flights(), tuple(Status), is_filtered=True).ids(0, 100)) == {
        flight.pk for flight in (*running, *failed[1:], *timed_out)
    }
    assert "The filters look at the newest 2 flights of each status" in response.content.decode()


def test_the_list_can_be_refreshed_in_place() -> None:
    """The parts that change are named, so that live.js can replace them; the script is a file, as CSP wants it."""
    flight_row()

    shown = page(staff("view_flight"), LIST)

    assert all(f'data-live="{name}"' in shown for name in ("tabs", "flights", "pages"))
    assert "data-live-status" in shown
    assert "singleflight/live.js" in shown
