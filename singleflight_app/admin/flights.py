"""Admin pages: read-only, apart from an operator's four moves (`actions`), and fast on a table of millions of rows.

Every list walks an index and ends somewhere; a count is exact only while it is small. A result or the
arguments of a call are shown, escaped, to those who hold `view_result_flight`; everything else of a
flight is metadata. Actions need their own permission and are audited with the user's name.
"""

from typing import TYPE_CHECKING, Any, cast

from django.contrib import admin
from django.core.paginator import Paginator
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.functional import cached_property
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import format_lazy
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from singleflight_app import api
from singleflight_app.admin.actions import FlightActions
from singleflight_app.domain.exceptions import ResultUnreadable
from singleflight_app.domain.flight import StoredResult
from singleflight_app.domain.states import LIVE, Status
from singleflight_app.models import Flight, StageStat
from singleflight_app.storage import selectors

if TYPE_CHECKING:
    from datetime import timedelta

    AnyAdmin = admin.ModelAdmin[Any]
    AnyPaginator = Paginator[Any]
else:
    AnyAdmin, AnyPaginator = admin.ModelAdmin, Paginator

EMPTY = "-"
LAST_PAGE_MAX = 1000
TEXT_MAX = 100_000
VIEWS = {
    "in_flight": (_("in flight"), LIVE),
    "succeeded": (_("succeeded"), {Status.SUCCEEDED}),
    "failed": (_("failed"), {Status.FAILED, Status.TIMED_OUT}),
}


