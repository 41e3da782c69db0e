"""Settings of the tests: the project's, with stages whose leases are short enough to wait for.

Programs under test are told by environment variables which database, which Redis and which mode to use.
"""

import os
from typing import Any

from config.settings import *  # noqa: F403
from config.settings import CACHES, DATABASES, SINGLEFLIGHT

_FAST = {"lease_timeout": 1.5, "heartbeat_interval": 0.5, "wait_timeout": 30}
_CALM = {"lease_timeout": 60, "heartbeat_interval": 15, "wait_timeout": 60, "failure_ttl": 60}
_ROW = {"replay_memory": False, "replay_cache": False}
_RETRY = {"attempts": 3, "wait": 0.001, "max_wait": 0.001}

SINGLEFLIGHT: dict[str, Any] = {  # type: ignore[no-redef]
    **SINGLEFLIGHT,
    "NAMESPACE": os.environ.get("TEST_NAMESPACE", "test"),
    "MODE": os.environ.get("TEST_MODE", "hybrid"),
    "POLL_INTERVAL": 0.2,
    "STAGES": {
        # `fast` is for takeovers, `calm` for tests in which nothing may expire.
        "fast": _FAST,
        "fast-twice": {**_FAST, "max_takeovers": 1},
        "calm": {"lease_timeout": 60, "heartbeat_interval": 15, "wait_timeout": 60},
        "calm-row": {
            "lease_timeout": 60,
            "heartbeat_interval": 15,
            "wait_timeout": 60,
            "replay_memory": False,
            "replay_cache": False,
        },
        "calm-beating": {"lease_timeout": 60, "heartbeat_interval": 0.5, "wait_timeout": 60},
        "impatient": {"lease_timeout": 0.6, "heartbeat_interval": 0.2, "wait_timeout": 0.6},
        "hung": {**_FAST, "execution_timeout": 0.3},
        # Nothing expires in these either; each differs from `calm` in one point.
        "calm-redis": {**_CALM, "replay_memory": False},
        "calm-memory": {**_CALM, "replay_cache": False, "replay_memory_ttl": 60},
        "crowded": {**_CALM, "max_waiters": 2},
        "small": {**_CALM, "max_result_bytes": 100},
        "large": {**_CALM, "store_over_bytes": 1000, "compress": False},
        "large-row": {**_CALM, **_ROW, "store_over_bytes": 1000, "compress": False},
        "large-fast": {**_FAST, **_ROW, "store_over_bytes": 1000, "compress": False},
        "huge": {**_CALM, **_ROW, "max_result_bytes": 100_000_000},
        "picky": {**_CALM, "reraise": ["builtins.LookupError", "json.decoder.JSONDecodeError"], "retry_on": []},
        "queued": {**_FAST, "pending_timeout": 0.3},
        "background-answer": _FAST,
        "background-remembered": {**_CALM, "replay_memory_ttl": 60},
        # Limits: how many calls, where, and what becomes of those for whom there is no room.
        "one-here": {**_CALM, "max_local_calls": 1},
        "one-here-or-none": {**_CALM, **_ROW, "max_local_calls": 1, "on_saturated": "reject"},
        "one-hung-here": {**_FAST, "execution_timeout": 0.3, "max_local_calls": 1},
        "one-anywhere": {**_CALM, "max_concurrency": 1},
        "one-anywhere-or-none": {**_CALM, **_ROW, "max_concurrency": 1, "on_saturated": "reject"},
        "one-fast-anywhere": {**_FAST, "max_concurrency": 1},
        "two-anywhere": {**_CALM, "max_concurrency": 2},
        "three-anywhere": {**_CALM, "max_concurrency": 3},
        "one-fast-anywhere-or-none": {**_FAST, **_ROW, "max_concurrency": 1, "on_saturated": "reject"},
        "two-here-one-anywhere": {**_CALM, "max_local_calls": 2, "max_concurrency": 1},
        # A guard around the provider.
        "retrying": {**_CALM, "retry": _RETRY},
        "retrying-fast": {**_FAST, "retry": _RETRY},
        "retrying-hung": {**_FAST, "execution_timeout": 0.3, "retry": _RETRY},
        "breaking": {**_CALM, "breaker": {"failures": 2, "pause": 60}},
        "mending": {**_CALM, "breaker": {"failures": 1, "pause": 0.05}},
        "mending-row": {**_CALM, **_ROW, "breaker": {"failures": 1, "pause": 0.05}},
        "breaking-hung": {**_FAST, "execution_timeout": 0.2, "breaker": {"failures": 1, "pause": 60}},
    },
}
# Two runs at once on one server each need a database of their own: name another one by TEST_DATABASE.
DATABASES["default"]["TEST"] = {"NAME": os.environ.get("TEST_DATABASE", "test_singleflight")}
if name := os.environ.get("TEST_DATABASE_NAME"):
    DATABASES["default"]["NAME"] = name
if host := os.environ.get("TEST_DATABASE_HOST"):
    DATABASES["default"]["HOST"] = host
# A loaded machine must not pass for a Redis that hangs: a hint that is given up is a test that waits in vain.
CACHES["default"]["OPTIONS"] |= {"SOCKET_CONNECT_TIMEOUT": 30, "SOCKET_TIMEOUT": 30}
if location := os.environ.get("TEST_REDIS"):
    CACHES["default"]["LOCATION"] = location
if os.environ.get("TEST_DATABASE_NAME"):
    # A program of a test needs the app alone, and starts in a third of the time.
    INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "singleflight_app"]
# Workers of a test hear the messages of its own database only; they inherit the two parts of the name.
CELERY_TASK_DEFAULT_QUEUE = "-".join(
    [os.environ.setdefault("TEST_QUEUE", f"tests-{os.getpid()}"), os.environ.get("PYTEST_XDIST_WORKER", "alone")]
)
