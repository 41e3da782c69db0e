"""Sums over flights: what a stage did in one hour, and how many it has live."""

from bisect import bisect_left
from dataclasses import dataclass, field, fields
from datetime import datetime
from decimal import Decimal
from typing import NamedTuple

from singleflight_app.domain.flight import Usage
from singleflight_app.domain.states import Layer, Role, Status

#: Upper bounds in seconds of what durations are counted in: 10 ms (a replay) to 300 s (a long report). One more count
#: follows, of those above the last.
DURATION_BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300)
_NEAR = {Layer.PROCESS: "replays_process", Layer.MEMORY: "replays_process", Layer.REDIS: "replays_cache"}


def _no_durations() -> list[int]:
    return [0] * (len(DURATION_BOUNDS) + 1)


@dataclass(slots=True)
class StageTally:
    """Counts of one stage in one hour (UTC), to be added to its `StageStat` row.

    A call is counted once, where its generation stops running: by the owner that settles, or by whoever takes the
    flight away from a lost one. Saved is what the calls that followers and replays did not make would have taken;
    wasted went into calls whose end was refused, and is not part of spent.
    """

    stage: str
    hour: datetime
    requests: int = 0
    calls: int = 0
    followers: int = 0
    replays: int = 0
    replays_process: int = 0
    replays_cache: int = 0
    failures: int = 0
    takeovers: int = 0
    fenced: int = 0
    degraded: int = 0
    wait_timeouts: int = 0
    waits: list[int] = field(default_factory=_no_durations)
    runs: list[int] = field(default_factory=_no_durations)
    tokens_spent: int = 0
    tokens_saved: int = 0
    tokens_wasted: int = 0
    cost_spent: Decimal = Decimal(0)
    cost_saved: Decimal = Decimal(0)
    cost_wasted: Decimal = Decimal(0)

    def count_answer(self, role: Role, layer: Layer, waited: float, usage: Usage, *, is_stored: bool) -> None:
        """Count a request that was answered after `waited` seconds; `is_stored`: a flight's row tells its usage."""
        self.requests += 1
        self.waits[bisect_left(DURATION_BOUNDS, waited)] += 1
        if role is Role.OWNER:
            if not is_stored:  # then no stored end tells what the call took
                self._spend(usage)
            return
        if role is Role.FOLLOWER:
            self.followers += 1
        else:
            self.replays += 1
            if (near := _NEAR.get(layer)) is not None:
                setattr(self, near, getattr(self, near) + 1)
        if usage.tokens or usage.cost:
            self.tokens_saved += usage.tokens
            self.cost_saved += usage.cost

    def count_end(self, status: Status, seconds: float | None, usage: Usage, *, is_call: bool) -> None:
        """Count an end that was stored; `seconds` is None where nobody measured the call."""
        self.calls += is_call
        self.failures += status.is_failure
        if seconds is not None:
            self.runs[bisect_left(DURATION_BOUNDS, seconds)] += 1
        self._spend(usage)

    def count_lost(self, *, is_begun_again: bool) -> None:
        """Count the call of an owner that was lost, and the duplicate that follows if it is begun again."""
        self.calls += 1
        self.takeovers += is_begun_again

    def count_degraded(self) -> None:
        """Count a call without the database."""
        self.calls += 1
        self.degraded += 1

    def count_refused(self, usage: Usage) -> None:
        """Count an end that came too late; its call is counted by whoever ended its generation."""
        self.fenced += 1
        self.tokens_wasted += usage.tokens
        self.cost_wasted += usage.cost

    def count_given_up(self, waited: float) -> None:
        """Count a caller that waited in vain for `waited` seconds."""
        self.wait_timeouts += 1
        self.waits[bisect_left(DURATION_BOUNDS, waited)] += 1

    def add(self, other: "StageTally") -> None:
        """Add the counts of the same stage and hour."""
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.waits = added(self.waits, other.waits)
        self.runs = added(self.runs, other.runs)

    def _spend(self, usage: Usage) -> None:
        if usage.tokens or usage.cost:
            self.tokens_spent += usage.tokens
            self.cost_spent += usage.cost


_SUMS = tuple(f.name for f in fields(StageTally) if f.name not in {"stage", "hour", "waits", "runs"})


def added(counts: list[int], more: list[int]) -> list[int]:
    """Return the sums of two lists of counts, which may be of different length."""
    longest = max(len(counts), len(more))
    padded = [[*row, *[0] * (longest - len(row))] for row in (counts, more)]
    return [one + other for one, other in zip(*padded, strict=True)]


def percentile(counts: list[int], share: float) -> float | None:
    """Return the seconds that `share` (0 to 1) of the counted durations did not exceed; None: none was counted.

    Inside a bucket durations are taken as evenly spread. Infinity: it lies above the last bound.
    """
    rank, passed, lower = share * sum(counts), 0, 0.0
    for bound, count in zip((*DURATION_BOUNDS, float("inf")), counts, strict=False):
        if count and passed + count >= rank:
            return bound if bound == float("inf") else lower + (bound - lower) * max(rank - passed, 0) / count
        passed, lower = passed + count, bound
    return None


class LiveFlights(NamedTuple):
    """How many flights of a stage are live, as the database saw it."""

    stage: str
    running: int
    stalled: int  #: of the running ones: the lease is over and nobody took over yet
    pending: int
    oldest_lease: float | None = None  #: seconds since the grant of the running flight that was granted first
    oldest_pending: float | None = None  #: seconds that a worker has been waited for
