"""/metrics as Prometheus sees it: the names of the design, fed by the engine's announcements."""

from datetime import timedelta
from importlib import import_module
from types import ModuleType
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from singleflight_app import GLOBAL, run
from singleflight_app.domain.exceptions import CoordinationUnavailable
from singleflight_app.domain.states import Status
from singleflight_app.telemetry import signals
from tests.announcing import announce_one_of_each
from tests.rows import flight_row

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("empty_tables"),
    pytest.mark.prometheus,
]

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
def metrics(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, imported by the tests alone: the core runs without its requirement. It has met no stage yet."""
    module = import_module("singleflight_app.telemetry.metrics")
    module.connect()
    monkeypatch.setattr(module, "_stages", module.Stages())
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


def test_the_eleven_metrics_have_exactly_the_names_of_the_design(client: Client) -> None:
    """Dashboards and alerts of other people hang on them."""
    flight_row(status=Status.RUNNING)
    announce_one_of_each("names")

    names = {name for name, _labels in _scrape(client)}

    assert names >= THE_ELEVEN


def test_no_label_tells_a_key_a_scope_or_an_owner(client: Client) -> None:
    """Their number would have no bound, and they may name people."""
    flight_row(status=Status.RUNNING)
    announce_one_of_each("labels")

    labels = {label for _name, pairs in _scrape(client) for label, _value in pairs}

    assert labels == {"stage", "role", "layer", "reason", "le"}


def test_each_announcement_is_counted_once(client: Client, metrics: ModuleType) -> None:
    """Connecting twice changes nothing."""
    metrics.connect()
    announce_one_of_each("once")

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
    assert _value(samples, "woken_total", stage="once", reason="hint") == 1
    assert _value(samples, "breaker_opened_total", stage="once") == 1
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
    announce_one_of_each("money")

    samples = _scrape(client)

    assert _value(samples, "tokens_spent_total", stage="money") == 120
    assert _value(samples, "tokens_saved_total", stage="money") == 240
    assert _value(samples, "tokens_wasted_total", stage="money") == 120
    assert _value(samples, "cost_saved_total", stage="money") == 0.5


def test_stages_past_the_bound_are_counted_together(
    client: Client, metrics: ModuleType, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """`run` takes any string as a stage; a setting's name is always its own, and the log says once what happens."""
    monkeypatch.setattr(metrics, "_stages", metrics.Stages(2))
    before = _value(_scrape(client), "wait_timeout_total", stage="other")
    for stage in ("bound-1", "bound-2", "bound-3", "bound-4", "bound-3", "calm"):
        signals.announce(signals.wait_timed_out, stage=stage, waited=1.0)
    flight_row(stage="bound-5", status=Status.RUNNING)
    flight_row(stage="bound-6", status=Status.RUNNING)

    samples = _scrape(client)

    assert _value(samples, "wait_timeout_total", stage="bound-2") == 1
    assert _value(samples, "wait_timeout_total", stage="calm") >= 1
    assert _value(samples, "wait_timeout_total", stage="other") == before + 3
    assert _value(samples, "active_flights", stage="other") == 2
    assert not [labels for _name, labels in samples if ("stage", "bound-3") in labels]
    assert caplog.text.count("stages_overflow") == 1


def test_ten_thousand_stages_leave_as_many_series_as_the_bound(client: Client, metrics: ModuleType) -> None:
    """Nor does anything that looks series up keep the names."""
    children = metrics._counter_of.cache_info().currsize
    for number in range(10_000):
        signals.announce(signals.lease_granted, stage=f"flood-{number}", flight_id=1, generation=1)

    flooded = {dict(labels)["stage"] for name, labels in _scrape(client) if "miss_total" in name}

    assert len([stage for stage in flooded if stage.startswith("flood-")]) == metrics.MAX_STAGES
    assert "other" in flooded
    assert metrics._counter_of.cache_info().currsize <= children + metrics.MAX_STAGES + 1


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


def test_the_oldest_flights_tell_their_age_by_the_database_clock(client: Client) -> None:
    """One that runs or waits for ever is seen, however many come and go beside it."""
    now = timezone.now()
    flight_row(stage="a", status=Status.RUNNING, started_at=now - timedelta(hours=2))
    flight_row(stage="a", status=Status.RUNNING, started_at=now)
    flight_row(stage="b", status=Status.PENDING, created_at=now - timedelta(hours=1))

    samples = _scrape(client)

    assert 7200 <= _value(samples, "oldest_lease_seconds", stage="a") < 7300
    assert 3600 <= _value(samples, "oldest_pending_seconds", stage="b") < 3700
    assert ("singleflight_oldest_pending_seconds", frozenset({("stage", "a")})) not in samples


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
