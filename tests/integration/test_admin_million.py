"""The admin on a million rows: every statement of every page is asked for its plan, and how much it reads is bounded.

Rows are made by one statement and taken away after. Nothing is timed.
"""

import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import pytest
from django.contrib.admin import site
from django.contrib.auth.models import User
from django.db import connection
from django.test import RequestFactory
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from pytest_django import DjangoDbBlocker

from singleflight_app.admin.actions import ACTION_MAX
from singleflight_app.admin.flights import FlightAdmin
from singleflight_app.domain.states import Status
from singleflight_app.models import Flight
from singleflight_app.storage import newest, selectors
from tests.staff import LIST, PAGE, RESULT, staff

T = TypeVar("T")

ROWS = 1_000_000
LIVE = 1000
#: what one statement may read at most: the depth of each of four settled statuses, and all that are live
MOST_READ = 4 * (newest.VIEW_DEPTH + 1) + LIVE
#: without filters no more than a page and a count of one or two statuses
MOST_READ_UNFILTERED = 2 * (newest.VIEW_DEPTH + 1) + LIVE
TABLES = {"singleflight_flight", "singleflight_flightevent"}

pytestmark = pytest.mark.django_db(transaction=True)

# Ids and generations in opposite orders, for keys are asked again. Most succeeded; each other status has some.
_FLIGHTS = """
insert into singleflight_flight (digest, stage, scope, status, generation, owner, created_at, started_at,
    lease_expires_at, heartbeat_at, settled_at, expires_at, joins)
select decode(lpad(to_hex(n), 64, '0'), 'hex'), 'stage-' || n % 7, 'scope-' || n % 1000, s.status, %(rows)s + 1 - n,
    'node-' || n % 5 || ':1:x', now() - n * interval '1 s', now() - n * interval '1 s',
    case when s.status = 'running' then now() + (n % 3 - 1) * interval '1 min' end, now(),
    case when s.status not in ('running', 'pending') then now() end,
    case when s.status not in ('running', 'pending') then now() + interval '1 h' end, n % 4
from generate_series(1, %(rows)s) n,
    lateral (select case when n % 2000 = 0 then 'running' when n % 2000 = 1 then 'pending' when n % 50 = 2 then 'failed'
        when n % 100 = 3 then 'timed_out' when n % 100000 = 4 then 'cancelled' else 'succeeded' end) s (status)
""".replace(" % ", " %% ")
_EVENTS = """
insert into singleflight_flightevent (flight_id, digest, stage, generation, kind, owner)
select f.id, f.digest, f.stage, f.generation, 'granted', f.owner from singleflight_flight f where f.id % 50 = 0
"""


@pytest.fixture(scope="module")
def _million(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """Have the rows; each test's flush would take them away, so that this module has but one test."""
    with django_db_blocker.unblock(), connection.cursor() as cursor:
        cursor.execute("truncate singleflight_flight, singleflight_flightevent")
        cursor.execute(_FLIGHTS, {"rows": ROWS})
        cursor.execute(_EVENTS)
        cursor.execute("vacuum analyze singleflight_flight, singleflight_flightevent")
    yield
    with django_db_blocker.unblock(), connection.cursor() as cursor:
        cursor.execute("truncate singleflight_flight, singleflight_flightevent")


def _plan(sql: str) -> dict[str, Any]:
    with connection.cursor() as cursor:
        cursor.execute(f"explain (analyze, buffers off, costs off, timing off, format json) {sql}")
        found = cursor.fetchone()[0]
    plan: dict[str, Any] = (json.loads(found) if isinstance(found, str) else found)[0]["Plan"]
    return plan


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for inner in plan.get("Plans", ()):
        yield from _nodes(inner)


def _read(plan: dict[str, Any]) -> float:
    """Return how many rows a plan takes from its tables, those that it throws away included."""
    removed = ("Rows Removed by Filter", "Rows Removed by Index Recheck")
    return float(
        sum(
            node["Actual Loops"] * (node["Actual Rows"] + sum(node.get(name, 0) for name in removed))
            for node in _nodes(plan)
            if "Scan" in node["Node Type"] and node["Node Type"] != "Subquery Scan"
        )
    )


def _check(asked: Callable[[], T], what: str, most: int) -> T:
    """Return what was asked for, and assert that no statement walks a whole table or reads more than `most` rows."""
    with CaptureQueriesContext(connection) as queries:
        answer = asked()
    of_tables = [query["sql"] for query in queries if any(f'"{table}"' in query["sql"] for table in TABLES)]
    assert of_tables, what
    for sql in of_tables:
        plan = _plan(sql)
        scans = (node for node in _nodes(plan) if node["Node Type"] == "Seq Scan")
        walked = [node for node in scans if node["Relation Name"] in TABLES]
        assert not walked, f"{what}: {sql}\n{plan}"
        assert _read(plan) <= most, f"{what} reads {_read(plan)} rows: {sql}\n{plan}"
    return answer


def _lists() -> Iterator[tuple[dict[str, str], int]]:
    """Yield the queries of every tab with every filter and search, and what they may read."""
    one = Flight.objects.order_by("generation")[0]
    filters: list[dict[str, str]] = [
        {"stage": "stage-3"},
        {"stage": "no such"},
        {"age": "1h"},
        {"age": "7d"},
        {"age": "stuck"},
        {"node": "node-1", "age": "24h", "stage": "stage-2"},
        {"q": str(one.pk)},
        {"q": one.digest_hex},
        {"q": "scope-7"},
        {"q": "no such", "stage": "stage-3"},
    ]
    for view in ("", "in_flight", "succeeded", "failed"):
        yield {"view": view}, MOST_READ_UNFILTERED
        for one_filter in filters:
            yield {"view": view, **one_filter}, MOST_READ


def _acted_on(query: dict[str, str], ticked: list[int] | None = None) -> list[int]:
    """Return the flights that an action would be about."""
    request = RequestFactory().post(reverse(LIST, query=query), {"select_across": "1" if ticked is None else "0"})
    request.user = User.objects.get()
    flights = FlightAdmin(Flight, site).get_changelist_instance(request).get_queryset(request)
    chosen = flights if ticked is None else flights.filter(pk__in=ticked)
    return list(chosen.values_list("pk", flat=True)[:ACTION_MAX])


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("_million")
def test_no_page_reads_more_than_its_depth_of_a_million_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """List by tab, filter, search, first page and last; the page of a flight, its result; what an action is about."""
    monkeypatch.setattr(FlightAdmin, "list_per_page", 20)
    client = staff("view_flight", "view_result_flight", "forget_flight", "expire_lease_flight")
    some = Flight.objects.filter(status="running").order_by("-generation")[0]

    for query, most in _lists():
        found = _check(partial(client.get, reverse(LIST), query), f"list {query}", most).context["cl"]
        if (last := found.paginator.num_pages) > 1:
            _check(partial(client.get, reverse(LIST), {**query, "p": str(last)}), f"end of list {query}", most)
    _check(partial(client.get, reverse(PAGE, args=[some.pk])), "page of a flight", selectors.EVENTS_SHOWN + 1)
    _check(partial(client.get, reverse(RESULT, args=[some.pk])), "page of a result", 1)
    assert _check(partial(_acted_on, {}, [some.pk]), "ticked", len(Status) * newest.SEEN_DEPTH) == [some.pk]
    for query in ({}, {"age": "7d"}, {"view": "failed", "stage": "stage-3"}):
        assert len(_check(partial(_acted_on, query), f"all of {query}", MOST_READ)) == ACTION_MAX
