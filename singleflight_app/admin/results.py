"""The page of a flight's result and arguments, and their download; for those who hold `view_result_flight`.

A result came from outside. It is shown as escaped text and sent as a file, never as markup, and no cache keeps it.
"""

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.cache import add_never_cache_headers
from django.utils.translation import gettext

from singleflight_app import api
from singleflight_app.admin.reading import shown
from singleflight_app.domain.exceptions import CoordinationUnavailable, ResultUnreadable
from singleflight_app.domain.flight import StoredResult
from singleflight_app.domain.states import Status
from singleflight_app.models import Flight

if TYPE_CHECKING:
    from django.contrib import admin

TEXT_MAX = 100_000  #: characters on the page; the download has all


class Text(NamedTuple):
    """A JSON text on the page."""

    text: str
    is_whole: bool
    size: int  #: bytes of all of it


def result_response(model_admin: "admin.ModelAdmin[Any]", request: HttpRequest, flight: Flight) -> HttpResponse:
    """Return the page, or with `?download=1` the result as a file."""
    result, problem = _read(flight)
    if result is not None and request.GET.get("download"):
        response: HttpResponse = _file(flight, result)
    else:
        response = _page(model_admin, request, flight, result, problem)
    add_never_cache_headers(response)
    response["X-Content-Type-Options"] = "nosniff"
    return response


def _read(flight: Flight) -> tuple[bytes | None, str]:
    """Return the result's JSON, or None and the reason."""
    if flight.status != Status.SUCCEEDED:
        return None, gettext("There is no result: the flight has not succeeded.")
    payload, checksum = bytes(flight.result or b""), bytes(flight.checksum or b"")
    stored = StoredResult(payload, flight.encoding, checksum, flight.size or 0, flight.result_location)
    try:
        return api.result_bytes(stored, bytes(flight.digest)), ""
    except (ResultUnreadable, CoordinationUnavailable) as exc:
        return None, gettext("unreadable: %(reason)s") % {"reason": exc}


def _file(flight: Flight, result: bytes) -> HttpResponse:
    # Sent in one piece: its checksum had to be looked at before the first byte, so that all of it is here.
    response = HttpResponse(result, content_type="application/json")
    response["Content-Disposition"] = f'attachment; filename="flight-{flight.pk}-{flight.generation}.json"'
    response["Content-Security-Policy"] = "default-src 'none'; sandbox"
    return response


def _page(
    model_admin: "admin.ModelAdmin[Any]", request: HttpRequest, flight: Flight, result: bytes | None, problem: str
) -> HttpResponse:
    context = {
        **model_admin.admin_site.each_context(request),
        "title": gettext("Result of %(flight)s") % {"flight": flight},
        "opts": Flight._meta,
        "flight": flight,
        "result": None if result is None else _text(result),
        "problem": problem,
        "arguments": None if flight.arguments is None else _text(_joined(flight.arguments)),
    }
    return TemplateResponse(request, "admin/singleflight/flight/result.html", context)


def _text(raw: bytes) -> Text:
    text, is_whole = shown(raw, most=TEXT_MAX)
    return Text(text, is_whole, len(raw))


def _joined(arguments: dict[str, Any]) -> bytes:
    """Return stored arguments, which are JSON texts by name, as one."""
    pairs = (f"{json.dumps(name, ensure_ascii=False)}: {text}" for name, text in arguments.items())
    return ("{" + ", ".join(pairs) + "}").encode(errors="replace")
