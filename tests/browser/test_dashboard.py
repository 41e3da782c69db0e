"""The dashboard in a browser: the ledger's numbers, pictures of them, and the servers' state."""

from collections.abc import Callable
from datetime import timedelta
from decimal import Decimal

import pytest
from django.utils import timezone
from playwright.sync_api import Browser, Page, expect

from singleflight_app.domain.states import Status
from tests.rows import flight_row, stat_row

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("empty_tables")]

SignIn = Callable[..., Page]
DASHBOARD = "/admin/singleflight/dashboard/"
MAY = ("view_flight", "view_stagestat")


def counted() -> None:
    """Store an hour of today and one of five days ago."""
    hour = timezone.now().replace(minute=0, second=0, microsecond=0)
    facts = {"followers": 6, "replays": 2, "replays_cache": 2, "tokens_saved": 900, "cost_saved": Decimal("1.25")}
    stat_row(stage="interview-score", hour=hour, requests=10, calls=2, **facts)
    stat_row(stage="interview-report", hour=hour - timedelta(days=5), requests=5, calls=5)


def test_the_numbers_are_the_ledgers(sign_in: SignIn) -> None:
    """Today by stage; a click away, the week with its other stage."""
    counted()
    page = sign_in(*MAY)
    page.goto(DASHBOARD)

    score = page.get_by_role("row", name="interview-score")
    expect(score).to_contain_text("10")
    expect(score).to_contain_text("5.0")
    expect(page.get_by_role("row", name="interview-report")).to_have_count(0)
    expect(page.get_by_text("1.25").first).to_be_visible()

    page.get_by_role("link", name="7 days").click()

    expect(page.get_by_role("row", name="interview-report")).to_be_visible()


def test_charts_are_pictures_with_a_table_beside(sign_in: SignIn) -> None:
    """Bars are drawn, and the same numbers can be read."""
    counted()
    page = sign_in(*MAY)

    page.goto(DASHBOARD)

    chart = page.locator("svg", has=page.locator("title", has_text="Calls and shared answers")).first
    expect(chart).to_be_visible()
    heights = [bar.bounding_box() for bar in chart.locator("rect, path").all()]
    assert any(box is not None and box["height"] > 10 for box in heights)
    page.get_by_text("as a table").first.click()
    expect(page.locator("details[open] table").first).to_contain_text("8")


def test_servers_and_live_flights_are_told(sign_in: SignIn) -> None:
    """Who answers, and what is in the air, refreshed without reloading."""
    page = sign_in(*MAY)
    page.clock.install()
    page.goto(DASHBOARD)
    expect(page.get_by_label("Health")).to_contain_text("PostgreSQL")
    expect(page.get_by_text("No flight was counted yet")).to_be_visible()
    flight_row(status=Status.RUNNING, stage="interview-followup")

    page.clock.run_for(6000)

    expect(page.get_by_role("row", name="interview-followup")).to_be_visible()
    expect(page.get_by_role("status")).to_have_text("live")


def test_the_export_is_a_file(sign_in: SignIn) -> None:
    """With the same numbers, for a spreadsheet."""
    counted()
    page = sign_in(*MAY)
    page.goto(DASHBOARD)

    with page.expect_download() as downloading:
        page.get_by_role("link", name="Download as CSV").click()

    assert downloading.value.suggested_filename.endswith(".csv")
    assert "interview-score" in downloading.value.path().read_text()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_can_be_read_by_day_and_by_night(sign_in: SignIn, browser: Browser, scheme: str) -> None:
    """Text and background differ enough for tired eyes (4.5 to 1, WCAG 2.2 AA), in either scheme."""
    counted()
    flight_row(status=Status.RUNNING, lease_expires_at=timezone.now() - timedelta(minutes=5))
    page = sign_in(*MAY)
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")

    for address in (DASHBOARD, "/admin/singleflight/flight/"):
        page.goto(address)
        assert page.evaluate(CONTRASTS) == []


#: texts of the app's own classes whose contrast is too low: their words, and the ratio
CONTRASTS = """() => {
  const parse = (text) => { const n = text.match(/[\\d.]+/g).map(Number); return n.length < 4 ? [...n, 1] : n; };
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (element) => {
    for (let part = element; part; part = part.parentElement) {
      const colour = parse(getComputedStyle(part).backgroundColor);
      if (colour[3] === 1) return colour;
    }
    return [255, 255, 255, 1];
  };
  const found = [];
  const ours = ["sf-", "singleflight-"].map((name) => `#content [class*=${name}]`);
  document.querySelectorAll(ours.flatMap((one) => [one, `${one} *`]).join())
    .forEach((element) => {
      if (element.closest("[aria-hidden=true]")) return;
      const words = [...element.childNodes].filter((n) => n.nodeType === 3 && n.data.trim()).map((n) => n.data.trim());
      if (!words.length || !element.checkVisibility() || element.closest("svg")) return;
      const [one, other] = [light(parse(getComputedStyle(element).color)), light(behind(element))];
      const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
      if (ratio < 4.5) found.push(words[0] + " " + ratio.toFixed(1));
    });
  return found;
}"""
