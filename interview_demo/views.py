"""The page of an interview and its JSON requests: read the input, make one move, say the result.

Repeating a request is always safe: the page does it on purpose. Errors are one sentence, `{"error": ...}`.
"""

import json
import os
import socket
from collections.abc import Callable
from functools import wraps
from typing import Any
from uuid import UUID, uuid4

from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, render
from django.urls import reverse
from django.views.decorators.csrf import ensure_csrf_cookie
from django.views.decorators.http import require_GET, require_POST
from openai import OpenAIError

from interview_demo import interviewing
from interview_demo.interviewing import Advance, InterviewConflict
from interview_demo.model import ModelMissing, UnusableReply
from interview_demo.models import Interview, Turn
from interview_demo.resumes import MAX_BYTES, Resume, UnreadableResume, read_resume, sample_resume
from interview_demo.totals import totals
from singleflight_app import FlightFailed, SingleFlightError, StillRunning

MAX_ANSWER_LENGTH = 8_000


class BadRequest(ValueError):
    """The request can't be understood; the sentence says what to send instead."""


View = Callable[..., HttpResponse]


def one_sentence_errors(view: View) -> View:
    """Answer what can go wrong with its own sentence and the status that fits."""

    @wraps(view)
    def answered(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:  # noqa: ANN401
        try:
            return view(request, *args, **kwargs)
        except (BadRequest, UnreadableResume) as exc:
            return _error(exc, 400)
        except Http404:
            return _error(InterviewConflict("there is no such interview; start one"), 404)
        except InterviewConflict as exc:
            return _error(exc, 409)
        except StillRunning as exc:
            return _error(exc, 202)
        except (FlightFailed, OpenAIError, UnusableReply) as exc:
            return _error(exc, 502)
        except (ModelMissing, SingleFlightError) as exc:
            return _error(exc, 503)

    return answered


@require_GET
@ensure_csrf_cookie
def welcome(request: HttpRequest) -> HttpResponse:
    """Offer a new interview. The page carries its session, so a form sent twice starts one interview."""
    return render(request, "interview_demo/welcome.html", {"session": uuid4(), **_nodes()})


@require_GET
@ensure_csrf_cookie
def interview(request: HttpRequest, session: UUID) -> HttpResponse:
    """Show an interview as it is stored; its page asks again for whatever is still missing."""
    shown = get_object_or_404(Interview, session=session)
    turns = list(shown.turns.all())
    context = {
        "interview": shown,
        "turns": turns,
        "open_turn": next((turn for turn in turns if not turn.score), None),
        "totals": totals(shown),
        **_nodes(),
    }
    return render(request, "interview_demo/interview.html", context)


@require_POST
@one_sentence_errors
def start(request: HttpRequest) -> HttpResponse:
    """Form fields: `session` (a UUID that the client made), `resume` (a PDF; without it the sample)."""
    begun, advance = interviewing.start(_session(request), _resume(request))
    first = begun.turns.first()
    return JsonResponse(
        {
            "session": str(begun.session),
            "page": reverse("interview_demo:interview", args=[begun.session]),
            "resume": {"name": begun.resume_name, "digest": begun.resume_digest},
            "extraction": begun.extraction,
            "next": _question(first),
            **_how(advance),
        }
    )


@require_POST
@one_sentence_errors
def answer(request: HttpRequest, session: UUID) -> HttpResponse:
    """JSON: `number` of the question and `answer`; without it, the stored one (so asks a reload)."""
    shown = get_object_or_404(Interview, session=session)
    number, text = _answer(request)
    turn, advance = interviewing.answer(shown, number, text)
    return JsonResponse(
        {
            "number": turn.number,
            "question": turn.question,
            "answer": turn.answer,
            "score": turn.score,
            "next": _question(shown.turns.filter(number=turn.number + 1).first()),
            **_how(advance),
        }
    )


@require_POST
@one_sentence_errors
def report(request: HttpRequest, session: UUID) -> HttpResponse:
    """Write the report, or hand out the one that was written."""
    shown, advance = interviewing.report(get_object_or_404(Interview, session=session))
    return JsonResponse({"report": shown.report, "totals": totals(shown), **_how(advance)})


def _how(advance: Advance) -> dict[str, Any]:
    return {
        "node": node_name(),
        "advanced": advance.advanced,
        "flights": [receipt.as_dict() for receipt in advance.receipts],
    }


def _question(turn: Turn | None) -> dict[str, Any] | None:
    if turn is None:
        return None
    return {"number": turn.number, "question": turn.question, "is_follow_up": turn.is_follow_up}


def _session(request: HttpRequest) -> UUID:
    try:
        return UUID(request.POST.get("session", ""))
    except ValueError as exc:
        raise BadRequest("session is not a UUID; send the one of the page, or a new random one") from exc


def _resume(request: HttpRequest) -> Resume:
    upload = request.FILES.get("resume")
    if upload is None:
        return sample_resume()
    # One byte more than allowed is enough to see that it is too long.
    return read_resume(upload.name or "the upload", upload.read(MAX_BYTES + 1))


def _answer(request: HttpRequest) -> tuple[int, str]:
    try:
        body = json.loads(request.body)
        number, text = body["number"], body.get("answer", "")
        text.encode()  # half a surrogate pair is JSON, but no text
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise BadRequest('send JSON: {"number": 1, "answer": "..."}') from exc
    if not isinstance(number, int) or isinstance(number, bool) or not isinstance(text, str):
        raise BadRequest("number is a whole number and answer a string")
    text = text.replace("\x00", "").strip()
    if len(text) > MAX_ANSWER_LENGTH:
        raise BadRequest(f"the answer has {len(text)} characters and {MAX_ANSWER_LENGTH} are allowed")
    return number, text


def _error(exc: Exception, status: int) -> HttpResponse:
    return JsonResponse({"error": str(exc), "kind": type(exc).__name__, "node": node_name()}, status=status)


def node_name() -> str:
    """Return how this node calls itself: NODE_NAME, or the host's name."""
    return os.environ.get("NODE_NAME") or socket.gethostname()


def _nodes() -> dict[str, str]:
    return {"node": node_name(), "other_node_url": os.environ.get("OTHER_NODE_URL", "")}