class EstimatedPaginator(AnyPaginator):
    """Pages whose count is estimated when it is large; none lies deeper than OFFSET reaches quickly."""

    @cached_property
    def count(self) -> int:
        """The number of rows, exact only while it is small."""
        return selectors.count(cast("QuerySet[Any]", self.object_list))

    @cached_property
    def num_pages(self) -> int:
        """The number of pages offered; older flights are found by search."""
        pages = -(-self.count // self.per_page)
        return min(max(pages, 1), LAST_PAGE_MAX)


class ViewFilter(admin.SimpleListFilter):
    """The in-flight, succeeded and failed views."""

    title = _("view")
    parameter_name = "view"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:  # noqa: ANN401  (Django's signature)
        """Return the views' names and titles."""
        return [(name, title) for name, (title, _statuses) in VIEWS.items()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Return the flights of the chosen view; an unknown one shows all."""
        chosen = VIEWS.get(self.value() or "")
        return queryset if chosen is None else selectors.having(queryset, chosen[1])


class ReadOnlyAdmin(AnyAdmin):
    """Nobody adds, changes or deletes rows here: flights move by the protocol alone."""

    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    sortable_by = ()
    paginator = EstimatedPaginator

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        """Refuse other filters by URL: they would scan the table, and betray columns one may not read."""
        return lookup == ViewFilter.parameter_name


@admin.register(Flight)
class FlightAdmin(FlightActions, ReadOnlyAdmin):
    """Flights: a list with views, a page each with its audit rows and the moves that may be made."""

    list_display = ("id", "stage", "status", "generation", "owner", "heartbeat_age", "joins", "size")
    list_filter = (ViewFilter,)
    list_max_show_all = 0
    ordering = ("-id",)
    search_fields = ("id",)
    search_help_text = format_lazy(
        _("id, key digest (64 hexadecimal digits), or exact scope (live flights and the newest {depth})"),
        depth=selectors.SEARCH_DEPTH,
    )
    readonly_fields = ("digest_hex", "heartbeat_age", "result_text", "arguments_text")
    fieldsets = (
        (
            None,
            {
                "fields": (
                    "stage",
                    "scope",
                    "label",
                    "digest_hex",
                    "status",
                    "generation",
                    "forgotten",
                    "joins",
                )
            },
        ),
        (_("Owner"), {"fields": ("owner", "lease_expires_at", "heartbeat_at", "heartbeat_age", "progress")}),
        (_("Attempts"), {"fields": ("attempts", "takeovers", "retryable", "retry_at")}),
        (_("Times"), {"fields": ("created_at", "sent_at", "started_at", "settled_at", "expires_at")}),
        (_("Usage"), {"fields": ("model", "input_tokens", "output_tokens", "cost")}),
        (_("Outcome"), {"fields": ("error_type", "error_message", "size", "encoding", "result_location")}),
    )
    content_fieldset = (_("Content"), {"fields": ("result_text", "arguments_text")})

    def get_queryset(self, request: HttpRequest) -> QuerySet[Flight]:
        return selectors.flights()

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Flight], search_term: str
    ) -> tuple[QuerySet[Flight], bool]:
        """Search by id, key digest or exact scope."""
        text = search_term.strip()
        return (selectors.matching(queryset, text) if text else queryset), False

    def get_fieldsets(self, request: HttpRequest, obj: Flight | None = None) -> Any:  # noqa: ANN401  (Django's type is private)
        """Add the content for those who may read it."""
        return (*self.fieldsets, self.content_fieldset) if self.has_view_result_permission(request) else self.fieldsets

    def render_change_form(
        self,
        request: HttpRequest,
        context: dict[str, Any],
        add: bool = False,  # noqa: FBT001, FBT002  (the same)
        change: bool = False,  # noqa: FBT001, FBT002  (the same)
        form_url: str = "",
        obj: Flight | None = None,
    ) -> HttpResponse:
        """Add the audit rows to the page of a flight."""
        if obj is not None:
            context["events"] = selectors.events_of(obj.pk)
        return super().render_change_form(request, context, add, change, form_url, obj)

    @admin.display(description=_("key digest"))
    def digest_hex(self, flight: Flight) -> str:
        return flight.digest_hex

    @admin.display(description=_("heartbeat age"), empty_value=EMPTY)
    def heartbeat_age(self, flight: Flight) -> str:
        """Seconds since the last beat, while somebody should be beating."""
        age: timedelta | None = getattr(flight, "heartbeat_age", None)
        if age is None or flight.status != Status.RUNNING:
            return EMPTY
        return gettext("%(seconds).1f s") % {"seconds": age.total_seconds()}

    @admin.display(description=_("result"), empty_value=EMPTY)
    def result_text(self, flight: Flight) -> SafeString | None:
        """The result as text; it came from outside and is never markup."""
        if flight.result is None:
            return None
        stored = StoredResult(bytes(flight.result), flight.encoding, bytes(flight.checksum or b""), flight.size or 0)
        try:
            return _preformatted(api.readable_result(stored, bytes(flight.digest)))
        except ResultUnreadable as exc:
            return _preformatted(gettext("unreadable: %(reason)s") % {"reason": exc})

    @admin.display(description=_("arguments"), empty_value=EMPTY)
    def arguments_text(self, flight: Flight) -> SafeString | None:
        """The arguments of a background flight; they are erased when it settles."""
        return None if flight.arguments is None else _preformatted(str(flight.arguments))

    def has_view_result_permission(self, request: HttpRequest) -> bool:
        return _has(request, "view_result_flight")


@admin.register(StageStat)
class StageStatAdmin(ReadOnlyAdmin):
    """What each stage did, by hour."""

    list_display = (
        "stage",
        "hour",
        "requests",
        "calls",
        "followers",
        "replays",
        "failures",
        "takeovers",
        "tokens_saved",
        "cost_spent",
        "cost_saved",
        "cost_wasted",
    )
    list_display_links = None
    ordering = ("-hour", "stage")

    def get_queryset(self, request: HttpRequest) -> QuerySet[StageStat]:
        return selectors.stage_stats()


def _has(request: HttpRequest, codename: str) -> bool:
    return request.user.has_perm(f"singleflight.{codename}")


def _preformatted(text: str) -> SafeString:
    shown = text if len(text) <= TEXT_MAX else text[:TEXT_MAX] + "…"
    return format_html('<pre class="singleflight-content">{}</pre>', shown)
