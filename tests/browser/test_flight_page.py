"""The page of one flight in a browser: its timeline, its result, its buttons."""

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone
from playwright.sync_api import Page, expect

from singleflight_app.domain.states import Status
from singleflight_app.models import Flight
from tests.rows import event_row, flight_row, result_columns

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("empty_tables")]

SignIn = Callable[..., Page]
SCRIPT = "<script>alert(1)</script><img src=x onerror=alert(2)>"
HOSTILE = {"text": SCRIPT, "points": 3}


def page_of(flight: Flight, part: str = "change") -> str:
    return f"/admin/singleflight/flight/{flight.pk}/{part}/"


def taken_over() -> Flight:
    """Return a flight that a second owner runs, after the first was lost."""
    now = timezone.now()
    flight = flight_row(status=Status.RUNNING, generation=22, owner="node-b:7:bb", takeovers=1, attempts=2)
    event_row(flight, kind="granted", generation=21, owner="node-a:5:aa", at=now - timedelta(seconds=60))
    event_row(flight, kind="taken_over", generation=22, owner="node-b:7:bb", at=now - timedelta(seconds=20))
    return flight


def test_the_timeline_has_a_lane_for_each_owner(sign_in: SignIn) -> None:
    """A picture that also says in words what it shows, inside its own borders."""
    flight = taken_over()
    page = sign_in("view_flight")

    page.goto(page_of(flight))

    picture = page.locator(".singleflight-timeline-picture")
    expect(picture).to_be_visible()
    expect(picture).to_contain_text("node-a:5")
    expect(picture).to_contain_text("node-b:7")
    assert picture.locator("title").first.text_content()
    frame = picture.bounding_box()
    assert frame is not None
    for number in range(picture.locator("text").count()):
        box = picture.locator("text").nth(number).bounding_box()
        assert box is not None
        assert frame["x"] - 1 <= box["x"]
        assert box["x"] + box["width"] <= frame["x"] + frame["width"] + 1


def test_the_page_follows_the_flight(sign_in: SignIn) -> None:
    """It ends, and the open page says so."""
    flight = taken_over()
    page = sign_in("view_flight")
    page.clock.install()
    page.goto(page_of(flight))
    expect(page.locator(".singleflight-head")).to_contain_text("node-b:7")

    now = timezone.now()
    Flight.objects.filter(pk=flight.pk).update(
        status=Status.FAILED, lease_expires_at=None, settled_at=now, expires_at=now, error_type="builtins.ValueError"
    )
    page.clock.run_for(6000)

    expect(page.locator(".singleflight-head")).to_contain_text("builtins.ValueError")
    expect(page.locator(".singleflight-badge").first).to_contain_text("failed")


def test_only_moves_that_do_something_are_offered(sign_in: SignIn) -> None:
    """And a click on one leads to its question, and back to the page."""
    flight = taken_over()
    page = sign_in("view_flight", "expire_lease_flight", "retry_flight")
    page.goto(page_of(flight))

    expect(page.get_by_role("group", name="Actions").get_by_role("button")).to_have_count(1)
    page.get_by_role("button", name="Expire lease…").click()
    page.get_by_role("button", name="Yes").click()

    expect(page.locator(".messagelist")).to_contain_text("Lease expired on 1 of 1 flight.")
    expect(page.locator(".singleflight-events")).to_contain_text("mira")
    assert Flight.objects.get(pk=flight.pk).owner == ""


def test_a_hostile_result_is_text(sign_in: SignIn, tmp_path: Path) -> None:
    """Nothing of it runs, it is laid out to be read, and the download is the very JSON."""
    flight = flight_row(**result_columns(json.dumps(HOSTILE)), error_message="<script>alert(3)</script>")
    page = sign_in("view_flight", "view_result_flight")
    dialogs: list[str] = []
    page.on("dialog", lambda dialog: dialogs.append(dialog.message))
    page.goto(page_of(flight))

    page.locator(".singleflight-result-link").click()

    shown = page.locator("pre.singleflight-content")
    expect(shown).to_contain_text(SCRIPT)
    assert json.loads(shown.inner_text()) == HOSTILE
    assert dialogs == []
    with page.expect_download() as downloading:
        page.get_by_role("link", name="Download").click()
    downloading.value.save_as(tmp_path / "result.json")
    assert json.loads((tmp_path / "result.json").read_text()) == HOSTILE


def test_a_result_is_not_for_everybody(sign_in: SignIn) -> None:
    """Without its permission there is no link, and the address is refused."""
    flight = flight_row(**result_columns('"mine"'))
    page = sign_in("view_flight")
    page.goto(page_of(flight))
    expect(page.locator(".singleflight-result-link")).to_have_count(0)

    response = page.context.request.get(page_of(flight, "result"))

    assert response.status == 403
