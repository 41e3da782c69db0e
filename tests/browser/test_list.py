"""The list of flights in a browser."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from singleflight_app.domain.states import Status
from tests.rows import flight_row

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("empty_tables")]

SignIn = Callable[..., Page]
LIST = "/admin/singleflight/flight/"


def test_tabs_divide_the_flights(sign_in: SignIn) -> None:
    """Each tab shows its own, and says that it is the one."""
    running = flight_row(status=Status.RUNNING)
    failed = flight_row(status=Status.FAILED)
    page = sign_in("view_flight")
    page.goto(LIST)

    page.get_by_role("link", name="failed").first.click()

    rows = page.locator("#result_list tbody tr")
    expect(rows).to_have_count(1)
    expect(rows.first).to_contain_text(str(failed.pk))
    assert str(running.pk) not in rows.first.inner_text().split()
