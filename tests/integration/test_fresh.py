"""`fresh`: only a call that begins after the caller asked answers it, and what it comes to replaces the old outcome."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pytest_django.fixtures import Settings as DjangoSettings

from singleflight_app import ExecutionTimedOut, FlightFailed, Overloaded, Role, StillRunning, single_flight
from singleflight_app.api import run_pending
from singleflight_app.domain.exceptions import CoordinationUnavailable
from singleflight_app.outcomes.cache import RedisReplayCache
from singleflight_app.wiring import runtime
from tests.held import Counted, Held, begin, results
from tests.nodes import Node, nodes
from tests.stored import events_of, row_of
from tests.waiting import until

pytestmark = pytest.mark.django_db

LAYERS = ["calm", "calm-memory", "calm-redis", "calm-row"]


@single_flight("fresh-background", scope="test")
def remembered(name: str) -> str:
    """Answer with the next of its values."""
    return answers()


answers: Counted[str] = Counted("old", "new", "newer", "newest")


@pytest.fixture(autouse=True)
def _fresh_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "answers", Counted("old", "new", "newer", "newest"))


def failing() -> str:
    raise ValueError("no luck")


def wait_for_fresh(node: Node, key: str, count: int) -> None:
    """Return once so many fresh callers of this node stand in one line."""

    def asked() -> bool:
        line = node.line_of(node.key("calm", {"key": key}), is_fresh=True)
        return line is not None and line.asked >= count

    until(asked, f"{count} fresh callers")


def take_into_account(node: Node, key: str, count: int) -> None:
    """Let a fresh leader look at the row, and see that it is still what all in its line have to outdo."""
    line = node.line_of(node.key("calm", {"key": key}), is_fresh=True)
    assert line is not None
    node.runtime.coordinator._following.wake(node.key("calm", {"key": key}).digest)
    until(lambda: line._mark >= count, f"{count} whom the next generation answers")


class Cut:
    """A node of its own, whose way to Redis is cut until it is mended; the others keep theirs."""

    def __init__(self, folder: Path, settings: DjangoSettings) -> None:
        caches = settings.CACHES
        location = str(caches["default"]["LOCATION"])
        self._socket, self._link = Path(location.removeprefix("unix://").partition("?")[0]), folder / "redis.sock"
        there = location.replace(str(self._socket), str(self._link))
        settings.CACHES = {"default": {**caches["default"], "LOCATION": there}}
        self.node = Node()
        cache = self.node.runtime.coordinator.replaying._cache
        assert isinstance(cache, RedisReplayCache)
        assert cache._client.connection_pool  # dialled by the settings of this moment
        settings.CACHES = caches

    def mend(self) -> None:
        """Let the node reach Redis."""
        self._link.symlink_to(self._socket)


@pytest.fixture
def cut(tmp_path: Path, settings: DjangoSettings) -> Iterator[Cut]:
    """A node without Redis."""
    made = Cut(tmp_path, settings)
    yield made
    made.node.runtime.close()


@pytest.mark.parametrize("stage", LAYERS)
def test_an_outcome_in_its_ttl_is_replaced(unique: str, stage: str) -> None:
    """C37: whichever layer holds it; whoever asks afterwards gets the new one, and nobody the old one again."""
    call = Counted("old", "new", "newest")
    with nodes(1) as (node,):
        old = node.run(stage, {"key": unique}, call)

        new = node.run(stage, {"key": unique}, call, is_fresh=True)
        later = node.run(stage, {"key": unique}, call)

    assert (new.value, new.role, new.flight_id) == ("new", Role.OWNER, old.flight_id)
    assert (later.value, later.role, later.generation) == ("new", Role.REPLAY, new.generation)
    assert (new.generation or 0) > (old.generation or 0)
    assert events_of(new) == ["granted", "settled", "granted", "settled"]


@pytest.mark.parametrize("stage", ["calm-redis", "calm-row"])
def test_other_nodes_get_the_new_outcome(unique: str, stage: str) -> None:
    """R15: the floor in Redis was raised before the new call began, so its old entry answers nobody."""
    call = Counted("old", "new")
    with nodes(2) as (one, other):
        other.run(stage, {"key": unique}, call)
        one.run(stage, {"key": unique}, call, is_fresh=True)

        assert other.run(stage, {"key": unique}, call).value == "new"


def test_other_nodes_stop_remembering_when_the_new_call_begins(unique: str) -> None:
    """R15: the floor goes to every process before the outcome that it makes room for is there."""
    new = Held("new")
    with nodes(2) as (one, other):
        key = one.key("calm-memory", {"key": unique})
        one.run("calm-memory", {"key": unique}, Counted("old"))
        other.run("calm-memory", {"key": unique}, Counted("not called"))
        assert other.remembers(key)

        fresh = begin(one.run, "calm-memory", {"key": unique}, new, is_fresh=True)
        new.wait_until_begun()

        until(lambda: not other.remembers(key), "the floor in the other node's memory")
        joined = begin(other.run, "calm-memory", {"key": unique}, Counted("not called"))
        other.wait_for_callers(key, 1)
        new.let_go()
        assert [outcome.value for outcome in results([fresh, joined])] == ["new", "new"]


def test_a_first_fresh_call_is_a_call_like_any_other(unique: str) -> None:
    """Nothing was there when it asked, so its own call answers."""
    with nodes(1) as (node,):
        outcome = node.run("calm", {"key": unique}, Counted("only"), is_fresh=True)

    assert (outcome.value, outcome.role) == ("only", Role.OWNER)
    assert events_of(outcome) == ["granted", "settled"]


@pytest.mark.parametrize("is_same_node", [True, False])
def test_a_running_flight_is_waited_out_not_joined(unique: str, *, is_same_node: bool) -> None:
    """Design 3: the flight that ran when the caller asked is no answer; its own callers get it all the same."""
    old, new = Held("old"), Held("new")
    with nodes(2) as (one, other):
        asking = one if is_same_node else other
        owner = begin(one.run, "calm-redis", {"key": unique}, old)
        old.wait_until_begun()
        fresh = begin(asking.run, "calm-redis", {"key": unique}, new, is_fresh=True)
        asking.wait_for_follower("calm-redis")
        assert new.count == 0

        old.let_go()
        new.wait_until_begun()
        new.let_go()

        assert [outcome.value for outcome in results([owner, fresh])] == ["old", "new"]
        assert [node.run("calm-redis", {"key": unique}, new).value for node in (one, other)] == ["new", "new"]
    assert (old.count, new.count) == (1, 1)


def test_fresh_callers_who_wait_together_share_one_call(unique: str) -> None:
    """Three of one process and two of another wait one flight out: one of the five calls, and answers them all."""
    old, new = Held("old"), Held("new")
    with nodes(2) as (one, other):
        owner = begin(one.run, "calm", {"key": unique}, old)
        old.wait_until_begun()
        fresh = [begin(node.run, "calm", {"key": unique}, new, is_fresh=True) for node in (one, one, one, other, other)]
        for node, count in ((one, 3), (other, 2)):
            node.wait_for_follower("calm")
            wait_for_fresh(node, unique, count)
            take_into_account(node, unique, count)

        old.let_go()
        new.wait_until_begun()
        new.let_go()

        outcomes = results(fresh)

        assert owner.result(20).value == "old"
        assert {outcome.value for outcome in outcomes} == {"new"}
        assert len({outcome.generation for outcome in outcomes}) == 1
        assert new.count == 1


@pytest.mark.parametrize("is_same_node", [True, False])
def test_who_asks_while_the_new_call_runs_gets_a_newer_one(unique: str, *, is_same_node: bool) -> None:
    """The running call began before this caller asked: it may have read what the caller has just changed."""
    running, newer = Held("began before"), Held("newer")
    with nodes(2) as (one, other):
        asking = one if is_same_node else other
        first = begin(one.run, "calm", {"key": unique}, running, is_fresh=True)
        running.wait_until_begun()
        second = begin(asking.run, "calm", {"key": unique}, newer, is_fresh=True)
        wait_for_fresh(asking, unique, 2 if is_same_node else 1)
        if not is_same_node:
            asking.wait_for_follower("calm")

        running.let_go()
        newer.wait_until_begun()
        newer.let_go()

        assert [outcome.value for outcome in results([first, second])] == ["began before", "newer"]
        assert (first.result().generation or 0) < (second.result().generation or 0)


@pytest.mark.parametrize("is_same_node", [True, False])
def test_others_replay_until_the_new_call_begins_and_join_it_then(unique: str, *, is_same_node: bool) -> None:
    """Nobody waits for somebody's wish for a fresh answer before its call runs; from then on the old one is gone."""
    new = Held("new")
    with nodes(2) as (one, other):
        asking = one if is_same_node else other
        old = other.run("calm-redis", {"key": unique}, Counted("old"))
        before = asking.run("calm-redis", {"key": unique}, new)
        fresh = begin(one.run, "calm-redis", {"key": unique}, new, is_fresh=True)
        new.wait_until_begun()

        meanwhile = begin(asking.run, "calm-redis", {"key": unique}, new)
        asking.wait_for_follower("calm-redis")
        new.let_go()

        assert (before.value, before.generation) == ("old", old.generation)
        assert (meanwhile.result(20).value, meanwhile.result().role) == ("new", Role.FOLLOWER)
        assert fresh.result(20).value == "new"
        assert new.count == 1


