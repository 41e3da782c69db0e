"""A web node for ASGI servers, `tests.programs.asgi:application`: `/ask/KEY` awaits a call that the test holds."""

import asyncio
import os

import django
from django.conf import settings

django.setup()
settings.ROOT_URLCONF, settings.MIDDLEWARE = __name__, []

from django.core.asgi import get_asgi_application  # noqa: E402
from django.http import HttpRequest, JsonResponse  # noqa: E402
from django.urls import path  # noqa: E402

from singleflight_app.api import arun  # noqa: E402
from singleflight_app.contrib.asgi import releasing  # noqa: E402
from tests.programs.asking import may_end, write_asked, write_begun  # noqa: E402

FOLDER = os.environ["TEST_FOLDER"]


async def ask(request: HttpRequest, key: str) -> JsonResponse:
    """Ask for a key as tests.programs.asking does, on the event loop."""

    async def held() -> str:
        write_begun(FOLDER, key)
        # Looked at again and again, since it is another process that says so, by a file. Not in a thread: that would
        # keep the server from leaving.
        while not may_end(FOLDER, key):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return f"by {os.getpid()}"

    write_asked(FOLDER, key)
    outcome = await arun("calm", {"key": key}, held, scope="test", result_type=str)
    return JsonResponse({"value": outcome.value, "pid": os.getpid()})


urlpatterns = [path("ask/<key>", ask)]
application = releasing(get_asgi_application())
