"""The timeline's geometry: lanes, bars, marks and a readable axis, from audit rows alone."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

from singleflight_app.admin.timeline import (
    GENERATIONS_SHOWN,
    LABEL_WIDTH,
    QUEUE,
    WIDTH,
    Bar,
    Move,
    Picture,
    Present,
    picture,
)

START = datetime(2026, 11, 30, 21, 49, 50, tzinfo=UTC)
A, B = "node-a:1:x", "node-b:2:y"


def _at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def _move(kind: str, seconds: float, generation: int = 1, owner: str = A, detail: str = "") -> Move:
    return Move(kind, generation, owner, _at(seconds), detail=detail)


def _drawn(*moves: Move, present: Present | None = None) -> Picture:
    found = picture(moves, present)
    assert found is not None
    return found


def _only(drawn: Picture) -> Bar:
    (bar,) = drawn.bars
    return bar


def test_nothing_known_is_no_picture() -> None:
    """A settled flight whose audit rows were purged."""
    assert picture([]) is None


def test_a_call_is_a_bar_from_its_grant_to_its_end() -> None:
    """As wide as the picture, for nothing else happened."""
    drawn = _drawn(_move("granted", 0), _move("settled", 4, detail="succeeded"))

    bar = _only(drawn)
    assert (bar.kind, bar.owner, bar.start, bar.end) == ("succeeded", A, _at(0), _at(4))
    assert bar.x == LABEL_WIDTH
    assert LABEL_WIDTH < bar.x + bar.width < WIDTH
    assert [mark.move.kind for mark in drawn.marks] == ["settled"]
    assert drawn.marks[0].x == bar.x + bar.width


def test_owners_have_lanes_in_the_order_they_came() -> None:
    """A takeover ends the bar of the dead owner, and begins one in the other's lane."""
    drawn = _drawn(
        _move("granted", 0),
        _move("taken_over", 5, 2, B),
        _move("settled", 8, 2, B, "succeeded"),
    )

    first, second = drawn.bars
    assert [lane.owner for lane in drawn.lanes] == [A, B]
    assert (first.kind, first.end, second.kind) == ("lost", _at(5), "succeeded")
    assert first.y < second.y
    assert first.x + first.width == second.x
    assert drawn.marks[0].y == drawn.lanes[1].y


def test_a_fenced_owner_went_on_in_vain() -> None:
    """From where it was replaced until its refused end."""
    drawn = _drawn(_move("granted", 0), _move("taken_over", 5, 2, B), _move("fenced", 9, 1, A))

    lost, unknown = drawn.bars
    assert lost.late_until == _at(9)
    assert lost.late_x > lost.x + lost.width
    assert (unknown.kind, unknown.end) == ("unknown", _at(9))
    assert drawn.marks[-1].y == drawn.lanes[0].y


def test_waiting_for_a_worker_has_a_lane_of_its_own() -> None:
    """Until the grant, which may have a newer generation."""
    drawn = _drawn(_move("submitted", 0, 1, ""), _move("granted", 3, 2), _move("settled", 4, 2, detail="failed"))

    waiting, running = drawn.bars
    assert (waiting.owner, waiting.kind, waiting.end) == (QUEUE, "begun", _at(3))
    assert (running.owner, running.kind) == (A, "failed")


def test_an_operators_move_lies_in_the_lane_of_what_it_was_about() -> None:
    """The audit row names the user, and no owner."""
    drawn = _drawn(
        _move("granted", 0),
        _move("settled", 2, detail="succeeded"),
        _move("granted", 4, 2, B),
        _move("forgotten", 5, 2, ""),
        _move("expired", 6, 2, ""),
    )

    assert [mark.y for mark in drawn.marks if mark.move.kind in {"forgotten", "expired"}] == [drawn.lanes[1].y] * 2
    assert (drawn.bars[1].kind, drawn.bars[1].end) == ("lost", _at(6))


def test_an_unknown_kind_is_a_mark_too() -> None:
    """A newer release may write more of them."""
    drawn = _drawn(_move("granted", 0), _move("praised", 1), _move("settled", 2, detail="succeeded"))

    assert [mark.move.kind for mark in drawn.marks] == ["praised", "settled"]
    assert drawn.marks[0].shape.startswith("M")


def test_a_running_flight_goes_on_until_now_and_shows_its_lease() -> None:
    """Last beat, now, and the end of the lease, in this order."""
    present = Present(_at(10), 1, A, _at(0), _at(9), _at(14))

    drawn = _drawn(_move("granted", 0), present=present)

    bar, lease = _only(drawn), drawn.lease
    assert (bar.kind, bar.end) == ("running", _at(10))
    assert lease is not None
    assert lease.beat_x < lease.now_x == bar.x + bar.width < lease.end_x <= WIDTH
    assert not lease.is_over
    assert not lease.is_clipped


