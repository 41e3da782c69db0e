"""A real browser before a real server: Debian's Chromium, driven by Playwright, at the admin of this process.

Playwright's driver keeps an event loop running in this thread, in which Django would refuse the ORM; nothing here is
async, so it is told that it may.
"""

import shutil
from collections.abc import Callable, Iterator

import pytest
from django.conf import settings
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, sync_playwright
from pytest_django.live_server_helper import LiveServer
from pytest_django.plugin import DjangoDbBlocker

CHROMIUM = shutil.which("chromium")
#: no sandbox as root; nothing that calls home
OPTIONS = ["--no-sandbox", "--disable-background-networking", "--disable-component-update", "--disable-sync"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip these tests, with the repair, where there is no browser."""
    if CHROMIUM is None:
        skip = pytest.mark.skip(reason="Chromium is not installed: apt-get install chromium fonts-noto-cjk")
        for item in items:
            if "/tests/browser/" in str(item.path):
                item.add_marker(skip)


@pytest.fixture(scope="session")
def browser(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[Browser]:
    yield from _running()
    with django_db_blocker.unblock():
        _end_sessions()


def _end_sessions() -> None:
    """End what the server of the tests leaves: a request whose browser went away never closes its connection."""
    with connection.cursor() as cursor:
        cursor.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where datname = current_database() and pid <> pg_backend_pid()"
        )
    connection.close()


def _running() -> Iterator[Browser]:
    with pytest.MonkeyPatch.context() as environment, sync_playwright() as playwright:
        environment.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        yield running
        running.close()


@pytest.fixture
def troubles() -> list[str]:
    """What the browser complains of; a test that makes trouble takes its own out."""
    return []


@pytest.fixture
def context(browser: Browser, live_server: LiveServer, troubles: list[str]) -> Iterator[BrowserContext]:
    """A browser that nobody has used, which in the end complains of nothing."""
    context = browser.new_context(base_url=live_server.url, viewport={"width": 1280, "height": 900})
    context.set_default_timeout(20_000)
    context.on("weberror", lambda error: troubles.append(str(error.error)))
    context.on("console", lambda message: troubles.append(message.text) if _is_trouble(message) else None)
    yield context
    context.close()
    assert troubles == []


@pytest.fixture
def sign_in(context: BrowserContext, live_server: LiveServer) -> Callable[..., Page]:
    """Return a page of a member of staff who has just these permissions."""

    def _sign_in(*codenames: str) -> Page:
        user = User.objects.create_user("mira", is_staff=True)
        user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
        client = Client()
        client.force_login(user)
        session = client.cookies[settings.SESSION_COOKIE_NAME].value
        context.add_cookies([{"name": settings.SESSION_COOKIE_NAME, "value": session, "url": live_server.url}])
        return context.new_page()

    return _sign_in


def _is_trouble(message: ConsoleMessage) -> bool:
    # The project of the checkout has no icon.
    return message.type == "error" and not message.location["url"].endswith("/favicon.ico")