def test_a_fresh_call_that_fails_is_what_others_get(unique: str) -> None:
    """It replaced the old outcome when it began; a failure is an end like any other."""
    with nodes(2) as (one, other):
        one.run("calm-row", {"key": unique}, Counted("old"))
        with pytest.raises(ValueError, match="no luck"):
            one.run("calm-row", {"key": unique}, failing, is_fresh=True)

        with pytest.raises(FlightFailed, match="no luck"):
            other.run("calm-row", {"key": unique}, Counted("not called"))


def test_a_wait_that_ends_before_the_new_call_began_leaves_everything(unique: str) -> None:
    """P5: the flight goes on, and its outcome stands."""
    old = Held("old")
    with nodes(2) as (one, other):
        owner = begin(one.run, "calm", {"key": unique}, old)
        old.wait_until_begun()
        with pytest.raises(StillRunning):
            other.run("calm", {"key": unique}, Counted("not called"), is_fresh=True, wait_timeout=0)
        old.let_go()

        assert owner.result(20).value == "old"
        assert other.run("calm", {"key": unique}, Counted("not called")).value == "old"


def test_the_next_in_line_leads_when_a_fresh_leader_leaves(unique: str) -> None:
    """P5: one caller's short patience is not the others'."""
    old, new = Held("old"), Counted("new")
    with nodes(1) as (node,):
        owner = begin(node.run, "calm", {"key": unique}, old)
        old.wait_until_begun()
        leaver = begin(node.run, "calm", {"key": unique}, new, is_fresh=True, wait_timeout=1)
        node.wait_for_follower("calm")
        heir = begin(node.run, "calm", {"key": unique}, new, is_fresh=True)

        assert isinstance(leaver.exception(20), StillRunning)
        old.let_go()

        assert heir.result(20).value == "new"
        assert owner.result(20).value == "old"


