"""A caller on an event loop is cancelled, at each await of its way: nobody is hurt, nothing stays held (P5, C1-C3)."""

import asyncio
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Any

import pytest
from django.test import override_settings

from singleflight_app import Layer, Role
from singleflight_app.models import Flight
from tests.held import Counted, begin
from tests.looped import AsyncCounted, AsyncHeld, Loop, Watched, a_turn, loops
from tests.nodes import Node, nodes
from tests.settings import SINGLEFLIGHT
from tests.waiting import until

pytestmark = pytest.mark.django_db

FURTHEST = 60  #: no way has more suspensions than this


class _Cut:
    """Counts the suspensions of all tasks of a loop, and does something at the k-th."""

    def __init__(self, loop: Loop, at: int, cut: Callable[[], object], *, is_armed: bool = True) -> None:
        self._left, self._cut, self.is_armed, self.is_done = at, cut, is_armed, False

        def task(loop: asyncio.AbstractEventLoop, steps: Any, **given: Any) -> "asyncio.Task[Any]":  # noqa: ANN401
            return asyncio.Task(Watched(steps, self._on_suspension), loop=loop, **given)

        loop.loop.set_task_factory(task)

    def _on_suspension(self) -> None:
        self._left -= self.is_armed
        if self._left == 0 and not self.is_done:
            self.is_done = True
            self._cut()


class _Overlap:
    """An async call of two steps that notes how many run at a time."""

    def __init__(self) -> None:
        self.count = self.running = self.most_running = 0

    async def __call__(self) -> str:
        self.count += 1
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            for _ in range(2):
                await a_turn()
        finally:
            self.running -= 1
        return "answer"


def _cut_at(loop: Loop, at: int, node: Node, stage: str, key: str, call: Any, *, all_tasks: bool) -> bool:  # noqa: ANN401
    """Ask, and cancel the caller (or every task, as the end of a loop does) at a suspension; False: it came before."""
    tasks: list[asyncio.Task[Any]] = []

    def cut() -> None:
        for task in asyncio.all_tasks(loop.loop) if all_tasks else tasks:
            task.cancel()

    async def ask() -> object:
        cutting = _Cut(loop, at, cut)
        tasks.append(asyncio.create_task(node.arun(stage, {"key": key}, call)))
        await asyncio.wait(tasks)
        loop.loop.set_task_factory(None)
        return cutting.is_done

    async def shielded() -> bool:
        try:
            return bool(await ask())
        except asyncio.CancelledError:  # this task was among them
            loop.loop.set_task_factory(None)
            others = asyncio.all_tasks() - {asyncio.current_task()}
            await asyncio.gather(*others, return_exceptions=True)
            return True

    return loop.run(shielded())


@pytest.mark.parametrize("stage", ["calm", "calm-row"])
@pytest.mark.parametrize("all_tasks", [False, True])
def test_cancelled_at_any_await_while_it_owns(unique: str, stage: str, *, all_tasks: bool) -> None:
    """R11: in line, at the cache, in the claim, in the call, in the settle: the next caller gets an answer at once."""
    with nodes(1) as (node,), loops(2) as (loop, other):
        for at in range(1, FURTHEST):
            call, key = _Overlap(), f"{unique}-{at}"
            was_cut = _cut_at(loop, at, node, stage, key, call, all_tasks=all_tasks)

            second = other.run(node.arun(stage, {"key": key}, call))

            assert second.value == "answer"
            assert call.most_running == 1, at
            assert call.count <= (2 if all_tasks else 1), at
            node.wait_until_idle()
            if not was_cut:
                assert at > 4
                return
    pytest.fail("the way never ended")


def _wait_for_follower_or_end(node: Node, ended: "Future[bool]") -> None:
    following = node.runtime.coordinator._following
    until(lambda: ended.done() or following._waiting["calm"], "a follower, or the end of its caller")


@pytest.mark.parametrize("all_tasks", [False, True])
def test_cancelled_at_any_await_while_it_follows(unique: str, *, all_tasks: bool) -> None:
    """C2: of another node; the heir in line goes on following, and no second call starts."""
    with nodes(2) as (node, owner), loops(2) as (loop, other):
        for at in range(1, FURTHEST):
            call, key = AsyncHeld("answer"), f"{unique}-{at}"
            first = other.begin(owner.arun("calm", {"key": key}, call))
            call.wait_until_begun()
            ended = begin(_cut_at, loop, at, node, "calm", key, AsyncCounted("second"), all_tasks=all_tasks)
            _wait_for_follower_or_end(node, ended)
            heir = begin(node.run, "calm", {"key": key}, Counted("second"))
            node.wait_for_callers(node.key("calm", {"key": key}), 1)
            call.let_go()

            assert (first.result(20).value, heir.result(20).value) == ("answer", "answer")
            assert call.count == 1
            was_cut = ended.result(20)
            node.wait_until_idle()
            owner.wait_until_idle()
            if not was_cut:
                return
    pytest.fail("the way never ended")


def _wait_in_line_or_end(node: Node, ended: "Future[bool]") -> None:
    limits = node.runtime.coordinator._limits
    until(lambda: ended.done() or limits._waiting, "a caller without a place, or its end")


