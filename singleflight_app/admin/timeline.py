"""The timeline of a flight as geometry: lanes of owners, a bar per generation, marks for what else happened.

Plain functions over audit rows; a template draws what they return, in whole units of a picture `WIDTH` wide. The audit
rows are few or lost as the retention has it: a bar whose beginning or end is not among them is open there.
Bars, marks and lanes share one reading of the rows, so they stay in one module.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import NamedTuple

from singleflight_app.admin.axis import Axis, Break, Span, Tick

WIDTH = 960
LABEL_WIDTH = 170
LANE_HEIGHT = 38
BAR_HEIGHT = 18
GENERATIONS_SHOWN = 12
_TOP, _BOTTOM, _RIGHT = 12, 30, 40
_BAR_WIDTH_MIN = 3
_NUMBER_WIDTH = 64  #: of a bar that has its generation written in it
_HOST_MAX = 15
_LEASE_SHOWN_MIN = timedelta(seconds=5)

QUEUE = ""  #: the lane of flights that wait for a worker
_GRANTS = {"granted", "taken_over", "retried"}
_QUEUED = {"submitted", "requeued"}
_ENDS = {"settled", "lost", "cancelled", "expired"}
#: outlines of the marks around their place, so that none is told by its colour alone
SHAPES = {
    "submitted": "M-4 -6 L6 0 L-4 6 Z",
    "requeued": "M-4 -6 L6 0 L-4 6 Z",
    "sent_again": "M-4 -6 L6 0 L-4 6 Z",
    "taken_over": "M0 -8 L7 6 L-7 6 Z",
    "retried": "M0 8 L7 -6 L-7 -6 Z",
    "retry_allowed": "M0 8 L7 -6 L-7 -6 Z",
    "settled": "M-5 0 A5 5 0 1 0 5 0 A5 5 0 1 0 -5 0 Z",
    "cancelled": "M-6 -2 L6 -2 L6 2 L-6 2 Z",
    "forgotten": "M0 -7 L7 0 L0 7 L-7 0 Z",
    "expired": "M-6 -6 L6 6 M-6 6 L6 -6",
    "fenced": "M-3 -9 L0 -9 L0 9 L-3 9 M3 -9 L0 -9 L0 9 L3 9",
    "lost": "M-6 -6 L6 6 M-6 6 L6 -6",
}
_OTHER_SHAPE = "M-4 -4 L4 -4 L4 4 L-4 4 Z"
_UNMARKED = {"granted"}  #: the beginning of its bar says it


class Move(NamedTuple):
    """An audit row."""

    kind: str
    generation: int
    owner: str
    at: datetime
    actor: str = ""
    detail: str = ""


class Present(NamedTuple):
    """The row of a flight that is pending or running, and the time at which it was read."""

    now: datetime
    generation: int
    owner: str
    since: datetime
    heartbeat_at: datetime | None = None
    lease_expires_at: datetime | None = None

    @property
    def kind(self) -> str:
        """Whether somebody runs it; one whose lease was ended by hand has no owner, but a lease that is over."""
        return "pending" if self.lease_expires_at is None else "running"


@dataclass(frozen=True)
class Bar:
    """One generation, from its grant to its end; or its waiting for a worker."""

    generation: int
    owner: str
    start: datetime
    end: datetime
    kind: str  #: how it ended: a status, "lost", "begun"; or what it does: "running", "pending"
    late_until: datetime | None = None  #: when its fenced owner came back
    x: int = 0
    y: int = 0
    width: int = 0
    late_x: int = 0  #: the right end of the time that the owner went on in vain

    @property
    def has_number(self) -> bool:
        """There is room for the generation inside."""
        return self.width >= _NUMBER_WIDTH

    @property
    def middle(self) -> int:
        """The height of its middle."""
        return self.y + BAR_HEIGHT // 2


@dataclass(frozen=True)
class Mark:
    """Something that happened at one time."""

    move: Move
    x: int
    y: int

    @property
    def shape(self) -> str:
        """Its outline around (0, 0)."""
        return SHAPES.get(self.move.kind, _OTHER_SHAPE)


@dataclass(frozen=True)
class Lane:
    """One owner; the queue's is empty."""

    owner: str
    y: int  #: of its middle

    @property
    def label(self) -> str:
        """Host and pid, the host cut to what fits beside the picture."""
        host, _, rest = self.owner.partition(":")
        pid = rest.partition(":")[0]
        return f"{host if len(host) <= _HOST_MAX else host[: _HOST_MAX - 1] + '…'}:{pid}"


