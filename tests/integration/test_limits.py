"""Limits: how many calls of a stage run in a process and in the cluster, and what the others get meanwhile (P4)."""

import asyncio
import threading
from collections import Counter
from typing import Any

import pytest
from django.db import connection
from pytest_django.fixtures import Settings as DjangoSettings

from singleflight_app import FlightHandle, Overloaded, Role, current_flight, single_flight
from singleflight_app.api import run_pending
from singleflight_app.models import Flight
from singleflight_app.storage.queries import query
from singleflight_app.wiring import runtime
from tests.held import Counted, Held, at_once, begin, results
from tests.looped import a_turn
from tests.nodes import Node, nodes
from tests.past import end_leases
from tests.proxy import Proxy, proxy
from tests.stored import row_of
from tests.waiting import until

pytestmark = pytest.mark.django_db

EVERYWHERE = ["one-here", "one-anywhere"]
OR_NONE = ["one-here-or-none", "one-anywhere-or-none"]


class Full:
    """A stage without room: a held call of another key has the only place."""

    def __init__(self, node: Node, stage: str, key: str) -> None:
        self.call = Held("first")
        self._owner = begin(node.run, stage, {"other": key}, self.call)
        self.call.wait_until_begun()

    def end(self) -> None:
        """Let the place come free."""
        self.call.let_go()
        assert self._owner.result(20).value == "first"


def statements_of(node: Node) -> Counter[str]:
    """Count the statements that a node sends from now on, by name."""
    database, counted = node.runtime.database, Counter[str]()
    assert database is not None
    send, names = database.run, {query(name): name for name in ("claim_flight", "claim_flight_in_room", "find_flight")}

    def run(statement: bytes, *args: Any, **given: Any) -> Any:  # noqa: ANN401
        counted[names.get(statement, "other")] += 1
        return send(statement, *args, **given)

    database.run = run  # type: ignore[method-assign]
    return counted


def sent(there: Proxy, node: Node, stage: str, key: str) -> tuple[int, int]:
    """Return how many statements a call of one's own sends, and in how many round trips."""
    for number in range(3):  # the first ones prepare the statements
        node.run(stage, {"warm": f"{key}-{number}"}, Counted("warm"))
    before = there.statements, there.round_trips
    node.run(stage, {"key": key}, Counted("answer"))
    return there.statements - before[0], there.round_trips - before[1]


def waiting_for_a_lock(cursor: Any) -> int:  # noqa: ANN401
    """Return how many statements of this database wait for a table that somebody has locked."""
    cursor.execute(
        "select count(*) from pg_locks where not granted and relation = 'singleflight_flight'::regclass "
        "and database = (select oid from pg_database where datname = current_database())"
    )
    return int(cursor.fetchone()[0])


@pytest.mark.parametrize("stage", EVERYWHERE)
def test_a_call_waits_until_there_is_room(unique: str, stage: str) -> None:
    """With `on_saturated` left at "wait": it begins when another has ended, and its caller gets its answer."""
    second = Held("second")
    with nodes(1) as (node,):
        full = Full(node, stage, unique)
        waiting = begin(node.run, stage, {"key": unique}, second)
        node.wait_for_follower(stage)
        assert second.count == 0

        full.end()
        second.wait_until_begun()
        second.let_go()

        assert (waiting.result(20).value, waiting.result().role) == ("second", Role.OWNER)


def test_the_cluster_counts_the_calls_of_all_nodes(unique: str) -> None:
    """A limit on one node is no limit on another; that of the cluster is."""
    with nodes(2) as (one, other):
        full = Full(one, "one-anywhere", unique)
        waiting = begin(other.run, "one-anywhere", {"key": unique}, Counted("second"))
        other.wait_for_follower("one-anywhere")
        full.end()
        assert waiting.result(20).value == "second"

        full = Full(one, "one-here", unique + "here")
        assert other.run("one-here", {"key": unique}, Counted("at once")).value == "at once"
        full.end()


@pytest.mark.parametrize("stage", OR_NONE)
def test_without_room_a_caller_is_refused_at_once_where_the_policy_says_so(unique: str, stage: str) -> None:
    """`on_saturated` "reject": Overloaded says by which limit, and when to ask again."""
    limit = {"one-here-or-none": "max_local_calls", "one-anywhere-or-none": "max_concurrency"}[stage]
    with nodes(1) as (node,):
        full = Full(node, stage, unique)
        with pytest.raises(Overloaded, match=rf"1 calls of stage {stage} .*\({limit}\); ask again in 15 s") as refused:
            node.run(stage, {"key": unique}, Counted("not called"))
        full.end()

        assert refused.value.retry_after == 15
        assert node.run(stage, {"key": unique}, Counted("called")).value == "called"