def test_a_call_that_ends_while_a_fresh_caller_decides_is_no_answer(
    unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process has let go of the lease that the fresh caller has just read: no orphan, and nothing to share."""
    old, new = Held("old"), Counted("new")
    with nodes(1) as (node,):
        owner = begin(node.run, "calm", {"key": unique}, old)
        old.wait_until_begun()
        claim = node.runtime.store.claim

        def claim_then_wait(*args: Any, **kwargs: Any) -> object:  # noqa: ANN401  (the store's own arguments)
            answer = claim(*args, **kwargs)
            old.let_go()
            owner.result(20)
            return answer

        monkeypatch.setattr(node.runtime.store, "claim", claim_then_wait)

        assert node.run("calm", {"key": unique}, new, is_fresh=True).value == "new"


def test_a_hung_call_is_no_answer_to_fresh_callers_who_came_while_it_ran(unique: str) -> None:
    """Its timeout is the end of a call that began before they asked."""
    hung, new = Held("late"), Counted("new")
    with nodes(1) as (node,):
        first = begin(node.run, "hung", {"key": unique}, hung, is_fresh=True)
        hung.wait_until_begun()
        second = begin(node.run, "hung", {"key": unique}, new, is_fresh=True)

        assert second.result(20).value == "new"
        hung.let_go()
        assert first.result(20).superseded


def test_callers_who_joined_a_hung_fresh_call_see_its_timeout(unique: str) -> None:
    """A plain caller of another node asked for what there is: the end of that flight."""
    hung = Held("late")
    with nodes(2) as (one, other):
        owner = begin(one.run, "hung", {"key": unique}, hung, is_fresh=True)
        hung.wait_until_begun()
        follower = begin(other.run, "hung", {"key": unique}, hung)

        assert isinstance(follower.exception(20), ExecutionTimedOut)
        hung.let_go()
        assert owner.result(20).superseded


@pytest.mark.parametrize("stage", LAYERS)
def test_without_redis_it_works_as_well(unique: str, stage: str, cut: Cut) -> None:
    """P6: the floor that can't be raised costs nobody the call."""
    call = Counted("old", "new")
    cut.node.run(stage, {"key": unique}, call)

    assert cut.node.run(stage, {"key": unique}, call, is_fresh=True).value == "new"
    assert cut.node.run(stage, {"key": unique}, call).value == "new"


def test_a_floor_that_redis_could_not_confirm_is_raised_once_it_can(unique: str, cut: Cut) -> None:
    """P6: the old answer, which other nodes still find in Redis, does not outlive the trouble."""
    call = Counted("old", "new")
    with nodes(1) as (other,):
        other.run("calm-redis", {"key": unique}, call)
        cut.node.run("calm-redis", {"key": unique}, call, is_fresh=True)

        cut.mend()

        until(lambda: other.run("calm-redis", {"key": unique}, call).value == "new", "the new answer everywhere")


def test_what_redis_could_not_confirm_to_whoever_forgets_is_confirmed_once_it_can(unique: str, cut: Cut) -> None:
    """R15, P6: the row says that it was forgotten, so no button forgets it again; no caller asks the row either."""
    call = Counted("old", "new")
    with nodes(1) as (other,):
        other.run("calm-redis", {"key": unique}, call)
        with pytest.raises(CoordinationUnavailable, match="forget it again"):
            cut.node.forget(cut.node.key("calm-redis", {"key": unique}))

        cut.mend()

        until(lambda: other.run("calm-redis", {"key": unique}, call).value == "new", "the new answer everywhere")


def test_a_fresh_call_in_the_background_replaces_the_outcome(unique: str) -> None:
    """The row waits for a worker; the old outcome answers nobody from now on."""
    old = remembered.outcome(unique)

    handle = remembered.options(fresh=True).submit(unique)
    assert row_of(handle).status == "pending"
    assert handle.flight_id is not None
    ran = run_pending(handle.flight_id)

    assert ran is not None
    assert ran.value == "new"
    assert remembered(unique) == "new"
    assert (handle.wait(5).value, ran.flight_id) == ("new", old.flight_id)


def test_a_fresh_submit_joins_a_flight_that_waits_for_its_worker(unique: str) -> None:
    """Its call has not begun, so it will have begun after this caller asked."""
    first = remembered.options(fresh=True).submit(unique)

    second = remembered.options(fresh=True).submit(unique)

    assert second.flight_id == first.flight_id
    assert events_of(first) == ["submitted"]


def test_a_fresh_submit_while_a_call_runs_is_refused_for_now(unique: str) -> None:
    """Nothing waits in `submit`, and a row holds one flight."""
    call = Held("old")
    key = remembered.key(unique)
    assert key.stage == "fresh-background"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "answers", call)
        owner = begin(remembered.outcome, unique)
        call.wait_until_begun()

        with pytest.raises(Overloaded, match="still runs") as refused:
            remembered.options(fresh=True).submit(unique)
        call.let_go()

        assert refused.value.retry_after > 0
        assert owner.result(20).value == "old"


