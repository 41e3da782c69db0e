"""Async functions under single flight: what their callers get, on one event loop or several, beside threads."""

import asyncio
import contextvars
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import Annotated, Any

import pytest
from django.test import override_settings
from pydantic import PlainSerializer

from singleflight_app import (
    GLOBAL,
    FlightFailed,
    Layer,
    ReentrantFlight,
    Rejected,
    Role,
    StillRunning,
    arun,
    current_flight,
    folded,
    single_flight,
)
from singleflight_app.api import run_pending
from tests.held import Counted, Held, begin
from tests.looped import AsyncCounted, AsyncHeld, a_turn, loops
from tests.nodes import Node, nodes
from tests.settings import SINGLEFLIGHT
from tests.stored import events_of, row_of

pytestmark = pytest.mark.django_db

_caller: contextvars.ContextVar[str] = contextvars.ContextVar("caller", default="nobody")


@pytest.fixture(autouse=True)
def _stages_of_one_test() -> Iterator[None]:
    """Let each test give its functions the stages it likes."""
    known = dict(folded.registry)
    folded.registry.clear()
    yield
    folded.registry.clear()
    folded.registry.update(known)


@pytest.mark.parametrize(
    ("stage", "layer"), [("calm", Layer.MEMORY), ("calm-redis", Layer.REDIS), ("calm-row", Layer.DATABASE)]
)
def test_a_later_caller_gets_the_stored_answer(unique: str, stage: str, layer: Layer) -> None:
    """P2: called once, then replayed from the nearest layer, in one process and another, on a loop and in a thread."""
    call, plain = AsyncCounted({"points": 7}, {"points": 3}), Counted({"points": 3})
    with nodes(1) as (node,), loops(1) as (loop,):
        first = loop.run(node.arun(stage, {"key": unique}, call))
        node.runtime.coordinator.drain(20)

        second = loop.run(node.arun(stage, {"key": unique}, call))
        third = node.run(stage, {"key": unique}, plain)

        assert (first.value, first.role, first.layer) == ({"points": 7}, Role.OWNER, Layer.CALL)
        for later in (second, third):
            assert (later.value, later.role) == ({"points": 7}, Role.REPLAY)
            assert later.generation == first.generation
        assert second.layer is layer
        assert (row_of(first).status, events_of(first)) == ("succeeded", ["granted", "settled"])
        assert (call.count, plain.count) == (1, 0)
        node.wait_until_idle()


def test_every_form_of_a_decorated_function_is_awaited(unique: str) -> None:
    """Call, outcome, options, key and forget, as on a plain function."""
    numbers = iter(range(9))

    @single_flight("calm", scope=GLOBAL)
    async def answer(text: str) -> int:
        """Answer."""
        await a_turn()
        return next(numbers)

    async def ask() -> list[object]:
        return [
            await answer(unique),
            (await answer.outcome(text=unique)).role,
            await answer.options(fresh=True)(unique),
            await answer.options(sample=2)(unique),
            await answer.forget(unique),
            await answer.forget(unique),
            await answer(unique),
        ]

    with loops(1) as (loop,):
        assert loop.run(ask()) == [0, Role.REPLAY, 1, 2, True, False, 3]
    assert answer.key(unique) == answer.key(text=unique)
    assert asyncio.iscoroutinefunction(answer)


def test_methods_and_static_methods_share_by_their_arguments(unique: str) -> None:
    """`self` is no part of the key."""

    class Judge:
        @single_flight("calm", scope=GLOBAL)
        async def score(self, text: str) -> str:
            """Judge."""
            return f"{text} by {type(self).__name__}"

        @staticmethod
        @single_flight("calm-row", scope=GLOBAL)
        async def grade(text: str) -> str:
            """Grade."""
            return f"grade of {text}"

    async def ask() -> list[str]:
        return [await Judge().score(unique), await Judge().score(text=unique), await Judge.grade(unique)]

    with loops(1) as (loop,):
        assert loop.run(ask()) == [f"{unique} by Judge", f"{unique} by Judge", f"grade of {unique}"]


@pytest.mark.parametrize("empty", [None, "", [], 0, False])
def test_an_empty_result_is_a_result(unique: str, empty: object) -> None:
    """R14, C8: stored and replayed like any other; no key stays held."""
    call = AsyncCounted(empty, "called again")
    with nodes(1) as (node,), loops(1) as (loop,):
        for stage in ("calm", "calm-redis", "calm-row"):
            first = loop.run(node.arun(stage, {"key": unique}, call))
            again = loop.run(node.arun(stage, {"key": unique}, call))

            assert (first.value, again.value, again.role) == (empty, empty, Role.REPLAY)
            call = AsyncCounted(empty, "called again")
        node.wait_until_idle()


class Trouble(Exception):
    """What a call comes to."""


