"""A web node with /metrics, whose calls ask the demo's model: `/ask/KEY` says in JSON what came of it.

A call goes on until the test lets it go, so that followers can be counted; `tests.programs.metered_hooks` go with it.
"""

import os

import django
from django.conf import settings
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpRequest, JsonResponse
from django.urls import include, path

settings.ROOT_URLCONF = __name__
settings.MIDDLEWARE = []  # those of the project need more apps than a program of a test has
django.setup()

from interview_demo.answers import Score  # noqa: E402
from interview_demo.flights import SCORE_STAGE  # noqa: E402
from interview_demo.model import ask, model_name  # noqa: E402
from interview_demo.prompts import SCORE  # noqa: E402
from singleflight_app import single_flight  # noqa: E402
from tests.programs.asking import may_end, write_asked  # noqa: E402
from tests.waiting import until  # noqa: E402

FOLDER = os.environ["TEST_FOLDER"]


@single_flight("metered", scope="test")
def score(*, key: str) -> Score:
    """Ask the model, and have its answer once the test says so."""
    request = {"question": f"Why {key}?", "answer": "Because."}
    answer = ask(SCORE_STAGE, SCORE, request, Score, model=model_name())
    until(lambda: may_end(FOLDER, key), "leave to go on", timeout=60)
    return answer


def asked(_: HttpRequest, key: str) -> JsonResponse:
    """Return the role of the caller that this request was."""
    write_asked(FOLDER, key)
    return JsonResponse({"role": score.outcome(key=key).role, "pid": os.getpid()})


urlpatterns = [path("ask/<key>", asked), path("", include("singleflight_app.urls"))]
application = WSGIHandler()
