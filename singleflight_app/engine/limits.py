"""How many calls of each stage this process makes at once, and who waits until there is room for one more.

A place is held until the function has really returned, so that a hung thread counts as the load that it is. Whoever
waits is woken in turn when a place may have come free here or elsewhere, and looks itself.
"""

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from singleflight_app.domain.policy import StagePolicy
from singleflight_app.domain.records import Full
from singleflight_app.engine.rim import Bell


class Slot:
    """Room for one call in this process."""

    def __init__(self, give_back: Callable[[], object]) -> None:
        self._give_back: Callable[[], object] | None = give_back
        self._is_running = False

    def begin(self) -> None:
        """Keep the place until the function has returned, whatever becomes of its caller."""
        self._is_running = True

    def end(self) -> None:
        """Give the place back."""
        give_back, self._give_back = self._give_back, None
        if give_back is not None:
            give_back()

    def end_unless_running(self) -> None:
        """Give back the place of a caller that became no owner."""
        if not self._is_running:
            self.end()


class Limits:
    """The running calls of one process, by stage."""

    def __init__(self) -> None:
        # Reentrant, since a caller whose loop was closed under it leaves when Python collects it: anywhere.
        self._lock = threading.RLock()
        self._running: Counter[str] = Counter()
        self._waiting: dict[str, OrderedDict[Bell, None]] = {}

    def slot(self, stage: str, policy: StagePolicy) -> Slot | Full:
        """Return room for one more call, or say that there is none."""
        most = policy.max_local_calls
        if most is None:
            return Slot(lambda: None)
        with self._lock:
            if self._running[stage] >= most:
                reason = (
                    f"{most} calls of stage {stage} already run in this process, the most that may (max_local_calls)"
                )
                return Full("max_local_calls", reason, policy.heartbeat)
            self._running[stage] += 1
        return Slot(lambda: self._give_back(stage))

    @contextmanager
    def waiting(self, stage: str, bell: Bell) -> Iterator[None]:
        """Stand in line for room; the one who came first is woken first."""
        with self._lock:
            self._waiting.setdefault(stage, OrderedDict())[bell] = None
        try:
            yield
        finally:
            with self._lock:
                self._waiting[stage].pop(bell, None)
                if not self._waiting[stage]:
                    del self._waiting[stage]

    def stir(self, stage: str | None = None) -> None:
        """Wake the first in line of a stage, or of each: a call has ended, here or elsewhere."""
        with self._lock:
            lines = list(self._waiting.values()) if stage is None else [self._waiting.get(stage, OrderedDict())]
            for line in lines:
                if line:
                    bell, _ = line.popitem(last=False)
                    line[bell] = None  # last now: if it gets no room, the others have their turn before it
                    bell.ring()

    def after_fork(self) -> None:
        """Forget, in a child, who held the lock: a thread of the parent, which is not here."""
        self._lock = threading.RLock()

    def _give_back(self, stage: str) -> None:
        with self._lock:
            self._running[stage] -= 1
            if not self._running[stage]:
                del self._running[stage]
        self.stir(stage)
