"""Prometheus metrics, fed by the signals alone.

Labels are stage, role, layer and reason, never a key, a scope or an owner. A stage may be any string at
run time: past `MAX_STAGES` of them, those that no setting names are counted as `other`. Counters say what
this process saw: one that dies between an event and its count loses that count (under, never over).
Nothing here talks to a server, except `ActiveFlights` while it is being scraped.

A hit is a request that a stored outcome answered, a miss is a call that was begun. Followers are
neither; requests per call (`request_total / miss_total`) is the merge ratio.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from functools import cache

from django.dispatch import Signal
from prometheus_client import Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from singleflight_app.conf import get_settings
from singleflight_app.domain.exceptions import CoordinationUnavailable
from singleflight_app.domain.flight import NO_USAGE, Usage
from singleflight_app.domain.states import Layer, Role, Status
from singleflight_app.domain.tally import DURATION_BOUNDS, LiveFlights
from singleflight_app.telemetry import signals

logger = logging.getLogger("singleflight_app")

MAX_STAGES = 200  #: by process
OTHER = "other"  #: the stages past them


def _counter(name: str, text: str, *labels: str) -> Counter:
    return Counter(f"singleflight_{name}_total", text, ("stage", *labels))


REQUESTS = _counter("request", "Callers that got their answer", "role", "layer")
OWNERS = _counter("owner", "Callers that made the call")
FOLLOWERS = _counter("follower", "Callers that waited for an owner's outcome")
HITS = _counter("hit", "Callers that a stored outcome answered", "layer")
MISSES = _counter("miss", "Calls begun")
WAIT_TIMEOUTS = _counter("wait_timeout", "Callers whose wait budget ended first")
OWNER_FAILURES = _counter("owner_failure", "Flights that ended without a result", "reason")
TAKEOVERS = _counter("takeover", "Grants over an expired lease")
DUPLICATES = _counter("duplicate_call", "Calls begun again because an earlier owner's lease expired")
LEASES_LOST = _counter("lease_lost", "Leases that the row proves over", "reason")
SUPERSEDED = _counter("superseded", "Owners overtaken by a newer generation")
FENCED = _counter("fenced", "Late ends that were refused")
DEGRADED = _counter("degraded", "Calls made without the database (hybrid mode)")
WOKEN = _counter("woken", "Followers by what told them of the end, once per flight and process", "reason")
BREAKERS_OPENED = _counter("breaker_opened", "Times that a breaker opened in a process")
OVERLOADS = _counter("overload", "Callers turned away by a limit", "reason")
FORGOTTEN = _counter("forgotten", "Outcomes dropped by forget")
RESULTS_DROPPED = _counter("result_dropped", "Stored results that could not be read", "reason")
RESULTS_CHANGED = _counter("result_changed", "Values that came back from their stored form as something else")
TOKENS_SPENT = _counter("tokens_spent", "Tokens of calls whose end was stored")
TOKENS_SAVED = _counter("tokens_saved", "Tokens of calls that followers and replays did not make")
TOKENS_WASTED = _counter("tokens_wasted", "Tokens of calls whose end was refused")
COST_SPENT = _counter("cost_spent", "Cost of calls whose end was stored, in the currency of the prices")
COST_SAVED = _counter("cost_saved", "Cost of calls that followers and replays did not make")
COST_WASTED = _counter("cost_wasted", "Cost of calls whose end was refused")
COORDINATION_FAILURES = Counter(
    "singleflight_coordination_failure_total", "Failures of a helper that were worked around", ("reason",)
)
WAITS = Histogram(
    "singleflight_wait_duration_seconds",
    "A caller's whole time until its answer, or until it gave up",
    ("stage", "role"),
    buckets=DURATION_BOUNDS,
)
EXECUTIONS = Histogram(
    "singleflight_execution_duration_seconds", "Duration of a call", ("stage",), buckets=DURATION_BOUNDS
)


class Stages:
    """The names that the label `stage` may have in this process."""

    def __init__(self, most: int = MAX_STAGES) -> None:
        self._most, self._is_said = most, False
        self._labels: dict[str, str] = {}

    def label(self, stage: str) -> str:
        """Return the stage, or `OTHER` for one too many."""
        return self._labels.get(stage) or self._met(stage)

    def _met(self, stage: str) -> str:
        # No lock: some threads at once may go past the bound by their number.
        if len(self._labels) < self._most or stage in get_settings().stages:
            return self._labels.setdefault(stage, stage)
        was_said, self._is_said = self._is_said, True
        if not was_said:
            logger.warning(
                "stages_overflow: more than %s stages; metrics count further ones as %r: name a stage by kind of call, "
                "and put what varies into the request",
                *(self._most, OTHER),
            )
        return OTHER


_stages = Stages()


# The parent's own look-up by labels costs more than the count; there are as many children as label values.
@cache
def _counter_of(metric: Counter, *labels: str) -> Counter:
    return metric.labels(*labels)


@cache
def _histogram_of(metric: Histogram, *labels: str) -> Histogram:
    return metric.labels(*labels)


def _counted(metric: Counter, stage: str, *labels: str) -> Counter:
    return _counter_of(metric, _stages.label(stage), *labels)


def _timed(metric: Histogram, stage: str, *labels: str) -> Histogram:
    return _histogram_of(metric, _stages.label(stage), *labels)


def connect() -> None:
    """Begin to count; calling it again changes nothing."""
    for signal, receiver in _RECEIVERS:
        signal.connect(receiver, weak=False)


class ActiveFlights(Collector):
    """Gauges of live flights, read from the database when scraped: true for the whole cluster.

    When `read` raises `CoordinationUnavailable` there are no numbers, only `..._up 0`: an old number
    would look like a fact.
    """

    def __init__(self, read: Callable[[], Iterable[LiveFlights]]) -> None:
        self._read = read

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield `up`, and the gauges if the database answered."""
        up = "Whether the database told the number of live flights"
        try:
            live = list(self._read())
        except CoordinationUnavailable:
            yield GaugeMetricFamily("singleflight_active_flights_up", up, value=0)
            return
        yield GaugeMetricFamily("singleflight_active_flights_up", up, value=1)
        yield _gauge("active_flights", "Running flights", sum, ((row.stage, row.running) for row in live))
        yield _gauge(
            "stalled_flights", "Running flights without a lease", sum, ((row.stage, row.stalled) for row in live)
        )
        yield _gauge(
            "pending_flights", "Flights that wait for a worker", sum, ((row.stage, row.pending) for row in live)
        )
        lease, pending = (
            "Age of the oldest running flight's grant",
            "How long the oldest flight has waited for a worker",
        )
        yield _gauge("oldest_lease_seconds", lease, max, ((row.stage, row.oldest_lease) for row in live))
        yield _gauge("oldest_pending_seconds", pending, max, ((row.stage, row.oldest_pending) for row in live))


