"""`current_flight().progress()`: how far a call is stands in its row, written by the beats that go anyway."""

import threading
from typing import Any

import pytest

from singleflight_app import InvalidRequest, current_flight
from singleflight_app.models import Flight
from tests.held import Counted, Held, begin
from tests.nodes import Node, nodes
from tests.past import end_outcome
from tests.stored import row_of
from tests.waiting import until

pytestmark = pytest.mark.django_db


class Telling(Held[str]):
    """A held call that tells how far it is when it begins."""

    def __init__(self, fraction: float, text: str = "") -> None:
        super().__init__("done")
        self._told = fraction, text

    def __call__(self) -> str:
        current_flight().progress(*self._told)
        return super().__call__()


def progress_of(node: Node, stage: str, key: str) -> Any:  # noqa: ANN401
    digest = node.key(stage, {"key": key}).digest
    return Flight.objects.values_list("progress", flat=True).get(digest=digest)


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        ("reading", "reading"),
        ("", ""),
        ("a\x00b", "ab"),
        ("half a smile \ud83d", "half a smile ?"),
        ("读", "读"),
        ("x" * 300, "x" * 200),
    ],
)
def test_the_row_shows_it_after_a_beat(unique: str, text: str, stored: str) -> None:
    """Whatever a model may have written into it: no beat, on which every lease of the process hangs, fails of it."""
    call = Telling(0.25, text)
    with nodes(1) as (node,):
        owner = begin(node.run, "fast", {"key": unique}, call)
        call.wait_until_begun()

        until(lambda: progress_of(node, "fast", unique), "progress in the row")
        assert progress_of(node, "fast", unique) == {"fraction": 0.25, "text": stored}
        call.let_go()
        assert owner.result(20).value == "done"


def test_the_last_word_stands(unique: str) -> None:
    """Between two beats only the newest counts; what was written stays until there is news."""
    steps = [threading.Event() for _ in range(2)]

    def call() -> str:
        flight = current_flight()
        flight.progress(0.1, "first")
        flight.progress(0.2, "second")
        assert steps[0].wait(20)
        flight.progress(1, "third")
        assert steps[1].wait(20)
        return "done"

    with nodes(1) as (node,):
        owner = begin(node.run, "fast", {"key": unique}, call)
        for step, expected in zip(
            steps, ({"fraction": 0.2, "text": "second"}, {"fraction": 1.0, "text": "third"}), strict=True
        ):
            until(lambda: node.line_of(node.key("fast", {"key": unique})), "a flight")
            until(lambda expected=expected: _is_there(node, unique, expected), f"{expected}")  # type: ignore[misc]
            step.set()
        assert owner.result(20).value == "done"


def _is_there(node: Node, key: str, expected: dict[str, object]) -> bool:
    digest = node.key("fast", {"key": key}).digest
    return Flight.objects.filter(digest=digest, progress=expected).exists()


def test_a_new_generation_begins_with_none(unique: str) -> None:
    """The old call's progress is not the new one's."""
    call, second = Telling(0.5, "old"), Held("new")
    with nodes(1) as (node,):
        first = begin(node.run, "fast", {"key": unique}, call)
        call.wait_until_begun()
        until(lambda: progress_of(node, "fast", unique), "progress in the row")
        call.let_go()
        first.result(20)
        newer = begin(node.run, "fast", {"key": unique}, second, is_fresh=True)
        second.wait_until_begun()

        assert progress_of(node, "fast", unique) is None
        second.let_go()
        assert newer.result(20).value == "new"


def test_a_late_owner_tells_nothing(unique: str) -> None:
    """P3: the row is another generation's by then."""
    told = threading.Event()
    newer = Telling(0.75, "newer")
    with nodes(2) as (one, other):

        def late() -> str:
            flight = current_flight()
            assert flight.flight_id is not None
            assert one.runtime.expire_lease(flight.flight_id, actor="test")
            newer.wait_until_begun()
            flight.progress(0.1, "late")
            until(lambda: flight.is_superseded, "a beat that finds its lease lost")
            told.set()
            return "late"

        owner = begin(one.run, "fast", {"key": unique}, late)
        one.wait_for_callers(one.key("fast", {"key": unique}), 1)
        until(one.runtime.coordinator.running, "an owner")
        taking = begin(other.run, "fast", {"key": unique}, newer)
        assert told.wait(20)
        until(lambda: progress_of(other, "fast", unique), "the newer progress")

        assert progress_of(other, "fast", unique) == {"fraction": 0.75, "text": "newer"}
        newer.let_go()
        assert owner.result(20).value == taking.result(20).value == "done"


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan"), float("inf"), 50])
def test_a_fraction_that_is_none_is_refused(unique: str, fraction: float) -> None:
    """A percentage, most likely."""

    def call() -> str:
        with pytest.raises(InvalidRequest, match=r"progress is .*; give a number from 0 to 1"):
            current_flight().progress(fraction)
        return "done"

    with nodes(1) as (node,):
        assert node.run("fast", {"key": unique}, call).value == "done"


def test_a_call_that_is_over_before_a_beat_leaves_none(unique: str) -> None:
    """It is a help for those who wait, not a record."""

    def call() -> str:
        current_flight().progress(0.5)
        return "done"

    with nodes(1) as (node,):
        outcome = node.run("calm", {"key": unique}, call)
        assert row_of(outcome).progress is None
        end_outcome(outcome.generation)
        assert node.run("calm-row", {"key": unique}, Counted("again")).value == "again"
