"""PostgreSQL out of reach of one process in the middle of things: no second call, no lost answer, no key that hangs."""

import threading

import pytest

from singleflight_app import StillRunning
from tests.held import Counted, Held, begin
from tests.nodes import nodes
from tests.outages import Outage
from tests.waiting import until

pytestmark = pytest.mark.django_db


def test_who_inherits_the_lead_of_a_follower_does_not_call(unique: str, outage: Outage) -> None:
    """P1: a process that saw a running flight makes no call of its own in an outage, whoever leads there by then."""
    held, second = Held("value"), Counted("second call")
    with nodes(2) as (one, other):
        key = other.key("calm-row", {"key": unique})
        owner = begin(one.run, "calm-row", {"key": unique}, held)
        held.wait_until_begun()
        leader = begin(other.run, "calm-row", {"key": unique}, second, wait_timeout=2)
        other.wait_for_follower("calm-row")
        heir = begin(other.run, "calm-row", {"key": unique}, second, wait_timeout=4)
        other.wait_for_callers(key, 2)

        outage.begin()

        assert isinstance(leader.exception(20), StillRunning)
        assert isinstance(heir.exception(20), StillRunning)
        outage.end()
        held.let_go()
        assert owner.result(20).value == "value"
        assert second.count == 0


def test_an_answer_that_could_not_be_written_answers_and_is_written_later(unique: str, outage: Outage) -> None:
    """P8, R6: the caller has its answer, so have later ones of the process, and the row once the database is back."""
    paid, again = Held("paid"), Counted("paid again")
    with nodes(2) as (one, other):
        owner = begin(one.run, "fast", {"key": unique}, paid)
        paid.wait_until_begun()
        outage.begin()
        paid.let_go()
        first = owner.result(20)
        later = one.run("fast", {"key": unique}, again)

        outage.end()

        assert (first.value, later.value) == ("paid", "paid")
        until(lambda: not one.runtime.coordinator.running(), "the late settle")
        assert other.run("fast", {"key": unique}, again).value == "paid"
        assert again.count == 0


def test_a_degraded_call_that_hangs_holds_no_key(unique: str, outage: Outage) -> None:
    """R4: past `execution_timeout` later callers of the process claim anew, although there was no lease to run out."""
    hung = Held("late")
    with nodes(1) as (one,):
        outage.begin()
        owner = begin(one.run, "hung", {"key": unique}, hung)
        hung.wait_until_begun()
        outage.end()
        until(lambda: not one.run("calm-row", {"key": f"{unique}-probe"}, Counted("x")).degraded, "the database")

        assert one.run("hung", {"key": unique}, Counted("fresh"), wait_timeout=10).value == "fresh"
        hung.let_go()
        assert owner.result(20).degraded


def test_an_interrupted_call_is_not_replayed_in_an_outage(unique: str, outage: Outage) -> None:
    """R11: an owner that left is no answer, written or not."""
    interrupted = Held("never", error=KeyboardInterrupt())
    with nodes(1) as (one,):
        owner = begin(one.run, "calm-row", {"key": unique}, interrupted)
        interrupted.wait_until_begun()
        outage.begin()
        interrupted.let_go()
        assert isinstance(owner.exception(20), KeyboardInterrupt)

        assert one.run("calm-row", {"key": unique}, Counted("new")).value == "new"
        outage.end()


@pytest.mark.parametrize("name", ["beat", "spread"])
def test_a_thread_that_can_not_start_costs_no_answer(unique: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """P8: the process is out of threads for a moment; the call goes through, and the next one gets its thread."""
    start = threading.Thread.start
    failed: list[threading.Thread] = []

    def start_or_fail(thread: threading.Thread) -> None:
        if thread.name == f"singleflight-{name}" and not failed:
            failed.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_or_fail)
    held, second = Held("value"), Counted("second call")
    with nodes(2) as (one, other):
        assert one.run("fast", {"key": f"{unique}-first"}, Counted("through")).value == "through"
        owner = begin(one.run, "fast", {"key": unique}, held)
        held.wait_until_begun()

        with pytest.raises(StillRunning):
            other.run("fast", {"key": unique}, second, wait_timeout=3)

        held.let_go()
        assert owner.result(20).value == "value"
        assert len(failed) == 1
        assert second.count == 0
