"""A web node on the app alone, for gunicorn: `tests.programs.web`, hooks in `tests.programs.web_hooks`.

Importing it makes a call: under --preload that is the master's, before it forks. `/who` tells which process answers
and which was the first to have the module, `/ask/KEY` asks for a key as tests.programs.asking does.
"""

import json
import os
from collections.abc import Callable, Iterable
from typing import Any

import django

django.setup()

from singleflight_app.wiring import runtime  # noqa: E402
from tests.programs.asking import ask, quick  # noqa: E402

FOLDER = os.environ["TEST_FOLDER"]
quick("at import")
FIRST = runtime().identity.name


def application(environ: dict[str, Any], start_response: Callable[..., object]) -> Iterable[bytes]:
    """Answer in JSON."""
    _, what, *key = environ["PATH_INFO"].split("/")
    body = who() if what == "who" else {"value": ask(FOLDER, *key), "pid": os.getpid()}
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps(body).encode()]


def who() -> dict[str, object]:
    """Return who answers, after a call of its own."""
    return {"owner": runtime().identity.name, "first": FIRST, "quick": quick("asked"), "pid": os.getpid()}
