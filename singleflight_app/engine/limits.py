"""How many calls of each stage this process makes at once, and who waits until there is room for one more.

A place is held until the function has really returned, so that a hung thread counts as the load that it is. Whoever
waits is woken in turn when a place may have come free here or elsewhere, and looks itself.
"""

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from singleflight_app.domain.policy import StagePolicy
from singleflight_app.domain.records import Full
from singleflight_app.engine.rim import Bell


class Slot:
    """Room for one call in this process: reserved while its caller claims, then taken until the function returns."""

    def __init__(self, take: Callable[[], object], give_back: Callable[[bool], object]) -> None:
        self._take = take
        self._give_back: Callable[[bool], object] | None = give_back
        self._is_running = False
        self.on_end: Callable[[], object] = lambda: None  #: called once it is given back

    def begin(self) -> None:
        """Keep the place until the function has returned, whatever becomes of its caller."""
        self._is_running = True
        self._take()

    def end(self) -> None:
        """Give the place back."""
        give_back, self._give_back = self._give_back, None
        if give_back is not None:
            give_back(self._is_running)
            self.on_end()

    def end_unless_running(self) -> None:
        """Give back the place of a caller that became no owner."""
        if not self._is_running:
            self.end()


class Limits:
    """The running calls of one process, by stage."""

    def __init__(self) -> None:
        # Reentrant, since a caller whose loop was closed under it leaves when Python collects it: anywhere.
        self._lock = threading.RLock()
        self._held: Counter[str] = Counter()  # places, the reserved ones among them
        self._reserved: Counter[str] = Counter()
        self._waiting: dict[str, OrderedDict[Bell, str]] = {}

    def slot(self, stage: str, policy: StagePolicy) -> Slot | Full:
        """Return room for one more call, or say that there is none."""
        most = policy.max_local_calls
        if most is None:
            return free_slot()
        with self._lock:
            if self._held[stage] >= most:
                # Most claims end in a replay or a wait, and give their place back at once.
                is_brief = self._held[stage] - self._reserved[stage] < most
                return replace(Full.of("max_local_calls", stage, policy), is_brief=is_brief)
            self._held[stage] += 1
            self._reserved[stage] += 1
        return Slot(lambda: self._taken(stage), lambda is_running: self._given_back(stage, is_running))

    @contextmanager
    def waiting(self, stage: str, bell: Bell) -> Iterator[Callable[[str], None]]:
        """Stand in line for room, the first woken first; what is yielded says which limit it is that has none."""
        with self._lock:
            line = self._waiting.setdefault(stage, OrderedDict())
            line[bell] = ""

        def wait_for(limit: str) -> None:
            with self._lock:
                line[bell] = limit

        try:
            yield wait_for
        finally:
            with self._lock:
                line.pop(bell, None)
                if not line and self._waiting.get(stage) is line:
                    del self._waiting[stage]

    def stir(self, stage: str | None = None, *, limit: str | None = None) -> None:
        """Wake the first in line of a stage, or of each: a call has ended, here or elsewhere.

        With `limit`, the first who waits for that one: a place that was only reserved is no news to the others, and
        two who wake each other would never rest. Who finds room wakes the next.
        """
        with self._lock:
            lines = list(self._waiting.values()) if stage is None else [self._waiting.get(stage, OrderedDict())]
            for line in lines:
                for bell in [bell for bell, wanted in line.items() if limit in {None, wanted}]:
                    if bell.ring():
                        break
                    del line[bell]  # its loop is closed

    def after_fork(self) -> None:
        """Forget, in a child, who held the lock: a thread of the parent, which is not here."""
        self._lock = threading.RLock()

    def _taken(self, stage: str) -> None:
        with self._lock:
            self._reserved[stage] -= 1

    def _given_back(self, stage: str, is_running: bool) -> None:  # noqa: FBT001
        with self._lock:
            self._held[stage] -= 1
            self._reserved[stage] -= not is_running
        self.stir(stage, limit=None if is_running else "max_local_calls")


def free_slot() -> Slot:
    """Return room where no limit is set, or none can be kept."""
    return Slot(lambda: None, lambda _: None)