def test_a_fresh_caller_joins_a_pending_flight_once_its_worker_runs_it(unique: str) -> None:
    """It asked before that call began, so one call serves both."""
    call = Held("from the worker")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "answers", call)
        handle = remembered.submit(unique)
        assert handle.flight_id is not None
        caller = begin(remembered.options(fresh=True).outcome, unique)
        waiting = runtime().coordinator._following._waiting
        until(lambda: waiting["fresh-background"], "a caller who follows the pending flight")

        worker = begin(run_pending, handle.flight_id)
        call.wait_until_begun()
        call.let_go()

        assert worker.result(20) is not None
        assert caller.result(20).value == "from the worker"
        assert caller.result().role in {Role.FOLLOWER, Role.REPLAY}  # as it looks before the end, or after
        assert call.count == 1


def test_fresh_callers_who_wait_for_a_worker_share_its_call(unique: str) -> None:
    """Each of them asked before the call began."""
    call = Held("from the worker")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(globals(), "answers", call)
        handle = remembered.submit(unique)
        assert handle.flight_id is not None
        key = remembered.key(unique)
        fresh = [begin(remembered.options(fresh=True).outcome, unique) for _ in range(3)]
        line = until(lambda: runtime().coordinator._local._flights.get((key.digest, True)), "a line")
        until(lambda: line is not None and line.asked >= 3, "three in line")
        runtime().coordinator._following.wake(key.digest)
        until(lambda: line is not None and line._mark >= 3, "three whom the next generation answers", timeout=5)

        worker = begin(run_pending, handle.flight_id)
        call.wait_until_begun()
        call.let_go()

        assert {outcome.value for outcome in results(fresh)} == {"from the worker"}
        assert worker.result(20) is not None
        assert call.count == 1