@pytest.mark.parametrize("all_tasks", [False, True])
def test_cancelled_at_any_await_while_it_waits_for_room(unique: str, *, all_tasks: bool) -> None:
    """P4: it leaves the line for a place, and takes no place with it."""
    stage = {"lease_timeout": 60, "heartbeat_interval": 15, "wait_timeout": 60, "max_local_calls": 1}
    with (
        override_settings(SINGLEFLIGHT={**SINGLEFLIGHT, "STAGES": {"narrow": stage}}),
        nodes(1) as (node,),
        loops(2) as (loop, other),
    ):
        for at in range(1, FURTHEST):
            running, call, key = AsyncHeld("running"), _Overlap(), f"{unique}-{at}"
            first = other.begin(node.arun("narrow", {"key": f"{key}-first"}, running))
            running.wait_until_begun()
            ended = begin(_cut_at, loop, at, node, "narrow", key, call, all_tasks=all_tasks)
            _wait_in_line_or_end(node, ended)
            running.let_go()

            assert first.result(20).value == "running"
            was_cut = ended.result(20)
            assert other.run(node.arun("narrow", {"key": key}, call)).value == "answer"
            assert call.most_running == 1
            node.wait_until_idle()
            if not was_cut:
                assert at > 4
                return
    pytest.fail("the way never ended")


def test_the_first_caller_leaves_and_nobody_notices(unique: str) -> None:
    """C1: the call goes on, its follower and the row get the answer."""
    call = AsyncHeld("answer")
    with nodes(1) as (node,), loops(2) as (one, two):
        key = node.key("calm-row", {"key": unique})
        first = one.begin(node.arun("calm-row", {"key": unique}, call))
        call.wait_until_begun()
        follower = two.begin(node.arun("calm-row", {"key": unique}, call))
        node.wait_for_callers(key, 2)

        first.cancel()
        until(lambda: node.callers_of(key) == 1, "the first caller to be gone")
        call.let_go()

        assert follower.result(20).value == "answer"
        assert (call.count, call.cancelled.is_set()) == (1, False)
        assert Flight.objects.get(digest=key.digest).status == "succeeded"
        node.wait_until_idle()


def test_the_last_caller_leaves_and_a_new_one_joins(unique: str) -> None:
    """C3: it never inherits a cancelled flight."""
    call = AsyncHeld("answer")
    with nodes(1) as (node,), loops(1) as (loop,):
        key = node.key("calm", {"key": unique})
        first = loop.begin(node.arun("calm", {"key": unique}, call))
        call.wait_until_begun()
        first.cancel()
        until(lambda: node.callers_of(key) == 0, "the last caller to be gone")
        joined = loop.begin(node.arun("calm", {"key": unique}, call))
        in_thread = begin(node.run, "calm", {"key": unique}, Counted("not called"))
        node.wait_for_callers(key, 2)
        call.let_go()

        for caller in (joined, in_thread):
            outcome = caller.result(20)
            assert (outcome.value, outcome.role, outcome.layer) == ("answer", Role.FOLLOWER, Layer.PROCESS)
        assert call.count == 1
        node.wait_until_idle()


def test_everybody_leaves_and_the_answer_is_stored(unique: str) -> None:
    """R7: it was paid for."""
    call = AsyncHeld("paid")
    with nodes(1) as (node,), loops(1) as (loop,):
        key = node.key("calm-row", {"key": unique})
        first = loop.begin(node.arun("calm-row", {"key": unique}, call))
        call.wait_until_begun()
        first.cancel()
        until(lambda: node.callers_of(key) == 0, "the last caller to be gone")
        call.let_go()
        node.wait_until_idle()

        assert loop.run(node.arun("calm-row", {"key": unique}, call)).role is Role.REPLAY


def test_a_follower_that_is_cancelled_is_free_at_once(unique: str) -> None:
    """C2: on whatever loop, whether it stands in line or follows another node itself."""
    call = AsyncHeld("answer")
    with nodes(2) as (here, there), loops(2) as (one, two):
        key = here.key("calm", {"key": unique})
        owner = one.begin(here.arun("calm", {"key": unique}, call))
        call.wait_until_begun()
        in_line = two.begin(here.arun("calm", {"key": unique}, call))
        here.wait_for_callers(key, 2)
        elsewhere = two.begin(there.arun("calm", {"key": unique}, call))
        there.wait_for_follower("calm")

        for follower in (in_line, elsewhere):
            follower.cancel()
            with pytest.raises(CancelledError):
                follower.result(20)
        there.wait_until_idle()
        until(lambda: here.callers_of(key) == 1, "the follower to be gone")
        call.let_go()

        assert owner.result(20).value == "answer"
        assert call.count == 1


def test_cancelled_at_any_await_after_its_lease_was_lost(unique: str) -> None:
    """R3: in the refused settle, or while it waits for the newer answer; the newer generation is untouched."""
    with nodes(2) as (one, other), loops(2) as (loop, elsewhere):
        for at in range(1, FURTHEST):
            old, newer, key = AsyncHeld("old"), AsyncHeld("newer"), f"{unique}-{at}"
            callers: list[Future[Any]] = []
            cutting = _Cut(loop, at, lambda c=callers: c[0].cancel(), is_armed=False)  # type: ignore[misc]
            callers.append(loop.begin(one.arun("fast", {"key": key}, old)))
            old.wait_until_begun()
            with one.without_a_beat():
                one.expire(one.key("fast", {"key": key}))
                second = elsewhere.begin(other.arun("fast", {"key": key}, newer))
                newer.wait_until_begun()
                cutting.is_armed = True
            assert old.cancelled.wait(20)
            until(lambda c=cutting: c.is_done or one.runtime.coordinator._following._waiting, "a cut, or a follower")  # type: ignore[misc]
            newer.let_go()

            assert second.result(20).value == "newer"
            until(callers[0].done, "the end of the first caller")
            one.wait_until_idle()
            other.wait_until_idle()
            if not cutting.is_done:
                assert callers[0].result().value == "newer"
                assert at > 2
                return
    pytest.fail("the way never ended")
