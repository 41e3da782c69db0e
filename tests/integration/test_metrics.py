"""/metrics as Prometheus sees it: the names of the design, fed by the engine's announcements."""

from decimal import Decimal
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from singleflight_app import GLOBAL, run
from singleflight_app.domain.exceptions import CoordinationUnavailable
from singleflight_app.domain.flight import Usage
from singleflight_app.domain.states import Claim, Layer, Role, Status
from singleflight_app.telemetry import signals
from tests.rows import flight_row

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("empty_tables"),
    pytest.mark.prometheus,
]

USAGE = Usage("small-1", 100, 20, Decimal("0.25"))
THE_ELEVEN = {
    "singleflight_request_total",
    "singleflight_owner_total",
    "singleflight_follower_total",
    "singleflight_hit_total",
    "singleflight_miss_total",
    "singleflight_wait_timeout_total",
    "singleflight_owner_failure_total",
    "singleflight_takeover_total",
    "singleflight_active_flights",
    "singleflight_wait_duration_seconds_count",
    "singleflight_execution_duration_seconds_count",
}
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@pytest.fixture(autouse=True)
def metrics() -> ModuleType:
    """The module, imported by the tests alone: the core runs without its requirement."""
    module = import_module("singleflight_app.telemetry.metrics")
    module.connect()
    return module


def _scrape(client: Client) -> Samples:
    page = client.get(reverse("singleflight:metrics"))
    assert page.status_code == 200
    parser = import_module("prometheus_client.parser")
    families = parser.text_string_to_metric_families(page.content.decode())
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in families
        for sample in family.samples
        if sample.name.startswith("singleflight_")
    }


def _value(samples: Samples, name: str, **labels: str) -> float:
    return samples.get((f"singleflight_{name}", frozenset(labels.items())), 0.0)


def _announce_one_of_each(stage: str) -> None:
    flight: dict[str, Any] = {"stage": stage, "flight_id": 1, "generation": 1}
    answer = {**flight, "waited": 0.2, "usage": USAGE, "failed": False}
    signals.announce(signals.lease_granted, **flight, claim=Claim.OWNER_NEW)
    signals.announce(signals.lease_taken_over, **flight)
    signals.announce(signals.flight_settled, **flight, status=Status.FAILED, seconds=4.0, usage=USAGE)
    signals.announce(signals.flight_fenced, **flight, usage=USAGE)
    signals.announce(signals.lease_lost, **flight, reason="superseded")
    signals.announce(signals.request_answered, **answer, role=Role.OWNER, layer=Layer.CALL)
    signals.announce(signals.request_answered, **answer, role=Role.FOLLOWER, layer=Layer.PROCESS)
    signals.announce(signals.request_answered, **answer, role=Role.REPLAY, layer=Layer.REDIS)
    signals.announce(signals.wait_timed_out, stage=stage, waited=90.0)
    signals.announce(signals.caller_refused, stage=stage, reason="max_waiters")
    signals.announce(signals.flight_degraded, stage=stage)
    signals.announce(signals.flight_forgotten, **flight)
    signals.announce(signals.result_dropped, **flight, reason="checksum")
    signals.announce(signals.result_changed, stage=stage)
    signals.announce(signals.coordination_failed, component="cache", error="ConnectionError")


def test_the_eleven_metrics_have_exactly_the_names_of_the_design(client: Client) -> None:
    """Dashboards and alerts of other people hang on them."""
    flight_row(status=Status.RUNNING)
    _announce_one_of_each("names")

    names = {name for name, _labels in _scrape(client)}

    assert names >= THE_ELEVEN


def test_no_label_tells_a_key_a_scope_or_an_owner(client: Client) -> None:
    """Their number would have no bound, and they may name people."""
    flight_row(status=Status.RUNNING)
    _announce_one_of_each("labels")

    labels = {label for _name, pairs in _scrape(client) for label, _value in pairs}

    assert labels == {"stage", "role", "layer", "reason", "le"}


