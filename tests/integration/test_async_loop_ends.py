"""The loop of an async call ends under it, or is ended by it: the flight is released, and a waiter takes it (R11).

The stages have leases of a minute: who waited for one to run out would fail the test.
"""

import asyncio
import gc
from typing import Annotated

import pytest
from django.test import override_settings
from pydantic import PlainSerializer

from singleflight_app import Role
from singleflight_app.models import Flight
from tests.held import Counted, Held, begin
from tests.looped import AsyncCounted, AsyncHeld, loops
from tests.nodes import nodes
from tests.settings import SINGLEFLIGHT
from tests.waiting import until

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("asking", [0, 1])
def test_a_waiter_takes_the_call_of_a_loop_that_has_ended(unique: str, asking: int) -> None:
    """R11: in its process or in another one; the ended call was cancelled, and its row says so."""
    call = AsyncHeld("never")
    with nodes(2) as both, loops(1) as (loop,):
        key = both[0].key("calm-row", {"key": unique})
        owner = loop.begin(both[0].arun("calm-row", {"key": unique}, call))
        call.wait_until_begun()
        waiter = begin(both[asking].run, "calm-row", {"key": unique}, Counted("anew"))
        both[asking].wait_for_callers(key, 2 - asking)
        generation = Flight.objects.get(digest=key.digest).generation

        loop.end()

        found = waiter.result(20)
        assert (found.value, found.role) == ("anew", Role.OWNER)
        assert (found.generation or 0) > generation
        assert call.cancelled.is_set()
        assert owner.cancelled()
        for node in both:
            node.wait_until_idle()


def test_the_row_of_an_ended_loop_is_cancelled_and_may_be_tried_again(unique: str) -> None:
    """R11: with nobody waiting as well."""
    call = AsyncHeld("never")
    with nodes(1) as (node,), loops(1) as (loop,):
        key = node.key("calm-row", {"key": unique})
        loop.begin(node.arun("calm-row", {"key": unique}, call))
        call.wait_until_begun()

        loop.end()

        node.wait_until_idle()
        flight = Flight.objects.get(digest=key.digest)
        assert (flight.status, flight.retryable) == ("cancelled", True)


def test_a_loop_that_is_closed_without_a_word_holds_no_key(unique: str) -> None:
    """R11: no task was cancelled, and none will ever run again; nobody waits for the lease to run out."""
    call = AsyncHeld("never")
    with nodes(1) as (node,), loops(1) as (loop,):
        key = node.key("calm-beating", {"key": unique})
        loop.begin(node.arun("calm-beating", {"key": unique}, call))
        call.wait_until_begun()
        waiter = begin(node.run, "calm-beating", {"key": unique}, Counted("anew"))
        node.wait_for_callers(key, 2)

        loop.break_off()
        gc.collect()

        assert waiter.result(20).value == "anew"
        node.wait_until_idle()


def test_a_loop_that_is_closed_without_a_word_gives_its_places_back(unique: str) -> None:
    """P4: a call that will never end is no load that `max_local_calls` counts."""
    stage = {"lease_timeout": 1.5, "heartbeat_interval": 0.5, "wait_timeout": 30, "max_local_calls": 1}
    call = AsyncHeld("never")
    with (
        override_settings(SINGLEFLIGHT={**SINGLEFLIGHT, "STAGES": {"narrow": stage}}),
        nodes(1) as (node,),
        loops(1) as (loop,),
    ):
        loop.begin(node.arun("narrow", {"key": unique}, call))
        call.wait_until_begun()

        loop.break_off()

        assert node.run("narrow", {"key": f"{unique}-other"}, Counted("room"), wait_timeout=10).value == "room"


def test_who_waits_behind_a_follower_whose_loop_is_closed_gets_the_answer(unique: str) -> None:
    """P4, P5: it led the line of its process and will never say a word; the other node's flight ends all the same."""
    call = Held("answer")
    with nodes(2) as (here, there), loops(1) as (loop,):
        owner = begin(here.run, "calm-row", {"key": unique}, call)
        call.wait_until_begun()
        loop.begin(there.arun("calm-row", {"key": unique}, AsyncCounted("not called")))
        there.wait_for_follower("calm-row")
        waiter = begin(there.run, "calm-row", {"key": unique}, Counted("not called"))
        there.wait_for_callers(there.key("calm-row", {"key": unique}), 2)

        loop.break_off()
        call.let_go()

        assert owner.result(20).value == waiter.result(20).value == "answer"
        there.wait_until_idle()


