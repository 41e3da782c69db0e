"""Settings of the benchmarks: the app and the admin alone, each layer of the replay by itself."""

import tempfile
from pathlib import Path
from typing import Any

from config.settings import *  # noqa: F403
from config.settings import SINGLEFLIGHT

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "singleflight_app",
]
ROOT_URLCONF = "benchmarks.urls"
RESULTS = Path(tempfile.gettempdir(), "singleflight-benchmarks")  # emptied at the end of a run
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.InMemoryStorage"},
    "staticfiles": {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"},
    "results": {"BACKEND": "django.core.files.storage.FileSystemStorage", "OPTIONS": {"location": RESULTS}},
}
_ROW = {"replay_memory": False, "replay_cache": False, "result_ttl": 600, "max_result_bytes": 100_000_000}
SINGLEFLIGHT: dict[str, Any] = {  # type: ignore[no-redef]
    **SINGLEFLIGHT,
    "NAMESPACE": "bench",
    "POOL_SIZE": 16,
    "BLOB_STORAGE": "results",
    "STAGES": {
        "bench-database": {"replay_memory": False, "replay_cache": False, "result_ttl": 600},
        "bench-redis": {"replay_memory": False, "result_ttl": 600},
        "bench-memory": {"replay_memory_ttl": 600, "result_ttl": 600},
        "bench-in-row": {**_ROW, "store_over_bytes": 2**31},
        "bench-in-file": {**_ROW, "store_over_bytes": 0},
        "bench-fanout": {"max_waiters": 10_000},
        "bench-crowds": {"lease_timeout": 3, "heartbeat_interval": 1},
        "bench-takeovers": {"lease_timeout": 1.5, "heartbeat_interval": 0.5},
    },
}