def test_each_announcement_is_counted_once(client: Client, metrics: ModuleType) -> None:
    """Connecting twice changes nothing."""
    metrics.connect()
    _announce_one_of_each("once")

    samples = _scrape(client)

    assert _value(samples, "request_total", stage="once", role="owner", layer="call") == 1
    assert _value(samples, "request_total", stage="once", role="follower", layer="process") == 1
    assert _value(samples, "owner_total", stage="once") == 1
    assert _value(samples, "follower_total", stage="once") == 1
    assert _value(samples, "hit_total", stage="once", layer="redis") == 1
    assert _value(samples, "miss_total", stage="once") == 2, "a granted call and a degraded one"
    assert _value(samples, "takeover_total", stage="once") == 1
    assert _value(samples, "duplicate_call_total", stage="once") == 1
    assert _value(samples, "owner_failure_total", stage="once", reason="failed") == 1
    assert _value(samples, "wait_timeout_total", stage="once") == 1
    assert _value(samples, "superseded_total", stage="once") == 1
    assert _value(samples, "overload_total", stage="once", reason="max_waiters") == 1
    assert _value(samples, "wait_duration_seconds_count", stage="once", role="follower") == 2
    assert _value(samples, "execution_duration_seconds_sum", stage="once") == 4.0


def test_a_real_flight_is_a_miss_and_its_replay_a_hit(client: Client) -> None:
    """As the engine announces them."""
    for _ in range(2):
        run("metrics-score", {"answer": 1}, lambda: "good", scope=GLOBAL)

    samples = _scrape(client)

    hits = [
        value
        for (name, labels), value in samples.items()
        if name == "singleflight_hit_total" and ("stage", "metrics-score") in labels
    ]
    assert hits == [1]
    assert _value(samples, "miss_total", stage="metrics-score") == 1
    assert _value(samples, "owner_total", stage="metrics-score") == 1
    assert _value(samples, "execution_duration_seconds_count", stage="metrics-score") == 1


def test_tokens_and_money_are_spent_saved_and_wasted(client: Client) -> None:
    """Saved once for the follower and once for the replay."""
    _announce_one_of_each("money")

    samples = _scrape(client)

    assert _value(samples, "tokens_spent_total", stage="money") == 120
    assert _value(samples, "tokens_saved_total", stage="money") == 240
    assert _value(samples, "tokens_wasted_total", stage="money") == 120
    assert _value(samples, "cost_saved_total", stage="money") == 0.5


def test_active_flights_are_read_from_the_database_at_the_scrape(client: Client) -> None:
    """They are the cluster's, not this process's."""
    flight_row(stage="a", status=Status.RUNNING)
    flight_row(stage="a", status=Status.RUNNING, lease_expires_at=timezone.now())
    flight_row(stage="a", status=Status.PENDING)
    flight_row(stage="b", status=Status.PENDING)
    flight_row(stage="b")

    samples = _scrape(client)

    assert _value(samples, "active_flights_up") == 1
    assert _value(samples, "active_flights", stage="a") == 2
    assert _value(samples, "stalled_flights", stage="a") == 1
    assert _value(samples, "pending_flights", stage="a") == 1
    assert _value(samples, "pending_flights", stage="b") == 1


def test_without_an_answer_there_is_no_number_of_active_flights(metrics: ModuleType) -> None:
    """An old number would look like a fact; `up` tells why there is none."""

    def out_of_reach() -> list[Any]:
        raise CoordinationUnavailable("PostgreSQL is out of reach")

    families = list(metrics.ActiveFlights(out_of_reach).collect())

    samples = [(sample.name, sample.value) for family in families for sample in family.samples]
    assert samples == [("singleflight_active_flights_up", 0)]


def test_only_reading_is_allowed(client: Client) -> None:
    """A scrape changes nothing."""
    assert client.post(reverse("singleflight:metrics")).status_code == 405
