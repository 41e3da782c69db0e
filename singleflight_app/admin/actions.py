"""An operator's moves in the admin: chosen in the list or on a flight's page, confirmed on a page of their own.

The confirmation holds what was chosen, each flight with the generation that was shown. So a move does what its page
said, or nothing: a flight that went on meanwhile is left alone. Each flight is one commit, with the user's name.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied, SuspiciousOperation
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext

from singleflight_app.admin import shown
from singleflight_app.admin.moves import HELD_BACK, MOVES, Move, why_not
from singleflight_app.conf import get_settings
from singleflight_app.domain.exceptions import CoordinationUnavailable, InvalidRequest
from singleflight_app.domain.states import Status
from singleflight_app.models import STATUS_LABELS, Flight
from singleflight_app.storage.standing import Standing, standings
from singleflight_app.wiring import NEEDS_POSTGRESQL

if TYPE_CHECKING:
    AnyAdmin = admin.ModelAdmin[Any]
else:
    AnyAdmin = admin.ModelAdmin

ACTION_MAX = 1000
TEMPLATE = "admin/singleflight/flight/act.html"
_CHOSEN = re.compile(r"([0-9]{1,18}):([0-9]{1,18})")

Chosen = dict[int, int]  #: generations as they were shown, by flight id


def _action(move: Move) -> Callable[..., HttpResponse | None]:
    """Return the list's action, which asks to confirm the move."""

    @admin.action(description=move.description, permissions=[move.permission])
    def ask(model_admin: "FlightActions", request: HttpRequest, queryset: QuerySet[Flight]) -> HttpResponse | None:
        ids = list(queryset.values_list("pk", flat=True)[: ACTION_MAX + 1])
        filters = request.GET.urlencode()
        return model_admin.confirmation(request, move, ids[:ACTION_MAX], is_cut=len(ids) > ACTION_MAX, filters=filters)

    ask.__name__ = move.name
    return ask


class FlightActions(AnyAdmin):
    """What the admin of flights adds to a list and to pages that one can only read."""

    actions = [_action(move) for move in MOVES.values()]

    def has_forget_permission(self, request: HttpRequest) -> bool:
        return _may(request, "forget_flight")

    def has_expire_lease_permission(self, request: HttpRequest) -> bool:
        return _may(request, "expire_lease_flight")

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        return _may(request, "cancel_flight")

    def has_retry_permission(self, request: HttpRequest) -> bool:
        return _may(request, "retry_flight")

    def get_urls(self) -> list[URLPattern]:
        """Add the address of a move, before that of a flight's page, which takes any path."""
        view = self.admin_site.admin_view(self.act_view)
        return [path("act/<str:name>/", view, name="singleflight_flight_act"), *super().get_urls()]

    def render_change_form(
        self,
        request: HttpRequest,
        context: dict[str, Any],
        add: bool = False,  # noqa: FBT001, FBT002  (Django's signature)
        change: bool = False,  # noqa: FBT001, FBT002  (the same)
        form_url: str = "",
        obj: Flight | None = None,
    ) -> HttpResponse:
        """Offer on a flight's page the moves that would do something to it, to those who may make them."""
        context["flight_actions"] = [] if obj is None else self.flight_actions(request, obj)
        return super().render_change_form(request, context, add, change, form_url, obj)

    def flight_actions(self, request: HttpRequest, flight: Flight) -> list[dict[str, object]]:
        """Return name and label of each move that this user may make and that would do something."""
        allowed = [move for move in MOVES.values() if _may(request, move.codename)]
        if not allowed:
            return []
        standing = standings([flight.pk]).get(flight.pk)
        return [
            {"name": move.name, "label": move.label}
            for move in allowed
            if why_not(move, standing, flight.generation) is None
        ]

    def act_view(self, request: HttpRequest, name: str) -> HttpResponse:
        """Make a confirmed move, or ask to confirm it."""
        move = MOVES.get(name)
        if move is None:
            raise Http404
        if not (self.has_view_permission(request) and _has(request, move.codename)):
            raise PermissionDenied
        if request.method != "POST":  # after a login, which brings a user back without the form
            return HttpResponseRedirect(_back([], is_from_page=False, filters=""))
        chosen, is_from_page = _chosen(request.POST.get("flights", "")), request.POST.get("from") == "page"
        if request.POST.get("confirmed") != "yes":
            return self.confirmation(request, move, list(chosen), generations=chosen, is_from_page=is_from_page)
        if _is_local():
            self.message_user(request, gettext("Stopped: %(reason)s") % {"reason": NEEDS_POSTGRESQL}, messages.ERROR)
        else:
            self._make(request, move, chosen)
        filters = request.POST.get("filters", "")
        return HttpResponseRedirect(_back(list(chosen), is_from_page=is_from_page, filters=filters))

    def confirmation(
        self,
        request: HttpRequest,
        move: Move,
        ids: Sequence[int],
        *,
        generations: Mapping[int, int] | None = None,
        is_cut: bool = False,
        is_from_page: bool = False,
        filters: str = "",
    ) -> HttpResponse:
        """Return the page that says what a move will do, and to which flights."""
        found = standings(ids)
        shown = {flight_id: found[flight_id].generation for flight_id in ids if flight_id in found}
        chosen = generations or shown
        rows = [_row(move, found.get(flight_id), flight_id, generation) for flight_id, generation in chosen.items()]
        context = {
            **self.admin_site.each_context(request),
            "title": move.question,
            "opts": self.opts,
            "move": move,
            "rows": rows,
            "possible": sum(row["obstacle"] is None for row in rows),
            "flights": " ".join(f"{flight_id}:{generation}" for flight_id, generation in chosen.items()),
            "most": ACTION_MAX,
            "is_cut": is_cut,
            "is_from_page": is_from_page,
            "filters": filters,
            "back": _back(ids, is_from_page=is_from_page, filters=filters),
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, TEMPLATE, context)

    def _make(self, request: HttpRequest, move: Move, chosen: Chosen) -> None:
        """Make the move, one commit each, and say what came of it; stop where a server does not answer."""
        done, refused = 0, []
        for flight_id, generation in chosen.items():
            try:
                is_done = move.act(flight_id, generation=generation, actor=request.user.get_username())
            except (CoordinationUnavailable, InvalidRequest) as exc:
                self.message_user(request, gettext("Stopped: %(reason)s") % {"reason": exc}, messages.ERROR)
                break
            done += is_done
            if not is_done:
                refused.append(flight_id)
        level = messages.SUCCESS if done else messages.WARNING
        self.message_user(request, f"{move.said(done, len(chosen))} {_reasons(move, chosen, refused)}".strip(), level)


