"""HTTP views of the app: /metrics, which needs django-prometheus and is routed only with it."""

from typing import cast

from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe
from django_prometheus.exports import ExportToDjangoView
from prometheus_client import CollectorRegistry, generate_latest

from singleflight_app.conf import get_settings
from singleflight_app.domain.tally import LiveFlights
from singleflight_app.storage.stats import StageStats
from singleflight_app.telemetry.metrics import ActiveFlights
from singleflight_app.wiring import runtime


def _live_flights() -> list[LiveFlights]:
    database = runtime().database
    return [] if database is None else StageStats(database).live_flights()


# A registry of its own: the multi-process export leaves custom collectors out, and other exporters of
# this process should not query the database.
_ACTIVE = CollectorRegistry()
_ACTIVE.register(ActiveFlights(_live_flights))


@transaction.non_atomic_requests
@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """Return the metrics of this process, or of all with PROMETHEUS_MULTIPROC_DIR, and the live flights.

    It shows stage names and sums of money: route it where only Prometheus comes.
    """
    page = cast("HttpResponse", ExportToDjangoView(request))
    if get_settings().mode != "local":
        page.content += generate_latest(_ACTIVE)
    return page
