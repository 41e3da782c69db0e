"""The dashboard and the ledger's file, with real rows: what they show, to whom, and how much they read."""

import csv
import io
import re
from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal
from html import unescape

import pytest
from django.contrib.auth.models import Permission, User
from django.db import OperationalError, connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from singleflight_app import dashboard
from singleflight_app.domain.states import Status
from singleflight_app.storage import sums
from tests.rows import flight_row, stat_row

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("empty_tables")]

BOTH = ("view_flight", "view_stagestat")
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


def _page(client: Client, **query: str) -> str:
    response = client.get(reverse("admin:singleflight_dashboard"), query)
    assert response.status_code == 200
    return response.content.decode()


def _text(page: str) -> str:
    """Return what one reads."""
    return unescape(" ".join(re.sub(r"<[^>]*>", " ", page.partition('id="content-main"')[2]).split()))


def _exported(client: Client, **query: str) -> list[dict[str, str]]:
    response = client.get(reverse("admin:singleflight_dashboard_export"), query)
    assert response.status_code == 200
    assert response.streaming
    return list(csv.DictReader(io.StringIO(response.getvalue().decode())))


def test_it_needs_both_permissions(login: Login) -> None:
    """Flights and the ledger: one of them is not enough, and the index does not name it then."""
    client = login("view_flight")

    assert client.get(reverse("admin:singleflight_dashboard")).status_code == 403
    assert client.get(reverse("admin:singleflight_dashboard_export")).status_code == 403
    assert reverse("admin:singleflight_dashboard") not in client.get(reverse("admin:index")).content.decode()


def test_the_file_needs_the_ledgers_permission_alone(login: Login) -> None:
    """It tells nothing of flights."""
    client = login("view_stagestat")
    stat_row(requests=1)

    assert client.get(reverse("admin:singleflight_dashboard")).status_code == 403
    assert [row["requests"] for row in _exported(client)] == ["1"]


def test_nobody_from_outside_sees_it() -> None:
    """They are asked to sign in."""
    for name in ("admin:singleflight_dashboard", "admin:singleflight_dashboard_export"):
        assert Client().get(reverse(name)).status_code == 302


def test_the_admin_leads_to_it(login: Login) -> None:
    """From its index, and from the ledger's list with the files."""
    client = login(*BOTH)
    address = reverse("admin:singleflight_dashboard")

    assert address == "/admin/singleflight/dashboard/"
    assert f'href="{address}"' in client.get(reverse("admin:index")).content.decode()
    ledger = client.get(reverse("admin:singleflight_stagestat_changelist")).content.decode()
    assert f'href="{address}"' in ledger
    assert f"{address}export/?window=30d" in ledger
    assert f'href="{address}"' in client.get(reverse("admin:singleflight_flight_changelist")).content.decode()


def test_an_empty_one_says_what_to_do(login: Login) -> None:
    """And draws no empty charts."""
    page = _page(login(*BOTH))

    assert "No flight was counted yet" in page
    assert "Nothing is in flight." in page
    assert "<svg viewBox" not in page


