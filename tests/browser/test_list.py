"""The list of flights in a browser: tabs, what stands out, refreshing by itself, and moves that are asked before."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.utils import timezone
from playwright.sync_api import Locator, Page, expect

from singleflight_app.domain.states import Status
from singleflight_app.models import Flight, FlightEvent
from tests.rows import flight_row

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("empty_tables")]

SignIn = Callable[..., Page]
LIST = "/admin/singleflight/flight/"
ROWS = "#result_list tbody tr"
REFRESH = 6000  #: milliseconds: a little more than from one refresh to the next


def test_tabs_divide_the_flights(sign_in: SignIn) -> None:
    """Each tab shows its own, and says that it is the one."""
    flight_row(status=Status.RUNNING)
    failed = flight_row(status=Status.FAILED)
    page = sign_in("view_flight")
    page.goto(LIST)
    expect(page.locator(ROWS)).to_have_count(2)

    page.get_by_role("navigation", name="Views").get_by_role("link", name="failed").click()

    expect(page.locator(ROWS)).to_have_count(1)
    expect(page.locator(ROWS).get_by_role("link")).to_have_text(str(failed.pk))
    expect(page.locator("[aria-current=page]", has_text="failed")).to_be_visible()


def test_a_stuck_flight_stands_out(sign_in: SignIn) -> None:
    """By a word, and by a colour that no other row has."""
    flight_row(status=Status.RUNNING, lease_expires_at=timezone.now() - timedelta(minutes=5))
    flight_row(status=Status.RUNNING)
    page = sign_in("view_flight")

    page.goto(LIST)

    stuck, healthy = page.locator(ROWS, has_text="stuck"), page.locator(ROWS, has_text="running")
    expect(stuck).to_have_count(1)
    assert _background(stuck.locator("td").first) != _background(healthy.locator("td").first)


def test_a_new_flight_appears_by_itself(sign_in: SignIn) -> None:
    """And what is ticked stays ticked; paused, nothing moves until somebody goes on."""
    first = flight_row(status=Status.RUNNING)
    page = sign_in("view_flight", "cancel_flight")
    page.clock.install()
    page.goto(LIST)
    page.locator(f"input.action-select[value='{first.pk}']").check()
    flight_row(status=Status.RUNNING)

    page.clock.run_for(REFRESH)

    expect(page.locator(ROWS)).to_have_count(2)
    expect(page.locator(f"input.action-select[value='{first.pk}']")).to_be_checked()
    expect(page.get_by_role("status")).to_have_text("live")

    page.get_by_role("button", name="Pause").click()
    flight_row(status=Status.RUNNING)
    page.clock.run_for(REFRESH)
    expect(page.get_by_role("status")).to_have_text("paused")
    expect(page.locator(ROWS)).to_have_count(2)

    page.get_by_role("button", name="Go on").click()
    expect(page.locator(ROWS)).to_have_count(3)


def test_a_server_that_is_away_is_said(sign_in: SignIn, troubles: list[str]) -> None:
    """The page stays, with the time it is from, and goes on when the server is back."""
    flight_row(status=Status.RUNNING)
    page = sign_in("view_flight")
    page.clock.install()
    page.goto(LIST)
    page.route("**/*", lambda route: route.fulfill(status=503))

    page.clock.run_for(REFRESH)

    expect(page.get_by_role("status")).to_contain_text("cannot reach the server, shown as of")
    expect(page.locator(ROWS)).to_have_count(1)

    assert all("503" in trouble for trouble in troubles)
    troubles.clear()
    page.unroute("**/*")
    page.clock.run_for(REFRESH)
    expect(page.get_by_role("status")).to_have_text("live")


def test_whoever_is_logged_out_is_told(sign_in: SignIn) -> None:
    """The refresh ends there, and does not put the form of the login into the page."""
    flight_row()
    page = sign_in("view_flight")
    page.clock.install()
    page.goto(LIST)
    page.context.clear_cookies()

    page.clock.run_for(REFRESH)

    expect(page.get_by_role("status")).to_contain_text("not refreshed any more")
    expect(page.locator(ROWS)).to_have_count(1)


def test_a_cancel_is_asked_before_and_audited(sign_in: SignIn) -> None:
    """Chosen in the list, said what it does, confirmed, done, and told."""
    chosen, other = flight_row(status=Status.RUNNING), flight_row(status=Status.RUNNING)
    page = sign_in("view_flight", "cancel_flight")
    page.goto(LIST)
    page.locator(f"input.action-select[value='{chosen.pk}']").check()
    page.get_by_label("Action:").select_option("cancel_flights")
    page.get_by_role("button", name="Go").click()

    expect(page.get_by_role("heading", name="Cancel these flights?")).to_be_visible()
    expect(page.locator(ROWS)).to_have_count(1)
    assert Flight.objects.get(pk=chosen.pk).status == Status.RUNNING
    page.get_by_role("button", name="Yes").click()

    expect(page.locator(".messagelist")).to_contain_text("1 of 1 flight cancelled.")
    assert Flight.objects.get(pk=chosen.pk).status == Status.CANCELLED
    assert Flight.objects.get(pk=other.pk).status == Status.RUNNING
    assert FlightEvent.objects.get(flight_id=chosen.pk, kind="cancelled").actor == "mira"


def test_who_may_not_act_is_offered_nothing(sign_in: SignIn) -> None:
    """Neither boxes to tick nor an action to choose."""
    flight_row(status=Status.RUNNING)
    page = sign_in("view_flight")

    page.goto(LIST)

    expect(page.locator(ROWS)).to_have_count(1)
    expect(page.locator("input.action-select")).to_have_count(0)
    expect(page.get_by_label("Action:")).to_have_count(0)


def _background(cell: Locator) -> str:
    colour: str = cell.evaluate(
        "cell => getComputedStyle(cell.closest('tr')).backgroundColor + getComputedStyle(cell).backgroundColor"
    )
    return colour
