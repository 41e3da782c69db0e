"""Async calls while PostgreSQL is out of reach of their process: no lost answer, and the loop is never held up (P8)."""

import pytest

from singleflight_app import Layer, Role, StillRunning
from tests.held import Counted, begin
from tests.looped import AsyncCounted, AsyncHeld, a_turn, loops
from tests.nodes import nodes
from tests.outages import Outage
from tests.waiting import until

pytestmark = pytest.mark.django_db


def test_an_answer_that_could_not_be_written_answers_and_is_written_later(unique: str, outage: Outage) -> None:
    """P8, R6: its caller and a follower in a thread have it at once, and the row once the database is back."""
    paid, again = AsyncHeld("paid"), AsyncCounted("paid again")
    with nodes(2) as (one, other), loops(1) as (loop,):
        owner = loop.begin(one.arun("fast", {"key": unique}, paid))
        paid.wait_until_begun()
        follower = begin(one.run, "fast", {"key": unique}, Counted("paid again"))
        one.wait_for_callers(one.key("fast", {"key": unique}), 2)
        outage.begin()
        paid.let_go()

        assert (owner.result(20).value, follower.result(20).value) == ("paid", "paid")
        later = loop.run(one.arun("fast", {"key": unique}, again))
        assert (later.value, later.role) == ("paid", Role.REPLAY)
        outage.end()
        until(lambda: not one.runtime.coordinator.running(), "the late settle")
        assert loop.run(other.arun("fast", {"key": unique}, again)).value == "paid"
        assert again.count == 0
        one.wait_until_idle()


def test_one_call_per_process_is_made_without_the_database(unique: str, outage: Outage) -> None:
    """Hybrid mode: marked, shared by the callers of the process, and the first of them may leave."""
    call = AsyncHeld("degraded")
    with nodes(1) as (node,), loops(2) as (one, two):
        key = node.key("calm-row", {"key": unique})
        outage.begin()
        first = one.begin(node.arun("calm-row", {"key": unique}, call))
        call.wait_until_begun()
        follower = two.begin(node.arun("calm-row", {"key": unique}, call))
        node.wait_for_callers(key, 2)
        first.cancel()
        until(lambda: node.callers_of(key) == 1, "the first caller to be gone")
        assert one.run(a_turn("free")) == "free"
        call.let_go()

        found = follower.result(20)

        assert (found.value, found.degraded, found.generation) == ("degraded", True, None)
        assert (found.role, found.layer) == (Role.FOLLOWER, Layer.PROCESS)
        assert call.count == 1
        outage.end()
        node.wait_until_idle()


def test_a_degraded_call_that_hangs_is_cancelled(unique: str, outage: Outage) -> None:
    """R4: past `execution_timeout`, although there was no lease to run out; later callers claim anew."""
    hung = AsyncHeld("never")
    with nodes(1) as (node,), loops(1) as (loop,):
        outage.begin()
        owner = loop.begin(node.arun("hung", {"key": unique}, hung))
        hung.wait_until_begun()
        assert hung.cancelled.wait(20)
        outage.end()

        assert "execution_timeout" in str(owner.exception(20))
        node.wait_until_idle()


def test_a_degraded_call_whose_loop_ends_holds_no_key(unique: str, outage: Outage) -> None:
    """R11: who stood in line behind it calls."""
    call = AsyncHeld("never")
    with nodes(1) as (node,), loops(1) as (loop,):
        outage.begin()
        loop.begin(node.arun("calm-row", {"key": unique}, call))
        call.wait_until_begun()
        waiter = begin(node.run, "calm-row", {"key": unique}, Counted("anew"))
        node.wait_for_callers(node.key("calm-row", {"key": unique}), 2)

        loop.end()

        assert waiter.result(20).value == "anew"
        outage.end()
        node.wait_until_idle()


def test_a_follower_does_not_call_in_an_outage(unique: str, outage: Outage) -> None:
    """P1: the owner may be calling, so it waits on within its budget."""
    call, second = AsyncHeld("answer"), AsyncCounted("second call")
    with nodes(2) as (one, other), loops(2) as (here, there):
        owner = here.begin(one.arun("calm-row", {"key": unique}, call))
        call.wait_until_begun()
        follower = there.begin(other.arun("calm-row", {"key": unique}, second, wait_timeout=1))
        other.wait_for_follower("calm-row")
        outage.begin()

        assert isinstance(follower.exception(20), StillRunning)
        outage.end()
        call.let_go()
        assert owner.result(20).value == "answer"
        assert second.count == 0
        other.wait_until_idle()
