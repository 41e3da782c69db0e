"""Callers of a process whose lease is lost, and rows that somebody else holds locked: nobody is left behind."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from django.db import connection

from singleflight_app import InvalidRequest, LeaseLost, Role, StillRunning, current_flight
from singleflight_app.domain.keys import FlightKey
from singleflight_app.engine.call import Call
from singleflight_app.models import Flight
from singleflight_app.outcomes.codec import for_policy
from tests.held import Counted, Held, begin
from tests.nodes import nodes
from tests.past import age_pending
from tests.waiting import until

pytestmark = pytest.mark.django_db


@contextmanager
def _elsewhere() -> Iterator[psycopg.Connection]:
    """Have a connection whose commits are seen by the nodes at once."""
    parameters = connection.get_connection_params()
    for name in ("context", "cursor_factory"):
        parameters.pop(name, None)
    with psycopg.connect(**parameters, autocommit=True) as other:
        yield other


def _change(other: psycopg.Connection, key: FlightKey, change: str) -> None:
    other.execute(f"update singleflight_flight set {change} where digest = %s".encode(), [key.digest])  # noqa: S608


def _lock(other: psycopg.Connection, key: FlightKey) -> None:
    other.execute("select from singleflight_flight where digest = %s for update", [key.digest])


def test_a_locked_row_with_a_past_outcome_gives_no_old_answer(unique: str) -> None:
    """P2: a caller that can't be granted the row for a moment waits for it, and does not follow its old end."""
    with nodes(2) as (one, other), _elsewhere() as writer, _elsewhere() as holder:
        key = one.key("calm-row", {"key": unique})
        one.run("calm-row", {"key": unique}, Counted("old"))
        _change(writer, key, "expires_at = clock_timestamp() - interval '1 hour'")
        with holder.transaction():
            _lock(holder, key)
            asked = begin(other.run, "calm-row", {"key": unique}, Counted("new"))
            other.wait_for_callers(key, 1)

        assert asked.result(20).value == "new"


def test_a_lost_lease_frees_the_line_behind_its_call(unique: str) -> None:
    """P4: whoever asks in the process of a replaced owner gets the newer answer, however long its call hangs."""
    late = Held("late")
    with nodes(2) as (one, other), _elsewhere() as writer:
        key = one.key("fast", {"key": unique})
        owner = begin(one.run, "fast", {"key": unique}, late)
        late.wait_until_begun()
        in_line = begin(one.run, "fast", {"key": unique}, Counted("not called"))
        one.wait_for_callers(key, 2)
        _change(writer, key, "lease_expires_at = clock_timestamp(), owner = ''")
        other.run("fast", {"key": unique}, Counted("newer"))

        assert in_line.result(20).value == "newer"
        assert one.run("fast", {"key": unique}, Counted("not called")).value == "newer"
        late.let_go()
        assert (owner.result(20).value, owner.result(20).role) == ("newer", Role.FOLLOWER)


def test_a_call_can_see_that_its_lease_is_lost_and_stop(unique: str) -> None:
    """R3: `raise_if_lost` spares a replaced owner the rest of its work; its caller gets the newer answer."""
    begun, may_look = threading.Event(), threading.Event()
    seen: list[LeaseLost] = []

    def call() -> str:
        current_flight().raise_if_lost()
        begun.set()
        assert may_look.wait(20)
        try:
            current_flight().raise_if_lost()
        except LeaseLost as exc:
            seen.append(exc)
            raise
        return "late"

    with nodes(2) as (one, other), _elsewhere() as writer:
        key = one.key("fast", {"key": unique})
        owner = begin(one.run, "fast", {"key": unique}, call)
        assert begun.wait(20)
        _change(writer, key, "lease_expires_at = clock_timestamp(), owner = ''")
        other.run("fast", {"key": unique}, Counted("newer"))
        until(lambda: not one.runtime.coordinator.running(), "the loss to be noticed")

        may_look.set()

        assert owner.result(20).value == "newer"
        assert [lost.flight_id for lost in seen] == [owner.result(20).flight_id]


def test_an_owner_whose_lease_was_expired_by_hand_does_not_wait_for_nobody(unique: str) -> None:
    """R3: no newer generation runs, so its caller gets its own value, marked; the line behind it calls anew."""
    paid = Held("paid")
    with nodes(1) as (one,):
        key = one.key("fast", {"key": unique})
        owner = begin(one.run, "fast", {"key": unique}, paid)
        paid.wait_until_begun()
        in_line = begin(one.run, "fast", {"key": unique}, Counted("anew"))
        one.wait_for_callers(key, 2)
        flight = Flight.objects.get(digest=key.digest)
        assert one.runtime.expire_lease(flight.pk, actor="mira")

        paid.let_go()

        assert (owner.result(20).value, owner.result(20).superseded) == ("paid", True)
        assert in_line.result(20).value == "anew"


