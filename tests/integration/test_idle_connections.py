"""Threads of the app and Django's connections: none of them opens one, so none leaves one behind (C25)."""

import threading
from collections.abc import Iterator

import pytest
from django.contrib.auth.models import Group
from django.db import connection, connections
from django.db.backends.signals import connection_created

from tests.held import Counted, Held, at_once, begin, results
from tests.looped import AsyncCounted, loops
from tests.nodes import nodes
from tests.waiting import until

pytestmark = pytest.mark.django_db


@pytest.fixture
def openers() -> Iterator[list[str]]:
    """Names of the threads that opened a connection of Django's."""
    seen: list[str] = []

    def remember(**_: object) -> None:
        seen.append(threading.current_thread().name)

    connection_created.connect(remember)
    yield seen
    connection_created.disconnect(remember)


def _open() -> int:
    """Return how many sessions the test's database has, besides this one and the nodes' own."""
    with connection.cursor() as cursor:
        cursor.execute("select pg_stat_clear_snapshot()")  # else it is what it was, until the test's transaction ends
        cursor.execute(
            "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() "
            "and backend_type = 'client backend'"
        )
        return int(cursor.fetchone()[0])


def test_no_thread_of_the_app_opens_a_connection_of_djangos(unique: str, openers: list[str]) -> None:
    """Owners that beat, followers that listen and poll, hints that are spread, async callers: all use the app's own."""
    held = Held("value")
    with nodes(2) as (one, other), loops(1) as (loop,):
        owner = begin(one.run, "fast", {"key": unique}, held)
        held.wait_until_begun()
        followers = at_once(10, other.run, "fast", {"key": unique}, Counted("second call"))
        other.wait_for_follower("fast")
        (lease,) = one.runtime.coordinator._settling.heartbeat.held()
        before = lease.sent_at
        until(lambda: lease.sent_at > before, "a beat")
        held.let_go()
        assert {outcome.value for outcome in results([owner, *followers])} == {"value"}
        assert loop.run(one.arun("calm", {"key": f"{unique}-async"}, AsyncCounted("async"))).value == "async"

        assert openers == []


@pytest.mark.sessions
def test_an_ended_node_leaves_no_session_behind(unique: str) -> None:
    """Its pool is closed; the connection that the call itself used is its own thread's, as anywhere in Django."""
    before, count = _open(), Counted("value")

    def call() -> str:
        Group.objects.filter(name=unique).exists()
        connections.close_all()
        return count()

    with nodes(2) as members:
        asked = [begin(node.run, "calm-row", {"key": unique}, call) for node in members for _ in range(5)]
        assert {outcome.value for outcome in results(asked)} == {"value"}
        assert _open() > before

    until(lambda: _open() <= before, "the nodes' sessions to end")
    assert count.count == 1
