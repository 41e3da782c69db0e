"""Sums over flights: what a stage did in one hour, and how many it has live."""

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import NamedTuple


@dataclass(slots=True)
class StageTally:
    """Counts of one stage in one hour (UTC), to be added to its `StageStat` row.

    Saved is what the calls that followers and replays did not make would have taken; wasted went into
    calls whose end was refused, and is not part of spent.
    """

    stage: str
    hour: datetime
    requests: int = 0
    calls: int = 0
    followers: int = 0
    replays: int = 0
    failures: int = 0
    takeovers: int = 0
    tokens_spent: int = 0
    tokens_saved: int = 0
    tokens_wasted: int = 0
    cost_spent: Decimal = Decimal(0)
    cost_saved: Decimal = Decimal(0)
    cost_wasted: Decimal = Decimal(0)


class LiveFlights(NamedTuple):
    """How many flights of a stage are live, as the database saw it."""

    stage: str
    running: int
    stalled: int  #: of the running ones: the lease is over and nobody took over yet
    pending: int
    oldest_lease: float | None = None  #: seconds since the grant of the running flight that was granted first
    oldest_pending: float | None = None  #: seconds that a worker has been waited for
