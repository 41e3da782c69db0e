"""The list of flights: tabs, filters, search and pages, none of which reads more of the table than it must."""

from collections.abc import Iterable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.core.paginator import InvalidPage, Paginator
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.text import format_lazy
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from singleflight_app.admin.actions import ACTION_MAX
from singleflight_app.conf import get_settings
from singleflight_app.domain.states import LIVE, Status
from singleflight_app.folded import registry
from singleflight_app.storage import newest, selectors
from singleflight_app.storage.newest import Newest

if TYPE_CHECKING:
    from singleflight_app.models import Flight

VIEW = "view"
VIEWS: dict[str, tuple[Any, tuple[Status, ...]]] = {
    "in_flight": (_("in flight"), tuple(sorted(LIVE))),
    "succeeded": (_("succeeded"), (Status.SUCCEEDED,)),
    "failed": (_("failed"), (Status.FAILED, Status.TIMED_OUT)),
    "": (_("all"), tuple(Status)),
}
AGES = {
    "1h": (_("within 1 hour"), timedelta(hours=1)),
    "24h": (_("within 24 hours"), timedelta(hours=24)),
    "7d": (_("within 7 days"), timedelta(days=7)),
}
STUCK = "stuck"
SEARCH_HELP = format_lazy(
    _("id, key digest (64 hexadecimal digits), or exact scope (live flights and the newest {depth} of each status)"),
    depth=newest.VIEW_DEPTH,
)


class Tab(NamedTuple):
    """A link above the list."""

    title: str
    query: str
    is_chosen: bool
    flights: int | None  #: of those in flight; the others are not counted for the sake of a number
    is_more: bool = False  #: the count stopped there


class ViewFilter(admin.SimpleListFilter):
    """The parameter of the tabs. It adds no condition: the list walks the chosen statuses one by one."""

    title = _("view")
    parameter_name = VIEW

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:  # noqa: ANN401  (Django's signature)
        return [(name, title) for name, (title, _statuses) in VIEWS.items() if name]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset


class NameFilter(admin.SimpleListFilter):
    """By a name that anybody may write into the address."""

    def value(self) -> str | None:
        """Return the name; with a NUL in it, which PostgreSQL refuses, one that nothing has."""
        name = super().value()
        return None if name is None else name.replace("\x00", "\ufffd")


class StageFilter(NameFilter):
    """By stage: those that this process knows, and those of the newest flights."""

    title = _("stage")
    parameter_name = "stage"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:  # noqa: ANN401  (the same)
        return _choices({*registry, *get_settings().stages, *_seen(request)[0]}, self.value())

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(stage=self.value()) if self.value() else queryset


class AgeFilter(admin.SimpleListFilter):
    """By how long ago a flight was granted or asked for, and those that nobody runs any more."""

    title = _("age")
    parameter_name = "age"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:  # noqa: ANN401  (the same)
        return [*((name, title) for name, (title, _age) in AGES.items()), (STUCK, _("stuck: no heartbeat for a lease"))]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.value() == STUCK:
            return queryset.filter(selectors.stuck())
        chosen = AGES.get(self.value() or "")
        return queryset if chosen is None else queryset.filter(selectors.younger_than(chosen[1]))


class OwnerFilter(NameFilter):
    """By the host of the owner, of those that own the newest flights."""

    title = _("owner node")
    parameter_name = "node"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, Any]]:  # noqa: ANN401  (the same)
        return _choices(_seen(request)[1], self.value())

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(selectors.owned_on(self.value() or "")) if self.value() else queryset


class FlightChangeList(ChangeList):
    """Walks the index per status instead of filtering and sorting the table."""

    newest: Newest

    def get_queryset(
        self, request: HttpRequest, exclude_parameters: list[str | None] | None = None
    ) -> "QuerySet[Flight]":
        """Return the flights that an action may be about; the list itself is `newest`."""
        conditions = super().get_queryset(request, exclude_parameters)
        self.filter_specs = [spec for spec in self.filter_specs if not isinstance(spec, ViewFilter)]
        self.has_filters = bool(self.filter_specs)
        # A tab is no filter that "clear all" takes away.
        used = [name for spec in self.filter_specs for name in spec.used_parameters]
        self.has_active_filters = bool(used)
        self.clear_all_filters_qs = self.get_query_string(remove=used)
        self.newest = self._found(conditions.order_by())
        if request.POST.get("select_across") == "1":
            return selectors.flights().filter(pk__in=self.newest.ids(0, ACTION_MAX + 1)).order_by("-generation")
        # What was ticked is acted on, whether or not it has left this tab since.
        return selectors.flights().order_by("-generation")

    def _found(self, conditions: QuerySet[Any]) -> Newest:
        chosen = self.params.get(VIEW, "")
        self.view = chosen if chosen in VIEWS else ""
        statuses = VIEWS[self.view][1]
        self.is_search_cut = False
        if not (text := self.query.strip()):
            return Newest(conditions, statuses, is_filtered=self.has_active_filters)
        found, self.is_search_cut = newest.searched(conditions, statuses, text)
        return Newest(conditions, statuses, found=found)

    def get_results(self, request: HttpRequest) -> None:
        """Read one page."""
        paginator: Paginator[Any] = Paginator(self.newest, self.list_per_page)  # type: ignore[arg-type]
        try:
            page = paginator.page(self.page_num)
        except InvalidPage as exc:
            raise IncorrectLookupParameters from exc
        self.result_count = self.newest.total
        self.result_list = page.object_list
        self.multi_page, self.paginator = paginator.num_pages > 1, paginator
        self.show_admin_actions, self.show_full_result_count, self.can_show_all = True, False, False
        # Django tells a count beside the search box when it differs from this one.
        is_narrowed = self.has_active_filters or self.newest.found is not None
        self.full_result_count = None if is_narrowed else self.result_count

    @property
    def tabs(self) -> list[Tab]:
        """The links above the list."""
        live = newest.live_count()
        shown = min(live, newest.LIVE_DEPTH)
        return [
            Tab(
                str(title),
                self.get_query_string({VIEW: name or None}),
                name == self.view,
                *((shown, live > shown) if name == "in_flight" else (None,)),
            )
            for name, (title, _statuses) in VIEWS.items()
        ]

    @property
    def note(self) -> str:
        """What a cut list leaves out, in a sentence; empty when nothing is."""
        depth = newest.VIEW_DEPTH
        if self.newest.found is not None:
            text = gettext("A scope is looked for among the newest %(depth)d flights of each status and the live ones.")
            return text % {"depth": depth} if self.is_search_cut else ""
        if not self.newest.is_cut:
            return ""
        if self.newest.is_filtered:
            text = gettext(
                "The filters look at the newest %(depth)d flights of each status and at the live ones. "
                "Older flights are found by id or key digest."
            )
        else:
            text = gettext("The list reaches back %(depth)d flights. Older ones are found by id or key digest.")
        return text % {"depth": depth}


def _choices(names: Iterable[str], chosen: str | None) -> list[tuple[str, str]]:
    """Return what a filter offers: the chosen one too, when it is not among the newest any more."""
    return [(name, name) for name in sorted({*names, *([chosen] if chosen else [])})]


def _seen(request: HttpRequest) -> tuple[list[str], list[str]]:
    """Return the stages and hosts of the newest flights, read once per request."""
    if not hasattr(request, "_singleflight_seen"):
        request._singleflight_seen = newest.seen()  # type: ignore[attr-defined]  # noqa: SLF001
    seen: tuple[list[str], list[str]] = request._singleflight_seen  # type: ignore[attr-defined]  # noqa: SLF001
    return seen
