"""The pages in Chinese: the browser says so, and they are laid out as in English."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.utils import timezone
from playwright.sync_api import BrowserContext, Page, expect

from singleflight_app.domain.states import Status
from tests.rows import flight_row, stat_row

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("empty_tables")]


def test_list_page_and_dashboard_speak_chinese(sign_in: Callable[..., Page], context: BrowserContext) -> None:
    """Whatever the app itself says; words of Django come from Django."""
    context.set_extra_http_headers({"Accept-Language": "zh-CN,zh;q=0.9"})
    flight = flight_row(status=Status.RUNNING, lease_expires_at=timezone.now() - timedelta(minutes=5))
    stat_row(requests=4, calls=2)
    page = sign_in("view_flight", "view_stagestat", "cancel_flight")

    page.goto("/admin/singleflight/flight/")
    expect(page.get_by_role("link", name="进行中")).to_be_visible()
    expect(page.locator("#result_list")).to_contain_text("无租约")
    expect(page.get_by_role("status")).to_have_text("实时")

    page.goto(f"/admin/singleflight/flight/{flight.pk}/change/")
    expect(page.locator(".singleflight-head")).to_contain_text("由下一个请求者接管")
    page.get_by_role("button", name="取消…").click()
    expect(page.get_by_role("heading", name="取消这些任务")).to_be_visible()

    page.goto("/admin/singleflight/dashboard/")
    expect(page.get_by_role("heading", name="仪表盘")).to_be_visible()
    expect(page.get_by_text("每次调用的请求数").first).to_be_visible()