def test_a_long_lease_does_not_squeeze_what_has_happened() -> None:
    """It is drawn to go on beyond the picture."""
    drawn = _drawn(_move("granted", 0), present=Present(_at(10), 1, A, _at(0), _at(9), _at(600)))

    assert drawn.lease is not None
    assert drawn.lease.is_clipped
    assert _only(drawn).width > WIDTH / 3


def test_a_lease_that_is_over_ends_before_now() -> None:
    """Nobody beats between the two."""
    drawn = _drawn(_move("granted", 0), present=Present(_at(100), 1, A, _at(0), _at(10), _at(40)))

    assert drawn.lease is not None
    assert drawn.lease.is_over
    assert drawn.lease.left == drawn.lease.end_x < drawn.lease.now_x == drawn.lease.right


def test_a_running_flight_without_audit_rows_is_drawn_from_its_row() -> None:
    """They are purged after their retention, however long a call lasts."""
    drawn = _drawn(present=Present(_at(10), 7, B, _at(2), _at(9), _at(40)))

    bar = _only(drawn)
    assert (bar.generation, bar.owner, bar.start, bar.kind) == (7, B, _at(2), "running")


def test_a_pending_flight_waits_until_now() -> None:
    """It has no lease to show."""
    drawn = _drawn(_move("submitted", 0, 1, ""), present=Present(_at(3), 1, "", _at(0)))

    assert (_only(drawn).kind, _only(drawn).end, drawn.lease) == ("pending", _at(3), None)


def test_idle_hours_between_calls_take_little_room() -> None:
    """A key is asked again the next day, and both calls can be seen."""
    drawn = _drawn(
        _move("granted", 0),
        _move("settled", 3, detail="succeeded"),
        _move("granted", 86_400, 2),
        _move("settled", 86_403, 2, detail="succeeded"),
    )

    first, second = drawn.bars
    assert abs(first.width - second.width) <= 1
    assert first.width > WIDTH / 4
    assert [pause.label for pause in drawn.breaks] == ["24 h"]
    assert drawn.ticks[0].label == "21:49:50"
    assert any(tick.label.startswith("12-01 21:49") for tick in drawn.ticks)


def test_ticks_are_round_and_far_enough_apart_to_be_read() -> None:
    """Whatever the length, from parts of a second to weeks."""
    for length in (0.3, 2, 45, 700, 9000, 400_000, 5_000_000):
        drawn = _drawn(_move("granted", 0), _move("settled", length, detail="succeeded"))

        places = [tick.x for tick in drawn.ticks]
        assert 1 <= len(places) <= 12, length
        assert all(after - before >= 84 for before, after in pairwise(places)), length


def test_the_first_tick_is_as_exact_as_those_after_it() -> None:
    """A call that began at 42.4 s is not said to have begun at 42."""
    drawn = _drawn(_move("granted", 0.4), _move("settled", 2.5, detail="succeeded"))

    assert drawn.ticks[0].label == "21:49:50.4"


def test_one_moment_is_drawn_too() -> None:
    """A refused message has neither a beginning nor an end."""
    drawn = _drawn(_move("forgotten", 0, 5, ""))

    assert drawn.bars == []
    assert drawn.marks[0].x == LABEL_WIDTH
    assert len(drawn.lanes) == 1


def test_of_many_generations_the_newest_are_drawn() -> None:
    """And all of them lie within the picture."""
    moves = [
        move
        for number in range(100)
        for move in (
            _move("granted", 10 * number, number, f"node:{number % 30}:z"),
            _move("settled", 10 * number + 4, number, f"node:{number % 30}:z", "succeeded"),
        )
    ]

    drawn = _drawn(*moves)

    assert [bar.generation for bar in drawn.bars] == list(range(100 - GENERATIONS_SHOWN, 100))
    assert drawn.left_out == 100 - GENERATIONS_SHOWN
    assert len(drawn.lanes) == GENERATIONS_SHOWN
    assert all(LABEL_WIDTH <= bar.x < bar.x + bar.width <= WIDTH for bar in drawn.bars)
    assert all(bar.width >= 10 for bar in drawn.bars)


def test_a_clock_that_was_set_back_draws_no_negative_bar() -> None:
    """Audit rows are in the order they were written."""
    drawn = _drawn(_move("granted", 10), _move("settled", 8, detail="succeeded"))

    assert _only(drawn).width > 0
