"""What the ledger costs the owner's path: the same calls without and with it, by turns."""

import uuid

from benchmarks.flights import owned
from benchmarks.ratios import ratio
from benchmarks.scores import timed
from singleflight_app.telemetry import ledger


def ledger_overhead(rounds: int) -> float:
    """Return the time of owners' calls that nobody counts against that of counted ones, flushes included."""
    return ratio(_uncounted, _counted, rounds)


def _uncounted() -> float:
    with ledger.paused():
        return _counted()


def _counted() -> float:
    return timed(lambda _: owned(uuid.uuid4().hex))


BENCHMARKS = (("ledger_overhead", ledger_overhead, "owner's path without the ledger against with it, 16 threads"),)
