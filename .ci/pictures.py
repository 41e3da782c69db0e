"""Plays the demo and takes the pictures of docs/pictures, in light and dark: .venv/bin/python .ci/pictures.py.

It needs Debian's chromium. Not part of CI: pictures of another machine would differ in each byte.
"""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

import django
from playwright.sync_api import Page, sync_playwright

PICTURES = Path(__file__).resolve().parents[1] / "docs" / "pictures"
WIDTH, HEIGHT = 1440, 1000


def main() -> None:
    """Play, then look."""
    django.setup()
    from config.servers import start_servers
    from interview_demo.demo.migrating import migrate
    from interview_demo.demo.operator import invited_operator
    from interview_demo.demo.running import running_cluster

    start_servers()
    migrate()
    with running_cluster() as cluster, invited_operator() as operator:
        played(cluster, operator)
        for scheme in ("light", "dark"):
            with signed_in(cluster.second.url, operator.name, operator.password, scheme) as page:
                look(page, scheme)


def played(cluster: object, operator: object) -> None:
    """Play the demo's interview on the cluster."""
    from rich.console import Console

    from interview_demo.demo.asking import Candidate
    from interview_demo.demo.dashboard import LookedAt
    from interview_demo.demo.playing import Interview
    from interview_demo.demo.telling import Terminal

    terminal = Terminal(Console(stderr=True))
    with Candidate(terminal.asked) as candidate, LookedAt(cluster.second.url, operator) as dashboard:  # type: ignore[attr-defined, arg-type]
        Interview(cluster, candidate, dashboard, terminal).play()  # type: ignore[arg-type]


@contextmanager
def signed_in(url: str, name: str, password: str, scheme: str) -> Iterator[Page]:
    """Open the admin as the demo's operator."""
    with sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-background-networking"]
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=options)
        context = browser.new_context(
            base_url=url,
            viewport={"width": WIDTH, "height": HEIGHT},
            color_scheme="dark" if scheme == "dark" else "light",
        )
        page = context.new_page()
        page.goto("/admin/")
        page.get_by_label("Username:").fill(name)
        page.get_by_label("Password:").fill(password)
        page.get_by_role("button", name="Log in").click()
        yield page
        browser.close()


def look(page: Page, scheme: str) -> None:
    """Take a picture of each page."""
    PICTURES.mkdir(exist_ok=True)
    page.goto("/admin/singleflight/dashboard/")
    page.screenshot(path=PICTURES / f"dashboard-{scheme}.png")
    page.goto("/admin/singleflight/flight/")
    page.screenshot(path=PICTURES / f"flights-{scheme}.png")
    page.goto(f"/admin/singleflight/flight/{taken_over()}/change/")
    page.screenshot(path=PICTURES / f"flight-{scheme}.png")


def taken_over() -> int:
    """Return the flight whose first owner was killed."""
    from concurrent.futures import ThreadPoolExecutor

    from singleflight_app.models import FlightEvent

    with ThreadPoolExecutor(1) as elsewhere:  # Playwright keeps a loop in this thread
        newest = elsewhere.submit(FlightEvent.objects.filter(kind="taken_over").latest, "id").result()
    return newest.flight_id


if __name__ == "__main__":
    main()