def _reasons(move: Move, chosen: Chosen, refused: list[int]) -> str:
    """Say why the others were left alone, each reason with how many it holds for."""
    if not refused:
        return ""
    found = standings(refused)
    counts = Counter(str(why_not(move, found.get(flight_id), chosen[flight_id]) or HELD_BACK) for flight_id in refused)
    reasons = "; ".join(f"{reason} ({count})" for reason, count in counts.most_common())
    return gettext("Left alone: %(reasons)s.") % {"reasons": reasons}


def _row(move: Move, standing: Standing | None, flight_id: int, generation: int) -> dict[str, object]:
    facts: dict[str, object] = {"flight_id": flight_id, "obstacle": why_not(move, standing, generation)}
    if standing is None:
        return facts
    status = STATUS_LABELS[Status(standing.status)]
    return {**facts, "stage": standing.stage, "status": status, "age": shown.age(standing.age)}


def _chosen(text: str) -> Chosen:
    """Return the flights that a form holds; it is no form of ours that holds none, too many or something else."""
    words = text.split()
    found = [match for word in words if (match := _CHOSEN.fullmatch(word)) is not None]
    if not 0 < len(words) == len(found) <= ACTION_MAX:
        raise SuspiciousOperation("the form names no flights, or too many")
    return {int(match[1]): int(match[2]) for match in found}


def _back(ids: Sequence[int], *, is_from_page: bool, filters: str) -> str:
    """Return where the user came from: the page of the one flight, or the list as it was."""
    if is_from_page:
        return reverse("admin:singleflight_flight_change", args=ids[:1])
    query = QueryDict(filters).urlencode()
    return reverse("admin:singleflight_flight_changelist") + (f"?{query}" if query else "")


def _is_local() -> bool:
    return get_settings().mode == "local"


def _may(request: HttpRequest, codename: str) -> bool:
    """Tell whether a move is offered; in local mode none is: the flights of the table are not those in memory."""
    return _has(request, codename) and not _is_local()


def _has(request: HttpRequest, codename: str) -> bool:
    return request.user.has_perm(f"singleflight.{codename}")
