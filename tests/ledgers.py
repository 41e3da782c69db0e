"""A ledger that counts what the nodes of this process do, and nothing else."""

from collections.abc import Iterator
from contextlib import contextmanager

from singleflight_app.conf import get_settings
from singleflight_app.models import StageStat
from singleflight_app.storage.pool import Database
from singleflight_app.storage.stats import StageStats
from singleflight_app.telemetry import ledger
from singleflight_app.telemetry.ledger import Ledger
from singleflight_app.wiring import close, runtime


@contextmanager
def counting() -> Iterator[Ledger]:
    """Have a ledger in place of the process's own; it flushes when the test says so."""
    runtime()  # which connects the process's own
    ledger.disconnect()
    ledger.reset()
    database = Database(get_settings())
    sums = Ledger(flush_later=lambda _flush: None)
    sums.connect(StageStats(database))
    try:
        yield sums
    finally:
        sums.disconnect()
        database.close()
        close()


def row_of(sums: Ledger, stage: str) -> StageStat:
    """Flush, and return the sums of a stage that was active in one hour, or in the one after."""
    sums.flush()
    first, *others = StageStat.objects.filter(stage=stage).order_by("hour")
    for other in others:
        for field in StageStat._meta.get_fields():
            if field.name not in {"id", "stage", "hour", "waits", "runs"}:
                setattr(first, field.name, getattr(first, field.name) + getattr(other, field.name))
        first.waits = [one + more for one, more in zip(first.waits, other.waits, strict=True)]
        first.runs = [one + more for one, more in zip(first.runs, other.runs, strict=True)]
    return first