def test_its_own_caller_sees_the_exception_and_the_others_its_text(unique: str) -> None:
    """C10: the follower on another loop, the one in a thread and the replay get one FlightFailed."""
    call = AsyncHeld("never", error=Trouble("no luck"))
    with nodes(1) as (node,), loops(2) as (one, two):
        key = node.key("calm-row", {"key": unique})
        owner = one.begin(node.arun("calm-row", {"key": unique}, call))
        call.wait_until_begun()
        followers = [
            one.begin(node.arun("calm-row", {"key": unique}, call)),
            two.begin(node.arun("calm-row", {"key": unique}, call)),
            begin(node.run, "calm-row", {"key": unique}, Counted("not called")),
        ]
        node.wait_for_callers(key, 4)
        call.let_go()

        with pytest.raises(Trouble, match="no luck"):
            owner.result(20)
        followers.append(one.begin(node.arun("calm-row", {"key": unique}, call)))
        for follower in followers:
            with pytest.raises(FlightFailed, match="no luck"):
                follower.result(20)
        assert call.count == 1
        node.wait_until_idle()


def test_a_rejected_result_is_no_answer(unique: str) -> None:
    """`accept` looks at the awaited value."""

    def accept(value: object) -> None:
        if value == "error":
            raise Rejected("an error body", retryable=True)

    call = AsyncCounted("error", "good")
    with loops(1) as (loop,):
        with pytest.raises(Rejected, match="an error body"):
            loop.run(arun("calm", {"key": unique}, call, scope="test", accept=accept))

        assert loop.run(arun("calm", {"key": unique}, call, scope="test", accept=accept)).value == "good"


def test_a_function_that_raises_before_its_first_await_holds_no_key(unique: str) -> None:
    """C8: even one that raises before there is a coroutine."""

    def no_coroutine() -> Awaitable[str]:
        raise Trouble("before")

    with nodes(1) as (node,), loops(1) as (loop,):
        with pytest.raises(Trouble, match="before"):
            loop.run(node.arun("calm-row", {"key": unique}, no_coroutine))

        node.wait_until_idle()


def test_threads_and_tasks_share_one_call(unique: str) -> None:
    """P1: of one process; whoever is first makes it, the others follow without a claim of their own."""
    for held in (Held("plain"), AsyncHeld("async")):
        key = f"{unique}-{held.value}"
        with nodes(1) as (node,), loops(2) as (one, two):
            first = (
                begin(node.run, "calm", {"key": key}, held)
                if isinstance(held, Held)
                else one.begin(node.arun("calm", {"key": key}, held))
            )
            held.wait_until_begun()
            thread, other = Counted("not called"), AsyncCounted("not called")
            followers = [
                begin(node.run, "calm", {"key": key}, thread),
                one.begin(node.arun("calm", {"key": key}, other)),
                two.begin(node.arun("calm", {"key": key}, other)),
            ]
            node.wait_for_callers(node.key("calm", {"key": key}), 4)
            held.let_go()

            found = [caller.result(20) for caller in (first, *followers)]

            assert Counter((each.value, each.role, each.layer) for each in found) == {
                (held.value, Role.OWNER, Layer.CALL): 1,
                (held.value, Role.FOLLOWER, Layer.PROCESS): 3,
            }
            assert (thread.count, other.count) == (0, 0)
            node.wait_until_idle()


def test_a_task_follows_the_owner_of_another_node(unique: str) -> None:
    """P1, P2: woken by hint or poll, it reads the owner's answer from the row, and holds its loop up with nothing."""
    call, other = AsyncHeld("answer"), AsyncCounted("not called")
    with nodes(2) as (here, there), loops(2) as (one, two):
        owner = one.begin(here.arun("calm", {"key": unique}, call))
        call.wait_until_begun()
        follower = two.begin(there.arun("calm", {"key": unique}, other))
        there.wait_for_follower("calm")
        assert two.run(a_turn("the loop is free")) == "the loop is free"
        call.let_go()

        followed = follower.result(20)

        assert (followed.value, followed.role, followed.layer) == ("answer", Role.FOLLOWER, Layer.DATABASE)
        assert owner.result(20).generation == followed.generation
        assert other.count == 0
        for node in (here, there):
            node.wait_until_idle()


def test_the_call_sees_its_callers_context(unique: str) -> None:
    """As if it had been awaited there; `current_flight()` is known in it and in its child tasks."""

    async def look() -> str:
        generation = current_flight().generation

        async def child() -> bool:
            return current_flight().generation == generation

        assert await asyncio.create_task(child())
        return f"{_caller.get()} {generation}"

    async def ask() -> tuple[str, str]:
        _caller.set("mira")
        outcome = await arun("calm", {"key": unique}, look, scope="test")
        with pytest.raises(LookupError):
            current_flight()
        return outcome.value, f"mira {outcome.generation}"

    with loops(1) as (loop,):
        seen, expected = loop.run(ask())

    assert seen == expected


