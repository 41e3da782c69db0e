"""An async call that nobody needs any more is cancelled: its lease is lost, or its time is over (R3, R4)."""

import asyncio
from contextlib import suppress

import pytest
from django.test import override_settings

from singleflight_app import (
    ExecutionTimedOut,
    FlightCancelled,
    LeaseLost,
    Overloaded,
    Role,
    current_flight,
)
from singleflight_app.models import Flight
from tests.held import Counted, begin
from tests.looped import AsyncCounted, AsyncHeld, loops
from tests.nodes import Node, nodes
from tests.past import _commit, delete
from tests.settings import SINGLEFLIGHT
from tests.stored import row_of
from tests.waiting import until

pytestmark = pytest.mark.django_db


def _generation(node: Node, stage: str, unique: str) -> int:
    return Flight.objects.get(digest=node.key(stage, {"key": unique}).digest).generation


def test_a_superseded_call_is_cancelled_and_its_callers_get_the_newer_value(unique: str) -> None:
    """R3: it stops costing money; its own caller and its follower on another loop wait for the newer generation."""
    old = AsyncHeld("old")
    with nodes(2) as (one, other), loops(2) as (loop, second):
        owner = loop.begin(one.arun("fast", {"key": unique}, old))
        old.wait_until_begun()
        follower = second.begin(one.arun("fast", {"key": unique}, AsyncCounted("not called")))
        one.wait_for_callers(one.key("fast", {"key": unique}), 2)
        with one.without_a_beat():
            one.expire(one.key("fast", {"key": unique}))
            newer = other.run("fast", {"key": unique}, Counted("newer"))

        assert old.cancelled.wait(20)
        for caller in (owner, follower):
            assert (caller.result(20).value, caller.result(20).generation) == ("newer", newer.generation)
        assert owner.result(20).role is Role.FOLLOWER
        one.wait_until_idle()


def test_a_superseded_call_without_a_newer_value_is_a_lost_lease(unique: str) -> None:
    """R3: the newer generation failed, so there is nothing to give."""
    old = AsyncHeld("old")
    with nodes(2) as (one, other), loops(1) as (loop,):
        owner = loop.begin(one.arun("fast", {"key": unique}, old))
        old.wait_until_begun()
        failing = AsyncHeld("never", error=ValueError("no luck"))
        failing.let_go()
        with one.without_a_beat():
            one.expire(one.key("fast", {"key": unique}))
            with pytest.raises(ValueError, match="no luck"):
                loop.run(other.arun("fast", {"key": unique}, failing))

        with pytest.raises(LeaseLost):
            owner.result(20)
        assert old.cancelled.is_set()
        one.wait_until_idle()


def test_a_superseded_call_that_can_not_be_stopped_returns_its_value(unique: str) -> None:
    """R3: it swallows the cancellation; with no newer value its caller gets its own, marked."""

    async def stubborn() -> str:
        begun.set()
        with suppress(asyncio.CancelledError):
            await asyncio.get_running_loop().create_future()
        return "own"

    with nodes(1) as (one,), loops(1) as (loop,):
        begun = asyncio.Event()
        owner = loop.begin(one.arun("fast", {"key": unique}, stubborn))
        until(begun.is_set, "the call")
        one.expire(one.key("fast", {"key": unique}))

        assert (owner.result(20).value, owner.result(20).superseded) == ("own", True)
        one.wait_until_idle()


def test_a_vanished_row_ends_no_call(unique: str) -> None:
    """R3: nobody else can have the value, so its caller gets it."""
    call = AsyncHeld("own")
    with nodes(1) as (one,), loops(1) as (loop,):
        owner = loop.begin(one.arun("fast", {"key": unique}, call))
        call.wait_until_begun()
        delete(_generation(one, "fast", unique))
        until(lambda: not one.runtime.coordinator.running(), "the loss to be noticed")
        call.let_go()

        assert owner.result(20).value == "own"
        assert not call.cancelled.is_set()


def test_a_cancelled_flight_cancels_its_call(unique: str) -> None:
    """An operator's cancel ends the call; its own caller is told, and the key is free."""
    call = AsyncHeld("never")
    with nodes(1) as (one,), loops(1) as (loop,):
        owner = loop.begin(one.arun("fast", {"key": unique}, call))
        call.wait_until_begun()
        _commit(
            b"update singleflight_flight set status = 'cancelled', lease_expires_at = null, settled_at = "
            b"clock_timestamp(), expires_at = clock_timestamp() + interval '1 hour', retryable = false "
            b"where generation = %(generation)s",
            _generation(one, "fast", unique),
        )

        with pytest.raises(FlightCancelled):
            owner.result(20)
        assert call.cancelled.is_set()
        assert loop.run(one.arun("fast", {"key": unique}, AsyncCounted("anew"))).value == "anew"
        one.wait_until_idle()


