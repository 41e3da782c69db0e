"""What is well and what is not: settings, PostgreSQL, Redis, Celery and the flights, each finding with its repair.

`findings` looks at all of it, for the doctor; `glance` at what a page can wait for. Both come back in bounded time, and
neither raises: what can't be found out is a finding itself. No password, scope or answer is in any text.
"""

from dataclasses import replace
from functools import partial

from django.core.exceptions import ImproperlyConfigured

from singleflight_app.conf import Settings, database_problem, get_settings
from singleflight_app.health import celery, database, redis, settings
from singleflight_app.health.finding import Finding, Level, error
from singleflight_app.health.running import Check, run_all

__all__ = ["Finding", "Level", "findings", "glance"]

WITHIN = 10.0
GLANCE_WITHIN = 2.5


def findings(*, alias: str | None = None, within: float = WITHIN) -> list[Finding]:
    """Return all that is found, after at most `within` seconds; `alias` stands in for DATABASE."""
    checks: dict[str, Check] = {"settings": settings.check}
    here = _settings(alias)
    if here is None:
        pass  # the settings' own findings say what is wrong
    elif here.mode == "local":
        checks["mode"] = lambda: [settings.local()]
    else:
        checks |= _of_database(here, is_glance=False)
        checks |= {"redis": partial(redis.check, here), "celery": partial(celery.check, celery.current())}
    return run_all(checks, within)


def glance(*, within: float = GLANCE_WITHIN) -> list[Finding]:
    """Return the findings of a page that must come soon, after at most `within` seconds.

    Their facts: `database.answer` version, answer_ms · `flights.lease` running, stuck, oldest_expired_s ·
    `flights.pending` pending, oldest_s · `redis.answer` version, answer_ms · `redis.stream` lag_ms ·
    `celery.queue` depth.
    One that is missing could not be found out; `X.answer`, `X.broker` or `X.unknown` says why.
    """
    here = _settings(None)
    if here is None:
        return run_all({"settings": settings.check}, within)
    if here.mode == "local":
        return [settings.local()]
    checks = _of_database(here, is_glance=True)
    checks |= {"redis": partial(redis.glance, here), "celery": partial(celery.glance, celery.current())}
    return run_all(checks, within)


def _settings(alias: str | None) -> Settings | None:
    try:
        here = get_settings()
    except ImproperlyConfigured:
        return None
    return here if alias is None else replace(here, database=alias)


def _of_database(here: Settings, *, is_glance: bool) -> dict[str, Check]:
    problem = database_problem(here)
    if problem is not None:
        wrong = error("database.alias", f"{problem.problem}", f"{problem.repair[:1].upper()}{problem.repair[1:]}.")
        return {"database": lambda: [wrong]}
    return {"database": partial(database.glance if is_glance else database.check, here)}
