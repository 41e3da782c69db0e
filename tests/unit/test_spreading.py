"""What a process has to tell others while Redis takes nothing: hints are dropped, floors are sent again (R15)."""

from collections.abc import Sequence

from singleflight_app.domain.records import FLOORS, Hint
from singleflight_app.engine.spreading import Spreading
from singleflight_app.notify.null import NullNotifier
from singleflight_app.outcomes.null import NoReplayCache

HINT = ("score", Hint(b"key", 4))


class Refusing(NullNotifier):
    """A stream that takes nothing until `is_open`; it keeps what it was offered last."""

    is_listening = True
    is_open = False
    offered: Sequence[tuple[str, Hint]] = ()

    def publish(self, hints: Sequence[tuple[str, Hint]]) -> bool:
        """Take the hints, or not."""
        self.offered = hints
        return self.is_open


def floor(generation: int) -> tuple[str, Hint]:
    """Return a floor of one key."""
    return FLOORS, Hint(b"key", generation, is_floor=True)


def test_floors_are_sent_again_and_hints_are_not() -> None:
    """A poll stands behind a hint; all floors of a key stay, for they may come in any order."""
    stream = Refusing()
    spreading = Spreading(NoReplayCache(), stream, floor_seconds=60)
    spreading._send([floor(7), HINT, floor(5)], [])
    spreading._send([floor(8)], [])
    tried = stream.offered
    stream.is_open = True
    spreading._send([HINT], [])
    taken = stream.offered

    spreading._send([], [])

    assert (tried, taken) == ([floor(7), floor(5), floor(8)], [floor(7), floor(5), floor(8), HINT])
    assert stream.offered == []


def test_a_floor_is_sent_again_as_long_as_somebody_may_remember() -> None:
    """P4: an outage ends nothing but the memories' own time; then there is nothing left to tell."""
    now = [0.0]
    stream = Refusing()
    spreading = Spreading(NoReplayCache(), stream, floor_seconds=60, monotonic=lambda: now[0])
    spreading._send([floor(5)], [])
    now[0] = 59.0
    spreading._send([floor(6)], [])
    both = stream.offered

    now[0] = 60.0
    spreading._send([], [])

    assert both == [floor(5), floor(6)]
    assert stream.offered == [floor(6)]