def test_tiles_add_up_days(login: Login) -> None:
    """Today, the last seven days and the last thirty, today included."""
    now = timezone.now()
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    for days, requests in ((0, 1000), (6, 200), (29, 30), (30, 4)):
        stat_row(hour=today - timedelta(days=days), requests=requests, calls=requests // 10)

    tiles = dashboard.gathered("today").tiles

    assert [tiles[name].requests for name in ("today", "7d", "30d")] == [1000, 1200, 1230]
    page = _text(_page(login(*BOTH)))
    assert "1,230" in page
    assert "requests per call 10.0" in page


def test_the_table_tells_each_stage(login: Login) -> None:
    """Replays by layer, percentiles with what lies above the buckets, waste, and money."""
    stat_row(
        stage="score",
        requests=12,
        calls=2,
        followers=4,
        replays=6,
        replays_process=3,
        replays_cache=2,
        failures=1,
        takeovers=1,
        fenced=1,
        wait_timeouts=2,
        degraded=1,
        waits=[0] * 8 + [10] + [0] * 6 + [4],
        runs=[0] * 15 + [2],
        cost_spent=Decimal("1.25"),
        cost_saved=Decimal("6.25"),
        cost_wasted=Decimal("0.000001"),
    )

    page = _text(_page(login(*BOTH)))

    row = page.partition("score ")[2]
    assert row.startswith("12 2 6.0 1.25 0 6.25 0 0.0000010 0 4 3 2 1 1 1 1 1 2 4.2 s > 300 s > 300 s > 300 s")
    assert "Calls that may have been made twice: 2 (1 after an owner was lost, 1 without the database)." in page


def test_what_is_in_flight_stands_out_when_it_is_stuck(login: Login) -> None:
    """By a word and a sign, with the way to the flights."""
    now = timezone.now()
    flight_row(status=Status.RUNNING, stage="score", started_at=now - timedelta(seconds=90))
    flight_row(status=Status.RUNNING, stage="report", lease_expires_at=now - timedelta(hours=2))
    flight_row(status=Status.PENDING, stage="report", created_at=now - timedelta(days=3, hours=1))
    flight_row(status=Status.SUCCEEDED, stage="score")

    lines = {line.stage: line for line in dashboard.live()}
    page = _page(login(*BOTH))

    assert (lines["score"].running, lines["score"].stuck, lines["score"].pending) == (1, 0, 0)
    assert (lines["report"].running, lines["report"].stuck, lines["report"].pending) == (1, 1, 1)
    assert lines["report"].is_overdue
    assert "1 min 3" in _text(page)
    assert "2 h 0 min 3 d 1 h" in _text(page)
    assert "no worker comes" in page
    assert f"{reverse('admin:singleflight_flight_changelist')}?view=in_flight&amp;stage=report" in page


def test_charts_have_a_bar_for_each_part_and_a_table(login: Login) -> None:
    """Read by a screen reader as well."""
    hour = timezone.now().replace(minute=0, second=0, microsecond=0)
    stat_row(hour=hour, requests=12, calls=2, followers=10, cost_spent=Decimal(3), cost_saved=Decimal(15))

    page = _page(login(*BOTH))

    assert page.count("<rect") == 4
    assert f"<title>{hour:%H}:00: shared answers 10</title>" in page
    assert page.count("<desc") == 2
    assert re.search(
        rf'<th scope="row">{hour:%H}:00</th><td class="sf-number">3.00</td><td class="sf-number">15.00', page
    )


@pytest.mark.parametrize("window", ["today", "7d", "30d"])
def test_bars_stand_for_all_that_was_counted(window: str) -> None:
    """Each hour is in one step of the window, and no other."""
    hour = timezone.now().replace(minute=0, second=0, microsecond=0)
    for back in range(0, 24 * 40, 5):
        stat_row(hour=hour - timedelta(hours=back), requests=1, calls=1)

    found = dashboard.gathered(window)

    assert sum(of.requests for _step, of in found.steps) == found.whole.requests == found.tiles[window].requests


def test_names_are_escaped(login: Login) -> None:
    """A stage is no markup."""
    stat_row(stage="<script>alert(1)</script>", requests=1)
    flight_row(status=Status.RUNNING, stage="<img src=x>&view=all")

    page = _page(login(*BOTH))

    assert "<script>alert" not in page
    assert "<img" not in page
    assert "stage=%3Cimg%20src%3Dx%3E%26view%3Dall" in page


def test_a_damaged_list_of_durations_harms_nobody(login: Login) -> None:
    """As an older node left it, or somebody by hand."""
    stat_row(stage="score", requests=1, waits="no list", runs={"no": "list"})
    stat_row(stage="report", requests=1, waits=[1], runs=[])

    assert "report" in _page(login(*BOTH))


def test_the_file_has_each_hour_and_no_formula(login: Login) -> None:
    """Exact money, hours in UTC, a window of its own; an unknown one is refused with those there are."""
    now = timezone.now().replace(minute=0, second=0, microsecond=0)
    stat_row(stage="=cmd()", hour=now, requests=1, cost_saved=Decimal("0.000000001"))
    stat_row(stage="score", hour=now - timedelta(days=20), requests=2)
    stat_row(stage="score", hour=now - timedelta(days=400), requests=3)
    client = login(*BOTH)

    (row,) = _exported(client)
    assert (row["stage"], row["hour"], row["cost_saved"]) == ("'=cmd()", f"{now:%Y-%m-%dT%H:00Z}", "0.000000001")
    assert [row["requests"] for row in _exported(client, window="30d")] == ["1", "2"]
    assert [row["requests"] for row in _exported(client, window="all")] == ["1", "3", "2"]
    assert [row["requests"] for row in _exported(client, window="all", stage="score")] == ["3", "2"]
    refused = client.get(reverse("admin:singleflight_dashboard_export"), {"window": "<b>"})
    assert (refused.status_code, refused["Content-Type"]) == (400, "text/plain")


def test_a_long_file_is_read_in_parts(login: Login, monkeypatch: pytest.MonkeyPatch) -> None:
    """No row is missing or twice where one part ends."""
    monkeypatch.setattr(sums, "_BATCH", 3)
    now = timezone.now().replace(minute=0, second=0, microsecond=0)
    for stage in ("report", "score"):
        for back in range(7):
            stat_row(stage=stage, hour=now - timedelta(hours=back), requests=2**back)

    rows = _exported(login(*BOTH), window="7d")

    assert len({(row["stage"], row["hour"]) for row in rows}) == len(rows) == 14
    assert sum(int(row["requests"]) for row in rows) == 254


def test_a_ledger_of_years_is_not_read_whole(login: Login) -> None:
    """Each statement walks the index of (stage, hour); none scans the table."""
    with connection.cursor() as cursor:
        cursor.execute(
            "insert into singleflight_stagestat (stage, hour, requests) select 'stage-' || s, h, 1"
            " from generate_series(1, 8) s,"
            " generate_series(date_trunc('hour', now()) - interval '2 years', now(), interval '1 hour') h"
        )
        cursor.execute("analyze singleflight_stagestat")
    client = login(*BOTH)

    with CaptureQueriesContext(connection) as queries:
        _page(client, window="7d")
        client.get(reverse("admin:singleflight_dashboard_export"), {"window": "today"}).getvalue()

    statements = [query["sql"] for query in queries if "singleflight_stagestat" in query["sql"]]
    assert len(statements) >= 5
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(f"explain {statement}")
            plan = "\n".join(row[0] for row in cursor.fetchall())
            assert "Seq Scan on singleflight_stagestat" not in plan, f"{statement}\n{plan}"


def test_a_server_that_is_away_is_said_so(login: Login, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page comes without numbers, and names the trouble."""

    def away() -> list[str]:
        raise OperationalError("no route to the server")

    monkeypatch.setattr(sums, "stages", away)

    page = _page(login(*BOTH))

    assert "The numbers could not be read: no route to the server" in page
    assert "<svg viewBox" not in page
