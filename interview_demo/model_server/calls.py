"""The count of model calls by stage, and the one way to wait for a call to begin."""

import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass


@dataclass
class StageCalls:
    """Calls of one stage: begun ones are what costs; one that its caller left is never answered."""

    begun: int = 0
    answered: int = 0
    left: int = 0
    tokens: int = 0


class CallBook:
    """Counts that threads share; whoever waits for a call is woken by it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._stages: dict[str, StageCalls] = {}
        self._slow: dict[str, float] = {}

    def begin(self, stage: str) -> float | None:
        """Count a call; returns the seconds that it was ordered to take, or None."""
        with self._changed:
            self._of(stage).begun += 1
            self._changed.notify_all()
            return self._slow.pop(stage, None)

    def answer(self, stage: str, tokens: int) -> None:
        """Note that a call was answered."""
        with self._changed:
            self._of(stage).answered += 1
            self._of(stage).tokens += tokens

    def leave(self, stage: str) -> None:
        """Note that the caller of a begun call went away."""
        with self._changed:
            self._of(stage).left += 1

    def slow_next(self, stage: str, seconds: float) -> None:
        """Order that the stage's next call takes so long, to have time to do something to its caller."""
        with self._changed:
            self._slow[stage] = seconds

    def wait_begun(self, stage: str, count: int, timeout: float) -> bool:
        """Wait until the stage has `count` begun calls; False if the time ran out."""
        with self._changed:
            return self._changed.wait_for(lambda: self._of(stage).begun >= count, timeout)

    def as_dict(self) -> Mapping[str, Mapping[str, int]]:
        """Return the counts by stage."""
        with self._changed:
            return {stage: asdict(calls) for stage, calls in self._stages.items()}

    def _of(self, stage: str) -> StageCalls:
        return self._stages.setdefault(stage, StageCalls())