def _gauge(
    name: str,
    text: str,
    folded: Callable[[list[float]], float],
    values: Iterable[tuple[str, float | None]],
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"singleflight_{name}", text, labels=("stage",))
    by_label: dict[str, list[float]] = {}
    for stage, value in values:
        if value is not None:
            by_label.setdefault(_stages.label(stage), []).append(value)
    for label, found in by_label.items():
        family.add_metric((label,), folded(found))
    return family


def _count_answer(*, stage: str, role: Role, layer: Layer, waited: float, usage: Usage, **_: object) -> None:
    requests, waits, of_role = _of_answer(_stages.label(stage), role, layer)
    requests.inc()
    waits.observe(waited)
    of_role.inc()
    if role is not Role.OWNER:
        _count_usage(TOKENS_SAVED, COST_SAVED, stage, usage)


@cache
def _of_answer(stage: str, role: Role, layer: Layer) -> tuple[Counter, Histogram, Counter]:
    """Return what every answer of a kind counts in: ten thousand followers of one flight look it up once each."""
    of_role = {
        Role.OWNER: (OWNERS, stage),
        Role.FOLLOWER: (FOLLOWERS, stage),
        Role.REPLAY: (HITS, stage, layer),
    }
    return _counter_of(REQUESTS, stage, role, layer), _histogram_of(WAITS, stage, role), _counter_of(*of_role[role])


