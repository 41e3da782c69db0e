"""Admin pages: read-only, apart from an operator's four moves (`actions`), and fast on a table of millions of rows.

Every list walks an index and ends somewhere; a count is exact only while it is small. A result or the
arguments of a call have a page of their own, for those who hold `view_result_flight`; everything else of a
flight is metadata. Actions need their own permission and are audited with the user's name.
"""

from typing import TYPE_CHECKING, Any, cast

from django.contrib import admin
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db.models import Model, QuerySet
from django.forms import Script
from django.http import Http404, HttpRequest, HttpResponse
from django.urls import path
from django.utils.functional import cached_property
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from singleflight_app.admin import sentences, shown
from singleflight_app.admin.actions import FlightActions
from singleflight_app.admin.flight_page import page_context
from singleflight_app.admin.listing import (
    SEARCH_HELP,
    AgeFilter,
    FlightChangeList,
    OwnerFilter,
    StageFilter,
    ViewFilter,
)
from singleflight_app.admin.results import result_response
from singleflight_app.domain.states import Status
from singleflight_app.models import Flight, StageStat
from singleflight_app.storage import selectors

if TYPE_CHECKING:
    AnyAdmin = admin.ModelAdmin[Any]
    AnyPaginator = Paginator[Any]
else:
    AnyAdmin, AnyPaginator = admin.ModelAdmin, Paginator

EMPTY = shown.NONE
LAST_PAGE_MAX = 1000


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
        return any(lookup == getattr(one, "parameter_name", None) for one in self.list_filter)


@admin.register(Flight)
class FlightAdmin(FlightActions, ReadOnlyAdmin):
    """Flights: a list with tabs, a page each with its timeline, one for its result, and the moves that may be made."""

    list_display = (
        "id",
        "stage",
        "state",
        "age",
        "heartbeat_age",
        "generation",
        "joins",
        "replays",
        "saved",
        "owner_short",
    )
    list_filter = (ViewFilter, StageFilter, AgeFilter, OwnerFilter)
    list_max_show_all = 0
    list_per_page = 50
    ordering = ("-generation",)
    search_fields = ("id",)
    search_help_text = SEARCH_HELP
    readonly_fields = ("digest_hex", "state", "heartbeat_age", "progress_bar", "saved")
    fieldsets = (
        (None, {"fields": ("stage", "scope", "label", "digest_hex", "status", "generation", "forgotten")}),
        (_("Shared"), {"fields": ("joins", "replays", "saved")}),
        (_("Owner"), {"fields": ("owner", "lease_expires_at", "heartbeat_at", "heartbeat_age", "progress_bar")}),
        (_("Attempts"), {"fields": ("attempts", "takeovers", "trace_parent")}),
        (_("Times"), {"fields": ("created_at", "sent_at", "started_at", "settled_at", "expires_at")}),
        (_("Usage"), {"fields": ("model", "input_tokens", "output_tokens", "cost")}),
        (_("Stored result"), {"fields": ("size", "encoding", "result_location")}),
    )
    error_fieldset = (_("Error"), {"fields": ("error_type", "error_message", "retryable", "retry_at")})

    class Media:
        css = {"all": ("singleflight/admin.css",)}
        js = (Script("singleflight/live.js", defer=True),)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Flight]:
        return selectors.flights()

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[FlightChangeList]:  # noqa: ANN401  (Django's)
        return FlightChangeList

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Flight], search_term: str
    ) -> tuple[QuerySet[Flight], bool]:
        """Leave the search to the list, which bounds it."""
        return queryset, False

    def get_fieldsets(self, request: HttpRequest, obj: Flight | None = None) -> Any:  # noqa: ANN401  (Django's type is private)
        """Put the error first, where there is one."""
        has_error = obj is not None and (obj.error_type or obj.retry_at is not None)
        return (self.error_fieldset, *self.fieldsets) if has_error else self.fieldsets

    def get_urls(self) -> list[Any]:
        """Add the page of a flight's result."""
        view = self.admin_site.admin_view(self.result_view)
        return [path("<path:object_id>/result/", view, name="singleflight_flight_result"), *super().get_urls()]

    def result_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Show or send a flight's result and arguments."""
        if not (self.has_view_permission(request) and self.has_view_result_permission(request)):
            raise PermissionDenied
        flight = self.get_object(request, object_id)
        if flight is None:
            raise Http404(gettext("There is no flight %(id)s; it may have been purged.") % {"id": object_id})
        return result_response(self, request, flight)

    def render_change_form(
        self,
        request: HttpRequest,
        context: dict[str, Any],
        add: bool = False,  # noqa: FBT001, FBT002  (the same)
        change: bool = False,  # noqa: FBT001, FBT002  (the same)
        form_url: str = "",
        obj: Flight | None = None,
    ) -> HttpResponse:
        """Add what the page of a flight shows beside its columns."""
        if obj is not None:
            context |= page_context(obj, may_read=self.has_view_result_permission(request))
        return super().render_change_form(request, context, add, change, form_url, obj)

    @admin.display(description=_("key digest"))
    def digest_hex(self, flight: Flight) -> str:
        return flight.digest_hex

    @admin.display(description=_("state"))
    def state(self, flight: Flight) -> SafeString:
        badge = sentences.badge_of(flight)
        return format_html(
            '<span class="singleflight-badge singleflight-{}"><span aria-hidden="true">{}</span> {}</span>',
            badge.kind,
            badge.icon,
            badge.word,
        )

    @admin.display(description=_("age"))
    def age(self, flight: Any) -> str:  # noqa: ANN401  (a flight with what `selectors.flights` adds)
        """Since it was granted, or asked for while nobody was."""
        return shown.age(flight.age)

    @admin.display(description=_("last beat"), empty_value=EMPTY)
    def heartbeat_age(self, flight: Any) -> str:  # noqa: ANN401  (the same)
        """Since the last beat, while somebody should be beating."""
        return shown.age(flight.heartbeat_age if flight.status == Status.RUNNING else None)

    @admin.display(description=_("saved"))
    def saved(self, flight: Flight) -> str:
        """What the calls that joined or replayed it would have cost."""
        return sentences.saved(flight)

    @admin.display(description=_("owner"))
    def owner_short(self, flight: Flight) -> SafeString:
        return format_html('<span title="{}">{}</span>', flight.owner, sentences.short_owner(flight.owner) or EMPTY)

    @admin.display(description=_("progress"), empty_value=EMPTY)
    def progress_bar(self, flight: Flight) -> str:
        """How far the call says it is."""
        if not isinstance(flight.progress, dict):
            return EMPTY
        fraction, text = flight.progress.get("fraction", 0), flight.progress.get("text", "")
        return format_html('<progress value="{}" max="1"></progress> {}', str(fraction), text)

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