def test_a_call_that_asks_for_itself_is_refused_at_once(unique: str) -> None:
    """C9: directly and from a child task; a task that it left behind may ask, once the call is over."""
    left_behind: list[asyncio.Task[Any]] = []
    may_ask = asyncio.Event()

    async def refused(ask: Callable[[], Awaitable[object]]) -> str:
        try:
            await ask()
        except ReentrantFlight as exc:
            return exc.stage
        return "not refused"

    async def ask_itself() -> list[str]:
        async def again() -> object:
            return (await arun("calm", {"key": unique}, ask_itself, scope="test")).role

        async def later() -> object:
            await may_ask.wait()
            return await again()

        left_behind.append(asyncio.create_task(later()))
        return [await refused(again), await asyncio.create_task(refused(again))]

    async def ask() -> tuple[object, object]:
        outcome = await arun("calm", {"key": unique}, ask_itself, scope="test")
        may_ask.set()
        return outcome.value, await left_behind[0]

    with loops(1) as (loop,):
        assert loop.run(ask()) == (["calm", "calm"], Role.REPLAY)


def test_a_caller_whose_wait_ends_gets_a_handle_to_await(unique: str) -> None:
    """C6: on its loop; the flight goes on, and the handle brings the answer."""
    call = AsyncHeld("late")
    with nodes(1) as (node,), loops(2) as (one, two):
        owner = one.begin(node.arun("calm", {"key": unique}, call))
        call.wait_until_begun()
        with pytest.raises(StillRunning, match="still running after") as left:
            two.run(node.arun("calm", {"key": unique}, call, wait_timeout=0.05))
        handle: Any = left.value.handle
        with pytest.raises(StillRunning):
            two.run(handle.wait(0))
        waiting = two.begin(handle.wait())
        call.let_go()

        assert (waiting.result(20).value, owner.result(20).value) == ("late", "late")
        assert handle.flight_id == owner.result(20).flight_id
        node.wait_until_idle()


def test_a_worker_runs_an_async_background_flight_in_its_thread(unique: str) -> None:
    """The row is the queue; `submit` is awaited, the handle as well, and a worker needs no loop of its own."""

    @single_flight("background-answer", scope=GLOBAL)
    async def answer(text: str) -> str:
        """Answer."""
        await a_turn()
        return f"{text} {current_flight().generation is not None}"

    with loops(1) as (loop,):
        handle = loop.run(answer.submit(unique))
        worked = begin(run_pending, handle.flight_id).result(20)

        assert worked is not None
        assert worked.value == f"{unique} True"
        assert loop.run(handle.wait()).value == worked.value
        assert loop.run(answer.outcome(unique)).role is Role.REPLAY


def _pool_of(node: Node) -> tuple[int, int]:
    """Return how many connections the node has opened so far, and how often one was borrowed."""
    assert node.runtime.database is not None
    assert node.runtime.database._pool is not None
    stats = node.runtime.database._pool.get_stats()
    return stats["connections_num"], stats["requests_num"]


def test_ten_thousand_tasks_and_a_hundred_threads_cost_one_call_and_no_connection(unique: str) -> None:
    """P1, P7, C5: all get equal values, none the same object."""
    call = AsyncHeld({"points": [7]})
    stages = {"crowd": {"lease_timeout": 60, "heartbeat_interval": 15, "wait_timeout": 60, "max_waiters": 10_100}}
    with override_settings(SINGLEFLIGHT={**SINGLEFLIGHT, "STAGES": stages}), nodes(1) as (node,), loops(1) as (loop,):
        key = node.key("crowd", {"key": unique})

        async def crowd() -> list[Any]:
            asking = [node.arun("crowd", {"key": unique}, call) for _ in range(10_001)]
            return [outcome.value for outcome in await asyncio.gather(*asking)]

        answers = loop.begin(crowd())
        call.wait_until_begun()
        before = _pool_of(node)
        threads = [begin(node.run, "crowd", {"key": unique}, Counted("not called")) for _ in range(100)]
        node.wait_for_callers(key, 10_101)
        after = _pool_of(node)
        call.let_go()
        values = answers.result(60) + [thread.result(60).value for thread in threads]

        assert all(value == {"points": [7]} for value in values)
        assert len({id(value["points"]) for value in values}) == 10_101
        assert call.count == 1
        assert before == after
        node.wait_until_idle()


def test_a_result_is_packed_beside_the_loop(unique: str) -> None:
    """R10: what takes a good part of a second for some megabytes holds no other request up; its context is the same."""
    threads: list[int] = []

    def written(value: str) -> str:
        threads.append(threading.get_ident())
        return f"{value} of {_caller.get()}"

    async def call() -> str:
        threads.append(threading.get_ident())
        return "x"

    async def ask() -> str:
        _caller.set("mira")
        noted = Annotated[str, PlainSerializer(written)]
        return (await node.arun("calm", {"key": unique}, call, result_type=noted)).value

    with nodes(1) as (node,), loops(1) as (loop,):
        assert loop.run(ask()) == "x of mira"

    ran_on, *packed_on = threads
    assert packed_on
    assert ran_on not in packed_on