@pytest.mark.parametrize("stage", EVERYWHERE)
@pytest.mark.parametrize("budget", [0, 0.2])
def test_a_wait_for_room_ends_with_the_budget(unique: str, stage: str, budget: float) -> None:
    """Overloaded, since there is no flight to come back to."""
    with nodes(1) as (node,):
        full = Full(node, stage, unique)
        with pytest.raises(Overloaded, match="the most that may"):
            node.run(stage, {"key": unique}, Counted("not called"), wait_timeout=budget)
        full.end()


@pytest.mark.parametrize("stage", OR_NONE)
def test_replays_and_followers_need_no_room(unique: str, stage: str) -> None:
    """They make no call: a full stage answers what it knows, and lets callers join what runs."""
    with nodes(2) as (one, other):
        one.run(stage, {"key": unique}, Counted("stored"))
        full = Full(one, stage, unique)

        replayed = [node.run(stage, {"key": unique}, Counted("not called")) for node in (one, other)]
        follower = begin(other.run, stage, {"other": unique}, Counted("not called"))
        other.wait_for_follower(stage)
        full.end()

        assert [(outcome.value, outcome.role) for outcome in replayed] == [("stored", Role.REPLAY)] * 2
        assert (follower.result(20).value, follower.result().role) == ("first", Role.FOLLOWER)


def test_a_caller_who_only_looks_takes_no_room_from_another(unique: str) -> None:
    """While one caller's claim is on its way, which will be a replay, another's call is not refused."""
    stage = "one-here-or-none"
    with nodes(1) as (node,), connection.cursor() as cursor:
        node.run(stage, {"key": unique}, Counted("stored"))
        cursor.execute("lock table singleflight_flight in access exclusive mode")
        replaying = begin(node.run, stage, {"key": unique}, Counted("not called"))
        until(lambda: waiting_for_a_lock(cursor) == 1, "a claim that waits for the table")
        calling = begin(node.run, stage, {"other": unique}, Counted("called"))
        until(lambda: waiting_for_a_lock(cursor) == 2 or calling.done(), "a second caller")
        cursor.execute("rollback; begin")

        assert replaying.result(20).value == "stored"
        assert calling.result(20).value == "called"


def test_a_takeover_needs_room(unique: str) -> None:
    """A dead owner counts no more, but whoever calls in its place does."""
    stage = "one-fast-anywhere"
    dead = Held("late")
    with nodes(2) as (one, other):
        owner = begin(one.run, stage, {"key": unique}, dead)
        dead.wait_until_begun()
        end_leases(one)
        full = Full(other, stage, unique)
        newer = Counted("newer")
        taking = begin(other.run, stage, {"key": unique}, newer)
        other.wait_for_follower(stage)
        assert newer.count == 0

        full.end()

        assert (taking.result(20).value, row_of(taking.result()).takeovers) == ("newer", 1)
        dead.let_go()
        assert owner.result(20).value == "newer"


def test_a_hung_call_holds_its_place_until_it_returns(unique: str) -> None:
    """Design 4: it is settled as timed out, but its thread is a load on this process all the same."""
    hung, second = Held("late"), Held("second")
    with nodes(1) as (node,):
        owner = begin(node.run, "one-hung-here", {"other": unique}, hung)
        hung.wait_until_begun()
        digest = node.key("one-hung-here", {"other": unique}).digest
        until(lambda: Flight.objects.filter(digest=digest, status="timed_out"), "the hung call's end")
        waiting = begin(node.run, "one-hung-here", {"key": unique}, second)
        node.wait_for_follower("one-hung-here")
        assert second.count == 0

        hung.let_go()
        second.wait_until_begun()
        second.let_go()

        assert owner.result(20).superseded
        assert waiting.result(20).value == "second"


def test_tasks_and_threads_share_the_places_of_a_process(unique: str) -> None:
    """A call on an event loop holds its place like one in a thread, and waits for one without holding the loop up."""

    async def tasks(node: Node) -> list[object]:
        running, most = Counter[str](), [0]

        async def call() -> str:
            running["now"] += 1
            most[0] = max(most[0], running["now"])
            await a_turn()
            running["now"] -= 1
            return "task"

        asked = [node.arun("one-here", {"task": f"{unique}-{number}"}, call) for number in range(5)]
        found = [outcome.value for outcome in await asyncio.gather(*asked)]
        return [*found, most[0]]

    with nodes(1) as (node,):
        full = Full(node, "one-here", unique)
        on_a_loop = begin(asyncio.run, tasks(node))
        node.wait_for_follower("one-here", 5)
        full.end()

        assert on_a_loop.result(20) == ["task"] * 5 + [1]