@dataclass(frozen=True)
class Lease:
    """The lease of a running flight: its last beat, now, and where it ends."""

    y: int
    beat_x: int
    now_x: int
    end_x: int
    is_over: bool
    is_clipped: bool  #: it ends right of the picture

    @property
    def left(self) -> int:
        """Where the stretch from now to the end of the lease begins, or from its end to now when it is over."""
        return min(self.now_x, self.end_x)

    @property
    def right(self) -> int:
        """Where that stretch ends."""
        return max(self.now_x, self.end_x)


@dataclass(frozen=True)
class Picture:
    """All that the template draws."""

    height: int
    lanes: list[Lane] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    ticks: list[Tick] = field(default_factory=list)
    breaks: list[Break] = field(default_factory=list)
    lease: Lease | None = None
    left_out: int = 0  #: older generations

    width = WIDTH
    label_width = LABEL_WIDTH
    bar_height = BAR_HEIGHT

    @property
    def axis_y(self) -> int:
        """Where the axis lies, below the lanes."""
        return self.height - _BOTTOM

    @property
    def legend(self) -> list[tuple[str, str]]:
        """The kinds of marks there are, with their outlines."""
        return list({mark.move.kind: mark.shape for mark in self.marks}.items())


def picture(moves: Sequence[Move], present: Present | None = None) -> Picture | None:
    """Return the picture of the newest generations; None: nothing is known. `moves` are in the order they happened."""
    kept, left_out = _newest(moves)
    bars = _bars(kept, present)
    shown = [move for move in kept if move.kind not in _UNMARKED]
    if not bars and not shown:
        return None
    spans: list[Span] = [(bar.start, max(bar.end, bar.late_until or bar.end)) for bar in bars]
    spans += [(move.at, move.at) for move in shown]
    lease_end = _lease_end(present, spans)
    if present is not None and lease_end is not None:
        spans.append((present.now, max(lease_end, present.now)))
    axis = Axis(spans, left=LABEL_WIDTH, width=WIDTH - LABEL_WIDTH - _RIGHT)
    owners = list(dict.fromkeys(bar.owner for bar in bars)) or [QUEUE]
    y_of = {owner: _TOP + LANE_HEIGHT * number + LANE_HEIGHT // 2 for number, owner in enumerate(owners)}
    return Picture(
        height=_TOP + LANE_HEIGHT * len(owners) + _BOTTOM,
        lanes=[Lane(owner, y) for owner, y in y_of.items()],
        bars=[_placed(bar, axis, y_of) for bar in bars],
        marks=[Mark(move, axis.x(move.at), y_of[_lane_of(move, bars, owners)]) for move in shown],
        ticks=axis.ticks,
        breaks=axis.breaks,
        lease=_lease(present, lease_end, axis, y_of),
        left_out=left_out,
    )


def _newest(moves: Sequence[Move]) -> tuple[list[Move], int]:
    """Return the moves of the newest generations, and how many generations were left out."""
    generations = sorted({move.generation for move in moves})
    kept = set(generations[-GENERATIONS_SHOWN:])
    return [move for move in moves if move.generation in kept], len(generations) - len(kept)


def _bars(moves: Sequence[Move], present: Present | None) -> list[Bar]:
    """Return a bar for each beginning; it ends by its own end, or by the beginning of the next generation."""
    bars: list[Bar] = []
    open_at: dict[int, int] = {}  # generation -> its place in `bars`
    for move in moves:
        if move.kind in _GRANTS | _QUEUED:
            for place in open_at.values():
                bars[place] = _ended(bars[place], move)
            lane, kind = (QUEUE, "pending") if move.kind in _QUEUED else (move.owner, "running")
            open_at = {move.generation: len(bars)}
            bars.append(Bar(move.generation, lane, move.at, move.at, kind))
        elif move.kind in _ENDS and move.generation in open_at:
            place = open_at.pop(move.generation)
            bars[place] = _ended(bars[place], move)
        elif move.kind == "fenced":
            bars = [_late(bar, move) for bar in bars]
    return _continued(bars, open_at, moves, present)


def _ended(bar: Bar, move: Move) -> Bar:
    if move.kind == "settled":
        kind = move.detail
    elif bar.kind == "pending":
        kind = "cancelled" if move.kind == "cancelled" else "begun"
    else:
        kind = "cancelled" if move.kind == "cancelled" else "lost"
    return replace(bar, end=max(move.at, bar.start), kind=kind)


def _late(bar: Bar, move: Move) -> Bar:
    is_its = bar.generation == move.generation and bar.owner == move.owner
    return replace(bar, late_until=move.at) if is_its and move.at > bar.end else bar


def _continued(bars: list[Bar], open_at: dict[int, int], moves: Sequence[Move], present: Present | None) -> list[Bar]:
    """Let the bar of the present go on until now; one whose end is lost ends with the last thing that is known."""
    for generation, place in open_at.items():
        is_present = present is not None and present.generation == generation
        end = present.now if present is not None and is_present else moves[-1].at
        kind = bars[place].kind if is_present else "unknown"
        bars[place] = replace(bars[place], end=max(end, bars[place].start), kind=kind)
    if present is None or any(bar.generation == present.generation for bar in bars):
        return bars
    lane = present.owner if present.kind == "running" else QUEUE
    since = min(present.since, present.now)
    return [*bars, Bar(present.generation, lane, since, present.now, present.kind)]


def _placed(bar: Bar, axis: Axis, y_of: dict[str, int]) -> Bar:
    x, right = axis.x(bar.start), axis.x(bar.end)
    late_x = axis.x(bar.late_until) if bar.late_until else 0
    y = y_of[bar.owner] - BAR_HEIGHT // 2
    return replace(bar, x=x, y=y, width=max(right - x, _BAR_WIDTH_MIN), late_x=late_x)


def _lane_of(move: Move, bars: Sequence[Bar], owners: Sequence[str]) -> str:
    """Return the lane of a mark: its owner's; of an operator's move, that of the generation it was about."""
    if move.kind in _QUEUED and QUEUE in owners:
        return QUEUE
    if move.owner in owners and move.owner:
        return move.owner
    return next((bar.owner for bar in reversed(bars) if bar.generation == move.generation), owners[0])


def _lease_end(present: Present | None, spans: Sequence[Span]) -> datetime | None:
    """Return where the lease is drawn to end: a long one must not squeeze what has happened."""
    if present is None or present.lease_expires_at is None:
        return None
    elapsed = present.now - min(start for start, _ in spans)
    return min(present.lease_expires_at, present.now + max(elapsed / 2, _LEASE_SHOWN_MIN))


def _lease(present: Present | None, end: datetime | None, axis: Axis, y_of: dict[str, int]) -> Lease | None:
    if (
        present is None
        or end is None
        or present.lease_expires_at is None
        or present.owner not in y_of
        or not present.owner
    ):
        return None
    beat = present.heartbeat_at or present.since
    return Lease(
        y=y_of[present.owner],
        beat_x=axis.x(beat),
        now_x=axis.x(present.now),
        end_x=axis.x(end),
        is_over=present.lease_expires_at <= present.now,
        is_clipped=end < present.lease_expires_at,
    )
