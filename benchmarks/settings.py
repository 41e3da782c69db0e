"""Settings of the benchmarks: the app alone, each layer of the replay by itself."""

from typing import Any

from config.settings import *  # noqa: F403
from config.settings import SINGLEFLIGHT

INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "singleflight_app"]
SINGLEFLIGHT: dict[str, Any] = {  # type: ignore[no-redef]
    **SINGLEFLIGHT,
    "NAMESPACE": "bench",
    "POOL_SIZE": 16,
    "STAGES": {
        "bench-database": {"replay_memory": False, "replay_cache": False, "result_ttl": 600},
        "bench-redis": {"replay_memory": False, "result_ttl": 600},
        "bench-memory": {"replay_memory_ttl": 600, "result_ttl": 600},
        "bench-fanout": {"max_waiters": 10_000},
        "bench-crowds": {"lease_timeout": 3, "heartbeat_interval": 1},
        "bench-takeovers": {"lease_timeout": 1.5, "heartbeat_interval": 0.5},
    },
}
