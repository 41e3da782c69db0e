"""The dashboard: what is in flight now, what sharing calls saved, and the ledger as a file.

It is a page of the admin without rows of its own, so the model that it is registered for exists nowhere else.
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from django.apps.registry import Apps
from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.db import models
from django.db.utils import Error
from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest, StreamingHttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path
from django.utils import formats
from django.utils.timezone import localtime
from django.utils.translation import gettext, gettext_lazy
from django.utils.translation import gettext_lazy as _

from singleflight_app import dashboard
from singleflight_app.admin import charts, shown
from singleflight_app.admin.flights import ReadOnlyAdmin
from singleflight_app.conf import get_settings
from singleflight_app.dashboard import LiveStage, StageLine, Window
from singleflight_app.domain.sums import COLUMNS, Sums, csv_lines
from singleflight_app.storage import sums

TITLES = {"today": _("today"), "7d": _("7 days"), "30d": _("30 days")}
_ALL = "all"


class Dashboard(models.Model):
    """A name in the admin's index, with a registry of its own: no table, no permission, no migration."""

    class Meta:
        apps = Apps()
        app_label = "singleflight"
        managed = False
        default_permissions = ()
        verbose_name = verbose_name_plural = _("dashboard")

    def __str__(self) -> str:
        """Return the page's name; there is no row that has one."""
        return gettext("Dashboard")


@admin.register(Dashboard)
class DashboardAdmin(ReadOnlyAdmin):
    """Two pages: the dashboard, and the ledger's rows as CSV."""

    def get_urls(self) -> list[URLPattern]:
        """Return the pages' addresses; the first also under the name by which the admin's index looks for it."""
        page, export = (self.admin_site.admin_view(view) for view in (self.page, self.export))
        return [
            path("", page, name="singleflight_dashboard"),
            path("", page, name="singleflight_dashboard_changelist"),
            path("export/", export, name="singleflight_dashboard_export"),
        ]

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request)

    def has_view_permission(self, request: HttpRequest, obj: models.Model | None = None) -> bool:
        """Tell whether one may see both flights and the ledger."""
        return all(request.user.has_perm(f"singleflight.view_{model}") for model in ("flight", "stagestat"))

    def page(self, request: HttpRequest) -> HttpResponse:
        """Show the dashboard of `window`."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        window = request.GET.get("window", "")
        window = window if window in dashboard.WINDOWS else "today"
        context = {
            **self.admin_site.each_context(request),
            "title": gettext("Dashboard"),
            "window": window,
            "windows": TITLES.items(),
            "is_local": get_settings().mode == "local",
            "health": dashboard.health(),
        }
        try:
            context |= _shown(dashboard.gathered(window))
        except Error as exc:
            context["problem"] = exc
        return TemplateResponse(request, "admin/singleflight/dashboard/dashboard.html", context)

    def export(self, request: HttpRequest) -> HttpResponse | StreamingHttpResponse:
        """Return the ledger's rows of `window`, stage by stage and hour by hour, as a file for spreadsheets."""
        if not request.user.has_perm("singleflight.view_stagestat"):
            raise PermissionDenied
        window = request.GET.get("window", "today")
        if window not in {*dashboard.WINDOWS, _ALL}:
            known = ", ".join([*dashboard.WINDOWS, _ALL])
            return HttpResponseBadRequest(f"window is one of: {known}", content_type="text/plain")
        known_stages = sums.stages()
        chosen = set(request.GET.getlist("stage")) or set(known_stages)
        rows = _csv([stage for stage in known_stages if stage in chosen], window)
        name = f"singleflight-ledger-{window}-{datetime.now(UTC):%Y%m%d-%H%M}.csv"
        headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
        headers["X-Content-Type-Options"] = "nosniff"
        return StreamingHttpResponse(rows, content_type="text/csv; charset=utf-8", headers=headers)


def _csv(stages: list[str], window: str) -> Iterator[str]:
    since, until = datetime(2000, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)
    if window != _ALL:
        chosen = Window.of_days(dashboard.WINDOWS[window])
        since, until = chosen.since, chosen.until
    return csv_lines(sums.hours(stages, since, until), by=("stage", "hour"))