def test_a_call_that_tidies_up_is_still_the_only_one(unique: str) -> None:
    """P1: the end of its loop cancels it; until it has really ended, nobody calls."""
    call = AsyncHeld("never", tidies_up=True)
    second = AsyncCounted("anew")
    with nodes(1) as (node,), loops(2) as (loop, other):
        key = node.key("calm-row", {"key": unique})
        loop.begin(node.arun("calm-row", {"key": unique}, call))
        call.wait_until_begun()
        waiter = other.begin(node.arun("calm-row", {"key": unique}, second))
        node.wait_for_callers(key, 2)
        ending = begin(loop.end)
        assert call.cancelled.wait(20)
        with pytest.raises(TimeoutError):
            waiter.result(0.5)  # if it does not call within this, it will not
        assert second.count == 0

        call.let_go()

        ending.result(20)
        assert waiter.result(20).value == "anew"


def test_what_a_call_returned_as_its_loop_ended_is_kept(unique: str) -> None:
    """P8: it was paid for; the tasks that would have stored it are cancelled in the same moment."""
    held = AsyncHeld("paid")

    async def call() -> str:
        value = await held()
        tasks = asyncio.all_tasks()
        asyncio.get_running_loop().call_soon(lambda: [task.cancel() for task in tasks])
        return value

    second = Counted("paid again")
    with nodes(1) as (node,), loops(1) as (loop,):
        key = node.key("calm-row", {"key": unique})
        loop.begin(node.arun("calm-row", {"key": unique}, call))
        held.wait_until_begun()
        waiter = begin(node.run, "calm-row", {"key": unique}, second)
        node.wait_for_callers(key, 2)

        held.let_go()

        assert waiter.result(20).value == "paid"
        assert second.count == 0
        node.wait_until_idle()


def test_what_is_packed_as_its_loop_ends_is_kept(unique: str) -> None:
    """P8: the same a moment later, while a thread puts it into its stored form."""
    packing = Held("paid")
    second = Counted("paid again")

    async def call() -> str:
        return "paid"

    with nodes(1) as (node,), loops(1) as (loop,):
        key = node.key("calm-row", {"key": unique})
        packed = Annotated[str, PlainSerializer(lambda _: packing())]
        owner = loop.begin(node.arun("calm-row", {"key": unique}, call, result_type=packed))
        packing.wait_until_begun()
        waiter = begin(node.run, "calm-row", {"key": unique}, second)
        node.wait_for_callers(key, 2)

        ending = begin(loop.end)
        until(owner.done, "the caller to be cancelled")
        packing.let_go()

        assert waiter.result(20).value == "paid"
        assert second.count == 0
        ending.result(20)
        node.wait_until_idle()


def test_a_call_that_cancels_itself_frees_its_key(unique: str) -> None:
    """C8: its caller sees the cancellation; who waits behind it calls."""
    call = AsyncHeld("never", error=asyncio.CancelledError())
    second = AsyncCounted("anew")
    with nodes(1) as (node,), loops(2) as (one, two):
        key = node.key("calm-row", {"key": unique})
        owner = one.begin(node.arun("calm-row", {"key": unique}, call))
        call.wait_until_begun()
        waiter = two.begin(node.arun("calm-row", {"key": unique}, second))
        node.wait_for_callers(key, 2)

        call.let_go()

        assert waiter.result(20).value == "anew"
        until(owner.cancelled, "the cancellation of the owner's caller")
        node.wait_until_idle()


def test_a_call_that_exits_ends_its_program_and_frees_its_key(unique: str) -> None:
    """C8: SystemExit leaves by way of the loop, as it does from any task; a waiter elsewhere calls at once."""
    call = AsyncHeld("never", error=SystemExit(3))
    with nodes(1) as (node,):
        key = node.key("calm-row", {"key": unique})

        def program() -> None:
            asyncio.run(node.arun("calm-row", {"key": unique}, call))

        ended = begin(program)
        call.wait_until_begun()
        waiter = begin(node.run, "calm-row", {"key": unique}, Counted("anew"))
        node.wait_for_callers(key, 2)

        call.let_go()

        assert waiter.result(20).value == "anew"
        exit_ = ended.exception(20)
        assert isinstance(exit_, SystemExit)
        assert exit_.code == 3
        node.wait_until_idle()


def test_the_owner_of_a_thread_outlives_the_loops_of_its_followers(unique: str) -> None:
    """P5: they stand in line when their loop ends, in order or not; the next one in line is not passed over."""
    call = AsyncHeld("answer")
    with nodes(1) as (node,), loops(3) as (owning, ending, breaking):
        key = node.key("calm-row", {"key": unique})
        owner = owning.begin(node.arun("calm-row", {"key": unique}, call))
        call.wait_until_begun()
        for count, loop in enumerate((ending, breaking)):
            loop.begin(node.arun("calm-row", {"key": unique}, call))
            node.wait_for_callers(key, count + 2)
        waiter = begin(node.run, "calm-row", {"key": unique}, Counted("not called"))
        node.wait_for_callers(key, 4)
        ending.end()
        breaking.break_off()

        call.let_go()

        assert (owner.result(20).value, waiter.result(20).value) == ("answer", "answer")
        assert call.count == 1
