"""The files of docs/monitoring: accepted by Prometheus's own tool, and about metrics that there are."""

import json
import re
import shutil
import subprocess
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from config.servers.places import CHECKOUT
from singleflight_app.domain.states import Status
from tests.announcing import announce_one_of_each
from tests.rows import flight_row
from tests.scraping import Scrape

FOLDER = CHECKOUT / "docs" / "monitoring"
RULES, RULES_TEST, DASHBOARD = FOLDER / "rules.yml", FOLDER / "rules_test.yml", FOLDER / "grafana.json"
PAGE = CHECKOUT / "docs" / "howto" / "monitoring.md"

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="there is no promtool here; Debian's package `prometheus` has it"
)
needs_metrics = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("empty_tables"),
    pytest.mark.prometheus,
]


def promtool(*words: str | Path) -> str:
    done = subprocess.run(["promtool", *words], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def expressions() -> list[str]:
    """Return what the dashboard asks Prometheus."""
    panels: list[dict[str, Any]] = json.loads(DASHBOARD.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", [])]


def alerts() -> list[str]:
    return re.findall(r"^\s*- alert: (\w+)$", RULES.read_text(), re.MULTILINE)


def names_in(text: str) -> set[str]:
    return set(re.findall(r"\bsingleflight_[a-z_]+\b(?!\.)", text))


@pytest.fixture
def scraped(client: Client, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return the names on a page of a process in which everything has happened once."""
    metrics = import_module("singleflight_app.telemetry.metrics")
    monkeypatch.setattr(metrics, "_stages", metrics.Stages())
    metrics.connect()
    flight_row(status=Status.RUNNING, lease_expires_at=timezone.now())
    flight_row(status=Status.PENDING)
    announce_one_of_each("assets")
    return Scrape(client.get(reverse("singleflight:metrics")).content.decode()).names


@needs_promtool
def test_prometheus_accepts_the_rules() -> None:
    """Their grammar, and that of the expressions in them."""
    assert "SUCCESS" in promtool("check", "rules", RULES)


@needs_promtool
def test_each_alert_fires_on_bad_numbers_and_is_silent_on_good_ones() -> None:
    """As Prometheus itself evaluates them."""
    assert "SUCCESS" in promtool("test", "rules", RULES_TEST)


def test_each_alert_has_a_test_and_a_section_of_the_runbook() -> None:
    """Who is woken at night finds what to do."""
    tests, page, rules = RULES_TEST.read_text(), PAGE.read_text(), RULES.read_text()

    assert len(alerts()) >= 8
    for alert in alerts():
        assert alert in tests, f"{alert} has no test"
        assert f"\n### {alert}\n" in page, f"{alert} has no section"
        assert f"runbook_url: docs/howto/monitoring.md#{alert.lower()}\n" in rules
    assert rules.count("summary: ") == rules.count("description: ") == rules.count("severity: ") == len(alerts())


@needs_promtool
def test_prometheus_accepts_what_the_dashboard_asks(tmp_path: Path) -> None:
    """Each expression, with values in place of Grafana's variables."""
    variables = {"$stage": ".*", "$__rate_interval": "5m", "$__range": "1d"}
    rules = []
    for number, expression in enumerate(expressions()):
        for name, value in variables.items():
            expression = expression.replace(name, value)  # noqa: PLW2901
        assert "$" not in expression
        rules.append({"record": f"panel:{number}", "expr": expression})
    path = tmp_path / "panels.yml"
    path.write_text(json.dumps({"groups": [{"name": "panels", "rules": rules}]}))  # JSON is YAML

    assert f"SUCCESS: {len(rules)} rules found" in promtool("check", "rules", path)


def test_the_dashboard_lets_data_source_and_stage_be_chosen() -> None:
    """It is imported where nobody knows its author's Prometheus."""
    dashboard = json.loads(DASHBOARD.read_text())
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]

    assert [variable["name"] for variable in dashboard["templating"]["list"]] == ["datasource", "stage"]
    assert {panel["datasource"]["uid"] for panel in panels} == {"${datasource}"}
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    assert all(panel["title"] and panel["description"] for panel in panels)


class TestNames:
    """A metric that is renamed fails here, not at three in the morning."""

    pytestmark = needs_metrics

    def test_every_metric_of_dashboard_and_rules_is_scraped(self, scraped: set[str]) -> None:
        """By its exact name."""
        named = names_in(" ".join(expressions())) | names_in(RULES.read_text()) - {"singleflight_app"}

        assert len(named) > 20
        assert named <= scraped

    def test_every_series_of_the_rules_tests_is_scraped(self, scraped: set[str]) -> None:
        """Else they would test numbers that nobody sends."""
        assert names_in(RULES_TEST.read_text()) <= scraped

    def test_every_metric_is_in_the_dashboard_and_on_the_page(self, scraped: set[str]) -> None:
        """What is counted can be seen, and read about."""
        page = PAGE.read_text()
        shown = names_in(" ".join(expressions()))
        metrics = {re.sub(r"_(bucket|sum|count)$", "", name) for name in scraped if not name.endswith("_created")}
        seen = {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown}

        assert [name for name in sorted(metrics) if f"`{name.removeprefix('singleflight_')}`" not in page] == []
        # What each caller was is in the answers by layer.
        by_role = {f"singleflight_{role}_total" for role in ("owner", "follower", "hit")}
        assert metrics - seen <= by_role


def test_recorded_names_are_those_of_the_rules() -> None:
    """The dashboard and the alerts ask for what a rule records."""
    recorded = set(re.findall(r"record: (\S+)", RULES.read_text()))
    asked = set(re.findall(r"singleflight:[a-z_]+:[a-z0-9]+", RULES.read_text() + DASHBOARD.read_text()))

    assert asked == recorded