def test_a_cancelled_task_that_waits_for_room_leaves_the_line(unique: str) -> None:
    """P5: the next in line gets the place."""

    async def not_called() -> None:
        pytest.fail("its caller has left")

    async def cancelled(node: Node) -> None:
        task = asyncio.create_task(node.arun("one-here", {"key": unique}, not_called))
        waiting = node.runtime.coordinator._following._waiting
        await asyncio.to_thread(until, lambda: waiting["one-here"], "a task that waits for room")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with nodes(1) as (node,):
        full = Full(node, "one-here", unique)
        begin(asyncio.run, cancelled(node)).result(20)
        second = begin(node.run, "one-here", {"key": unique}, Counted("called"))
        node.wait_for_follower("one-here")
        full.end()

        assert second.result(20).value == "called"


@pytest.mark.parametrize("asked", ["here", "elsewhere"])
@pytest.mark.parametrize("stage", EVERYWHERE)
def test_who_waits_is_woken_when_a_place_comes_free(
    unique: str, stage: str, asked: str, settings: DjangoSettings
) -> None:
    """Not by the poll, which comes once an hour here: in this process at once, on another node by the hint."""
    if (asked, stage) == ("elsewhere", "one-here"):
        return  # that place is of no use on another node
    once_an_hour = {"POLL_INTERVAL": 3600, "DEFAULTS": {"result_ttl": 7200}}
    settings.SINGLEFLIGHT = {**settings.SINGLEFLIGHT, **once_an_hour}
    with nodes(2) as (one, other):
        node = one if asked == "here" else other
        full = Full(one, stage, unique)
        waiting = begin(node.run, stage, {"key": unique}, Counted("second"))
        node.wait_for_follower(stage)
        positions = node.runtime.notifier._positions  # type: ignore[attr-defined]
        until(lambda: any(name.endswith(f":{stage}") for name in positions), "a listener to the stage")

        full.end()

        assert waiting.result(20).value == "second"