def _shown(found: dashboard.Dashboard) -> Mapping[str, Any]:
    """Return what the template shows of a dashboard."""
    return {
        "tiles": [_tile(TITLES[name], of) for name, of in found.tiles.items()],
        "stages": [_stage(line) for line in found.stages],
        "whole": _stage(StageLine("", found.whole)),
        "live": [_live(line) for line in found.live],
        "live_whole": _live_whole(found.live),
        "charts": _charts(found),
        "is_empty": not any(of.requests or of.calls for of in found.tiles.values()),
        "since": localtime(found.window.since, found.window.zone),
        "zone": str(found.window.zone),
    }


def _tile(title: object, of: Sums) -> dict[str, object]:
    return {
        "title": title,
        "calls": shown.number(of.calls),
        "requests": shown.number(of.requests),
        "ratio": shown.ratio(of.merge_ratio),
        "shared": shown.number(of.shared),
        "tokens": shown.number(of.tokens_saved),
        "money": shown.money(of.cost_saved),
        "spent": shown.money(of.cost_spent),
    }


def _stage(line: StageLine) -> dict[str, object]:
    of = line.sums
    counts = (name for name in COLUMNS if not name.startswith("cost_"))
    return {
        "stage": line.stage,
        **{name: shown.number(getattr(of, name)) for name in (*counts, "replays_database", "duplicates")},
        "has_waste": bool(of.duplicates or of.fenced),
        "ratio": shown.ratio(of.merge_ratio),
        **{name: shown.duration(getattr(line, name)) for name in ("wait_p50", "wait_p95", "run_p50", "run_p95")},
        **{name: shown.money(getattr(of, name)) for name in ("cost_spent", "cost_saved", "cost_wasted")},
    }


def _live(line: LiveStage) -> dict[str, object]:
    return {
        "stage": line.stage,
        "running": shown.number(line.running),
        "stuck": shown.number(line.stuck) if line.stuck else "",
        "pending": shown.number(line.pending),
        "is_overdue": line.is_overdue,
        "longest_run": shown.age(line.longest_run),
        "longest_overdue": shown.age(line.longest_overdue) if line.stuck else shown.NONE,
        "longest_pending": shown.age(line.longest_pending),
    }


def _live_whole(lines: list[LiveStage]) -> dict[str, str]:
    names = ("running", "stuck", "pending")
    return {name: shown.number(sum(getattr(line, name) for line in lines)) for name in names}


def _charts(found: dashboard.Dashboard) -> list[dict[str, object]]:
    """Return the two charts, each with the same numbers as a table."""
    form, short = ("H:i", "H:i") if found.window.by == "hour" else ("Y-m-d", "m-d")
    times = [localtime(step, found.window.zone) for step, _sums in found.steps]
    labels, axis = ([formats.date_format(time, which) for time in times] for which in (form, short))
    steps = [of for _step, of in found.steps]
    calls: list[tuple[Any, list[Any]]] = [
        (gettext_lazy("calls"), [of.calls for of in steps]),
        (gettext_lazy("shared answers"), [of.shared for of in steps]),
    ]
    costs: list[tuple[Any, list[Any]]] = [
        (gettext_lazy("spent"), [of.cost_spent for of in steps]),
        (gettext_lazy("saved"), [of.cost_saved for of in steps]),
        (gettext_lazy("wasted"), [of.cost_wasted for of in steps]),
    ]
    return [
        _chart("calls", gettext("Calls and shared answers"), gettext("number"), (labels, axis), calls, shown.number),
        _chart("money", gettext("Money spent and saved"), gettext("money"), (labels, axis), costs, shown.money),
    ]


def _chart(
    name: str,
    title: str,
    upwards: str,
    labels: tuple[list[str], list[str]],
    parts: list[tuple[Any, list[Any]]],
    told: Any,  # noqa: ANN401
) -> dict[str, object]:
    texts = [[told(value) for value in values] for _name, values in parts]
    series = [charts.Series(str(part), [float(value) for value in values]) for part, values in parts]
    counted = [any(values) for values in zip(*(values for _name, values in parts), strict=True)]
    rows = [row for row, is_counted in zip(zip(labels[0], *texts, strict=True), counted, strict=True) if is_counted]
    return {
        "name": name,
        "title": title,
        "upwards": upwards,
        "drawing": charts.stacked(labels[0], series, texts, short=labels[1]),
        "columns": [part.name for part in series],
        "rows": rows,
    }