def test_a_call_that_runs_too_long_is_cancelled(unique: str) -> None:
    """R4: its own caller, its follower in a thread and one on another node see that it timed out; the key is free."""
    call = AsyncHeld("never")
    with nodes(2) as (one, other), loops(2) as (loop, elsewhere):
        owner = loop.begin(one.arun("hung", {"key": unique}, call))
        call.wait_until_begun()
        followers = [
            begin(one.run, "hung", {"key": unique}, Counted("anew")),
            elsewhere.begin(other.arun("hung", {"key": unique}, AsyncCounted("anew"))),
        ]

        with pytest.raises(ExecutionTimedOut):
            owner.result(20)
        for follower in followers:
            failure = follower.exception(20)
            assert isinstance(failure, ExecutionTimedOut) or follower.result(20).value == "anew"
        assert call.cancelled.is_set()
        for node in (one, other):
            node.wait_until_idle()


def test_a_place_is_held_until_the_task_has_really_ended(unique: str) -> None:
    """R4: timed out, cancelled, and still tidying up: it is the load that `max_local_calls` counts."""
    call = AsyncHeld("never", tidies_up=True)
    stage = {
        "lease_timeout": 1.5,
        "heartbeat_interval": 0.5,
        "wait_timeout": 30,
        "execution_timeout": 0.3,
        "max_local_calls": 1,
        "on_saturated": "reject",
    }
    with (
        override_settings(SINGLEFLIGHT={**SINGLEFLIGHT, "STAGES": {"narrow": stage}}),
        nodes(1) as (node,),
        loops(1) as (loop,),
    ):
        owner = loop.begin(node.arun("narrow", {"key": unique}, call))
        assert call.cancelled.wait(20)
        with pytest.raises(Overloaded):
            loop.run(node.arun("narrow", {"key": f"{unique}-other"}, AsyncCounted("no room")))

        call.let_go()

        with pytest.raises(ExecutionTimedOut):
            owner.result(20)
        node.wait_until_idle()
        assert loop.run(node.arun("narrow", {"key": f"{unique}-other"}, AsyncCounted("room"))).value == "room"


def test_a_late_value_of_a_timed_out_call_reaches_its_own_caller(unique: str) -> None:
    """R4: the function swallowed its cancellation; marked, and stored nowhere."""
    held = AsyncHeld("late")

    async def stubborn() -> str:
        with suppress(asyncio.CancelledError):
            await asyncio.get_running_loop().create_future()
        return await held()

    with nodes(1) as (node,), loops(1) as (loop,):
        owner = loop.begin(node.arun("hung", {"key": unique}, stubborn))
        held.wait_until_begun()
        key = node.key("hung", {"key": unique})
        until(lambda: Flight.objects.get(digest=key.digest).status == "timed_out", "the timeout")
        held.let_go()

        assert (owner.result(20).value, owner.result(20).superseded) == ("late", True)
        assert row_of(owner.result(20)).status == "timed_out"
        node.wait_until_idle()


def test_a_call_sees_that_its_lease_is_lost_while_it_tidies_up(unique: str) -> None:
    """`current_flight().lease_lost` tells a cancelled call why."""
    seen: list[bool] = []
    begun = asyncio.Event()

    async def call() -> str:
        begun.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            seen.append(current_flight().lease_lost)
        return "never"

    with nodes(2) as (one, other), loops(1) as (loop,):
        owner = loop.begin(one.arun("fast", {"key": unique}, call))
        until(begun.is_set, "the call")
        with one.without_a_beat():
            one.expire(one.key("fast", {"key": unique}))
            other.run("fast", {"key": unique}, Counted("newer"))

        assert owner.result(20).value == "newer"
        assert seen == [True]


def test_a_try_again_is_not_made_in_vain(unique: str) -> None:
    """R4: the time of the call is over in a pause between two tries; no further one is made."""
    call = AsyncCounted("never")

    async def failing() -> str:
        await call()
        raise TimeoutError

    stage = {
        "lease_timeout": 1.5,
        "heartbeat_interval": 0.5,
        "wait_timeout": 30,
        "execution_timeout": 0.3,
        "retry": {"attempts": 3, "wait": 5, "max_wait": 5},
    }
    with (
        override_settings(SINGLEFLIGHT={**SINGLEFLIGHT, "STAGES": {"hung": stage}}),
        nodes(1) as (node,),
        loops(1) as (loop,),
    ):
        with pytest.raises(ExecutionTimedOut):
            loop.run(node.arun("hung", {"key": unique}, failing))

        assert call.count == 1
        node.wait_until_idle()