def _count_given_up(*, stage: str, waited: float, **_: object) -> None:
    _counted(WAIT_TIMEOUTS, stage).inc()
    # Left out, the slowest waits would be missing from the histogram.
    _timed(WAITS, stage, Role.FOLLOWER).observe(waited)


def _count_woken(*, stage: str, by: str, **_: object) -> None:
    _counted(WOKEN, stage, by).inc()


def _count_opened(*, stage: str, **_: object) -> None:
    _counted(BREAKERS_OPENED, stage).inc()


def _count_refusal(*, stage: str, reason: str, **_: object) -> None:
    _counted(OVERLOADS, stage, reason).inc()


def _count_grant(*, stage: str, **_: object) -> None:
    _counted(MISSES, stage).inc()


def _count_takeover(*, stage: str, **_: object) -> None:
    _counted(TAKEOVERS, stage).inc()
    _counted(DUPLICATES, stage).inc()


def _count_lost(*, stage: str, reason: str, **_: object) -> None:
    _counted(LEASES_LOST, stage, reason).inc()
    if reason == "superseded":
        _counted(SUPERSEDED, stage).inc()


def _count_settled(*, stage: str, status: Status, seconds: float | None, usage: Usage, **_: object) -> None:
    if seconds is not None:
        _timed(EXECUTIONS, stage).observe(seconds)
    if status is not Status.SUCCEEDED:
        _counted(OWNER_FAILURES, stage, status).inc()
    _count_usage(TOKENS_SPENT, COST_SPENT, stage, usage)


def _count_fenced(*, stage: str, usage: Usage, **_: object) -> None:
    _counted(FENCED, stage).inc()
    _count_usage(TOKENS_WASTED, COST_WASTED, stage, usage)


def _count_degraded(*, stage: str, **_: object) -> None:
    _counted(DEGRADED, stage).inc()
    _counted(MISSES, stage).inc()


def _count_forgotten(*, stage: str, **_: object) -> None:
    _counted(FORGOTTEN, stage).inc()


def _count_dropped(*, stage: str, reason: str, **_: object) -> None:
    _counted(RESULTS_DROPPED, stage, reason).inc()


def _count_changed(*, stage: str, **_: object) -> None:
    _counted(RESULTS_CHANGED, stage).inc()


def _count_failure(*, component: str, **_: object) -> None:
    _counter_of(COORDINATION_FAILURES, component).inc()


def _count_usage(tokens: Counter, cost: Counter, stage: str, usage: Usage) -> None:
    if usage is not NO_USAGE:
        _counted(tokens, stage).inc(usage.tokens)
        _counted(cost, stage).inc(float(usage.cost))


_RECEIVERS: tuple[tuple[Signal, Callable[..., None]], ...] = (
    (signals.request_answered, _count_answer),
    (signals.wait_timed_out, _count_given_up),
    (signals.follower_woken, _count_woken),
    (signals.breaker_opened, _count_opened),
    (signals.caller_refused, _count_refusal),
    (signals.lease_granted, _count_grant),
    (signals.lease_taken_over, _count_takeover),
    (signals.lease_lost, _count_lost),
    (signals.flight_settled, _count_settled),
    (signals.flight_fenced, _count_fenced),
    (signals.flight_degraded, _count_degraded),
    (signals.flight_forgotten, _count_forgotten),
    (signals.result_dropped, _count_dropped),
    (signals.result_changed, _count_changed),
    (signals.coordination_failed, _count_failure),
)
