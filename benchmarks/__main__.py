"""Measures what a flight costs over the bare statements under it, and writes benchmarks/results.json.

A ratio is bare time / our time, the median over rounds in which both take turns: 1 means free, 0.5 means
twice as slow. Only ratios of one run compare; seconds belong to the machine.
"""

import json
import os
import platform
import shutil
import tempfile
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.settings")

from config.servers import start_servers

RESULTS = Path(__file__).parent / "results.json"
ROUNDS = 9
PACKAGES = ("Django", "psycopg", "pydantic", "redis", "django-redis", "rfc8785")


def main() -> None:
    """Run every benchmark once and say what came out."""
    start_servers()
    import django

    django.setup()
    from django.core.management import call_command

    call_command("migrate", verbosity=0)
    from benchmarks import crowds, fanout, ledgers, pages, purging, replays, scores, sizes, takeovers, waking

    results: dict[str, Any] = {}
    try:
        # One caller before sixteen: a pool hands its connections out in turn, and idle ones are cold.
        modules = (replays, scores, waking, fanout, takeovers, crowds, sizes, pages, purging, ledgers)
        for name, measure, meaning in (line for module in modules for line in module.BENCHMARKS):
            results[name] = round(measure(ROUNDS), 3)
            print(f"{name:24} {results[name]:8.3f}  {meaning}")
    finally:
        _clean_up()
    results |= _circumstances()
    _write(results)


def _clean_up() -> None:
    """Leave none of the measured flights behind in the database of the checkout."""
    from benchmarks.settings import RESULTS as FILES
    from singleflight_app import wiring
    from singleflight_app.models import Blob, Flight, FlightEvent, StageStat

    wiring.close()
    Blob.objects.all().delete()
    shutil.rmtree(FILES, ignore_errors=True)
    for model in (Flight, FlightEvent, StageStat):
        model.objects.filter(stage__startswith="bench-").delete()


def _circumstances() -> dict[str, Any]:
    from django.db import connection

    server = connection.cursor().connection.info.server_version
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
        "versions": {
            "python": platform.python_version(),
            "postgresql": f"{server // 10000}.{server % 10000}",
            **{name: version(name) for name in PACKAGES},
        },
        "date": datetime.now(UTC).date().isoformat(),
    }


def _write(results: dict[str, Any]) -> None:
    with tempfile.NamedTemporaryFile("w", dir=RESULTS.parent, suffix=".json", delete=False) as file:
        file.write(json.dumps(results, indent=2) + "\n")
    Path(file.name).replace(RESULTS)
    print(f"written to {RESULTS.relative_to(Path.cwd()) if RESULTS.is_relative_to(Path.cwd()) else RESULTS.name}")


if __name__ == "__main__":
    main()