def test_a_place_that_comes_free_just_before_the_wait_is_not_missed(
    unique: str, settings: DjangoSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between a claim that found no room and its caller's place in line, too, a freed place wakes it."""
    settings.SINGLEFLIGHT = {**settings.SINGLEFLIGHT, "POLL_INTERVAL": 3600, "DEFAULTS": {"result_ttl": 7200}}
    with nodes(1) as (node,):
        room = node.runtime.coordinator._leading._room
        wait_for_room = room.wait
        full = Full(node, "one-anywhere", unique)

        async def late(*args: object) -> None:
            full.end()
            await wait_for_room(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(room, "wait", late)

        assert node.run("one-anywhere", {"key": unique}, Counted("second"), wait_timeout=10).value == "second"


def test_who_has_got_a_place_stands_in_nobody_s_way(unique: str, settings: DjangoSettings) -> None:
    """A caller whose call runs is not woken in the stead of one who waits, not even by its own end."""
    stage = "two-anywhere"
    settings.SINGLEFLIGHT = {**settings.SINGLEFLIGHT, "POLL_INTERVAL": 3600, "DEFAULTS": {"result_ttl": 7200}}
    with nodes(1) as (node,):
        calls: list[Held[int]] = []
        callers = []

        def ask() -> None:
            calls.append(Held(len(calls)))
            key = {"key": f"{unique}-{len(calls)}"}
            callers.append(begin(node.run, stage, key, calls[-1]))

        def begun() -> set[int]:
            return {call.value for call in calls if call.begun.is_set()}

        def end(number: int) -> None:
            """End a running call, and wait for the one that takes its place."""
            calls[number].let_go()
            before = len(begun())
            until(lambda: len(begun()) > before, "a call in the free place")

        for running in (1, 2):
            ask()
            until(lambda running=running: len(begun()) == running, "a call that needs not wait")  # type: ignore[misc]
        for waiting in (1, 2, 3):
            ask()
            node.wait_for_follower(stage, waiting)
        for number in (0, 1):
            end(number)
        ask()
        node.wait_for_follower(stage, 2)
        for number in begun() - {0, 1}:
            end(number)
        for call in calls:
            call.let_go()

        assert [outcome.value for outcome in results(callers)] == list(range(6))


def test_those_who_wait_do_not_wake_each_other(unique: str, settings: DjangoSettings) -> None:
    """Who looks in vain gives back the place that it had reserved here: that is no reason for others to look."""
    stage = "two-here-one-anywhere"
    settings.SINGLEFLIGHT = {**settings.SINGLEFLIGHT, "POLL_INTERVAL": 3600, "DEFAULTS": {"result_ttl": 7200}}
    with nodes(1) as (node,):
        full = Full(node, stage, unique)
        waiting = [begin(node.run, stage, {"key": f"{unique}-{number}"}, Counted("late")) for number in range(3)]
        line = node.runtime.coordinator._limits._waiting
        # Each has claimed and named the limit; it may be about to ask the once more that a place just freed wants.
        until(lambda: [*line.get(stage, {}).values()] == ["max_concurrency"] * 3, "all three to be in line")
        statements = statements_of(node)

        for number in range(20):  # what a ping-pong would take its time from
            node.run("calm", {"key": f"{unique}-{number}"}, Counted("meanwhile"))
        claims = statements["claim_flight_in_room"]
        full.end()

        assert [outcome.value for outcome in results(waiting)] == ["late"] * 3
        assert claims <= 3


def test_a_worker_waits_for_room(unique: str) -> None:
    """A background flight counts like any other call; its row says pending until then."""
    with nodes(1) as (node,):
        full = Full(node, "one-anywhere", unique)
        handle: FlightHandle[str] = in_background.submit(unique)
        assert handle.flight_id is not None
        worker = begin(run_pending, handle.flight_id)
        waiting = runtime().coordinator._following._waiting
        until(lambda: waiting["one-anywhere"], "a worker that waits for room")
        assert row_of(handle).status == "pending"

        full.end()
        outcome = worker.result(20)

    assert outcome is not None
    assert (outcome.value, row_of(handle).status) == (f"{unique} in the background", "succeeded")


@single_flight("one-anywhere", scope="test")
def in_background(name: str) -> str:
    """Answer at once."""
    return f"{name} in the background"


def test_no_more_than_the_limit_run_in_the_cluster_whoever_races(unique: str) -> None:
    """P1's kind: two nodes, eight threads each, keys of their own; three at a time, and all are served in the end."""
    running, most, lock = [0], [0], threading.Lock()

    def call() -> str:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        threading.Event().wait(0.01)  # a call takes time; nothing is concluded from how much
        with lock:
            running[0] -= 1
        return str(current_flight().generation)

    def ask(node: Node, number: int, barrier: threading.Barrier) -> str:
        barrier.wait(20)
        return node.run("three-anywhere", {"key": f"{unique}-{number}"}, call).value

    with nodes(2) as two:
        for round_ in range(3):
            barrier = threading.Barrier(16)
            numbers = range(16 * round_, 16 * round_ + 16)
            racers = [begin(ask, two[number % 2], number, barrier) for number in numbers]

            assert len(set(results(racers))) == 16

    assert most[0] == 3


def test_racers_for_one_key_and_one_place_get_one_call(unique: str) -> None:
    """None is told that there is no room: who doesn't call follows who does."""
    stage = "one-anywhere-or-none"
    with nodes(2) as two:
        for round_ in range(10):
            call = Counted(*range(99))
            key = {"key": f"{unique}-{round_}"}
            callers = [caller for node in two for caller in at_once(4, node.run, stage, key, call)]

            assert {outcome.value for outcome in results(callers)} == {0}


def test_racers_for_a_takeover_and_one_place_follow_who_gets_it(unique: str) -> None:
    """The loser's grant finds the row moved and the place taken: that is no lack of room for a follower."""
    stage = "one-fast-anywhere-or-none"
    dead = Held("late")
    with nodes(3) as (gone, *two):
        owners = []
        for round_ in range(10):
            key = {"key": f"{unique}-{round_}"}
            owners.append(begin(gone.run, stage, key, dead))
            gone.wait_for_callers(gone.key(stage, key), 1)
            until(gone.runtime.coordinator.running, "an owner")
            end_leases(gone)
            newer = Held("newer")
            callers = [caller for node in two for caller in at_once(2, node.run, stage, key, newer)]
            newer.wait_until_begun()
            newer.let_go()

            assert {outcome.value for outcome in results(callers)} == {"newer"}
        dead.let_go()
        assert {outcome.value for outcome in results(owners)} == {"newer"}


def test_a_stage_without_limit_sends_nothing_more_than_before(unique: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim and a settle; with `max_concurrency` the lock goes along in the claim's own round trip."""
    with proxy() as there:
        monkeypatch.setitem(connection.settings_dict, "HOST", there.folder)
        with nodes(1) as (node,):
            counts = {stage: sent(there, node, stage, unique) for stage in ("calm-redis", "one-here", "one-anywhere")}

    assert counts["calm-redis"] == counts["one-here"] == (2, 2)
    assert counts["one-anywhere"] == (3, 2)  # the lock goes before the claim, in the same trip
