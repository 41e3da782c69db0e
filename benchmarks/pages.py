"""The admin's list of flights on a million rows: how long the slowest of its tabs takes, rendered."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median

ROWS = 1_000_000
VIEWS = ("", "in_flight", "succeeded", "failed")
# One in a thousand is live, one in fifty failed; all have the same few owners.
_LOAD = """
insert into singleflight_flight (digest, stage, scope, status, generation, owner, started_at, lease_expires_at,
    heartbeat_at, settled_at, expires_at, joins)
select decode(lpad(to_hex(n), 64, '0'), 'hex'), 'bench-pages-' || n %% 7, 'bench', s.status, n,
    'node-' || n %% 5 || ':1:x', now(), case when s.status = 'running' then now() + interval '1 min' end,
    now(), case when s.status <> 'running' then now() end, case when s.status <> 'running' then now() end, n %% 4
from generate_series(1, %(rows)s) n,
    lateral (
        select case when n %% 1000 = 0 then 'running' when n %% 50 = 2 then 'failed' else 'succeeded' end
    ) s (status)
"""
_UNLOAD = "delete from singleflight_flight where stage like 'bench-pages-%%'"


def list_ms(rounds: int) -> float:
    """Return milliseconds of a page of the list, statements and template: of the slowest tab, the median of rounds."""
    with _million():
        return max(median(_page_ms(view) for _ in range(rounds)) for view in VIEWS)


def _page_ms(view: str) -> float:
    from django.contrib.admin import site
    from django.contrib.auth.models import User
    from django.template.response import TemplateResponse
    from django.test import RequestFactory

    from singleflight_app.models import Flight

    request = RequestFactory().get("/admin/singleflight/flight/", {"view": view} if view else {})
    request.user = User(username="bench", is_staff=True, is_superuser=True, is_active=True)
    started = time.perf_counter()
    response = site.get_model_admin(Flight).changelist_view(request)
    assert isinstance(response, TemplateResponse)  # noqa: S101  (for mypy)
    response.render()
    return (time.perf_counter() - started) * 1000


@contextmanager
def _million() -> Iterator[None]:
    from django.db import connection

    with connection.cursor() as cursor:
        try:
            cursor.execute(_LOAD, {"rows": ROWS})
            cursor.execute("vacuum analyze singleflight_flight")
            yield
        finally:
            cursor.execute(_UNLOAD, {})
            cursor.execute("vacuum analyze singleflight_flight")


BENCHMARKS = (("admin_list_1m_ms", list_ms, "milliseconds of a page of the admin's list of 1 M flights"),)