def test_who_asks_after_a_forget_gets_no_end_of_a_fenced_owner(unique: str) -> None:
    """R15: the newer generation was forgotten while it ran; the line of the fenced owner asks again."""
    first, second = Held("one"), Held("two")
    with nodes(3) as (one, other, third), _elsewhere() as writer:
        key = one.key("fast", {"key": unique})
        begin(one.run, "fast", {"key": unique}, first)
        first.wait_until_begun()
        _change(writer, key, "lease_expires_at = clock_timestamp(), owner = ''")
        begin(other.run, "fast", {"key": unique}, second)
        second.wait_until_begun()
        assert third.forget(key)
        late = begin(one.run, "fast", {"key": unique}, Counted("three"))
        one.wait_for_callers(key, 1)

        first.let_go()
        second.let_go()

        assert late.result(20).value == "three"


def test_an_interrupted_caller_leaves_a_background_flight_in_its_queue(unique: str) -> None:
    """P8: somebody else's submitted work is not lost with the caller that ran it."""
    interrupted = Held("never", error=KeyboardInterrupt())
    with nodes(1) as (one,):
        key = one.key("queued", {"key": unique})
        answer = one.runtime.queue.submit(key, label="", arguments={"text": '"kept"'})
        assert answer is not None
        age_pending(answer[1].generation)
        caller = begin(one.run, "queued", {"key": unique}, interrupted)
        interrupted.wait_until_begun()

        interrupted.let_go()

        assert isinstance(caller.exception(20), KeyboardInterrupt)
        flight = Flight.objects.get(pk=answer[1].flight_id)
        assert (flight.status, flight.arguments) == ("running", {"text": '"kept"'})


def test_a_worker_runs_what_its_own_process_waits_for(unique: str) -> None:
    """P4: the message of a flight is not dropped because a caller of the worker's process already follows it."""
    with nodes(1) as (one,):
        key = one.key("calm-row", {"key": unique})
        answer = one.runtime.queue.submit(key, label="", arguments={"text": '"x"'})
        assert answer is not None
        follower = begin(one.run, "calm-row", {"key": unique}, Counted("not called"))
        one.wait_for_follower("calm-row")
        policy = one.runtime.settings.policy("calm-row")
        work = Call(key, policy, Counted("worked"), for_policy(str, policy), 0.0, "", answer[1].flight_id)

        outcome = one.runtime.coordinator.run(work)

        assert (outcome.value, outcome.role) == ("worked", Role.OWNER)
        assert follower.result(20).value == "worked"


def test_a_grant_on_its_way_to_a_worker_is_no_orphan(unique: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """P1: a caller of the same process sees the worker's lease before the worker has its reply, and follows it."""
    granted, may_arrive = threading.Event(), threading.Event()
    worker, caller = Counted("worked"), Counted("not called")
    with nodes(1) as (one,):
        key = one.key("calm-row", {"key": unique})
        answer = one.runtime.queue.submit(key, label="", arguments={"text": '"x"'})
        assert answer is not None
        grant = one.runtime.store.grant

        def slow_grant(*args: Any, **kwargs: Any) -> object:  # noqa: ANN401  (the store's own arguments)
            row = grant(*args, **kwargs)
            granted.set()
            assert may_arrive.wait(20)
            return row

        monkeypatch.setattr(one.runtime.store, "grant", slow_grant)
        policy = one.runtime.settings.policy("calm-row")
        work = Call(key, policy, worker, for_policy(str, policy), 0.0, "", answer[1].flight_id)
        worked = begin(one.runtime.coordinator.run, work)
        assert granted.wait(20)
        follower = begin(one.run, "calm-row", {"key": unique}, caller)
        one.wait_for_follower("calm-row")

        may_arrive.set()

        assert (worked.result(20).value, follower.result(20).value) == ("worked", "worked")
        assert (worker.count, caller.count) == (1, 0)


def test_one_locked_row_is_no_outage(unique: str) -> None:
    """P1: a settle that waits too long for a lock is tried again; no other key is called without the database."""
    paid = Held("paid")
    with nodes(1) as (one,), _elsewhere() as holder:
        key = one.key("calm-row", {"key": unique})
        owner = begin(one.run, "calm-row", {"key": unique}, paid)
        paid.wait_until_begun()
        with holder.transaction():
            _lock(holder, key)
            paid.let_go()
            assert owner.result(20).value == "paid"

            other = one.run("calm-row", {"key": f"{unique}-other"}, Counted("beside it"))

        assert not other.degraded
        until(lambda: Flight.objects.get(digest=key.digest).status == "succeeded", "the late settle", timeout=30)


def test_a_wait_that_no_clock_can_count_is_refused(unique: str) -> None:
    """Bad input: one sentence, before anything begins."""
    held = Held("value")
    with nodes(1) as (one,):
        owner = begin(one.run, "calm-row", {"key": unique}, held)
        held.wait_until_begun()
        with pytest.raises(StillRunning) as left:
            one.run("calm-row", {"key": unique}, held, wait_timeout=0)

        with pytest.raises(InvalidRequest, match="the wait budget is inf"):
            left.value.handle.wait(float("inf"))
        held.let_go()
        owner.result(20)
