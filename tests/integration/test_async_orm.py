"""Django's ORM inside an async call: it works, in a thread of the call's own, and leaves no connection behind (C25)."""

import threading
from collections.abc import Callable
from typing import Annotated, Any

import psycopg
import pytest
from asgiref.sync import SyncToAsync, ThreadSensitiveContext, async_to_sync, sync_to_async
from django.db import connection, connections, transaction
from pydantic import PlainSerializer

from singleflight_app import arun
from singleflight_app.models import Flight
from tests.looped import AsyncHeld, Loop, Steps, a_turn, loops
from tests.nodes import nodes
from tests.waiting import until

pytestmark = [pytest.mark.django_db, pytest.mark.sessions]


def _backend() -> int:
    """Return the server process of this thread's connection."""
    with connection.cursor() as cursor:
        cursor.execute("select pg_backend_pid()")
        return int(cursor.fetchone()[0])


def _is_there(backend: int) -> bool:
    with connection.cursor() as cursor:
        cursor.execute("select count(*) from pg_stat_activity where pid = %s", [backend])
        return bool(cursor.fetchone()[0])


async def _count_and_backend() -> list[int]:
    return [await Flight.objects.filter(pk=0).acount(), await sync_to_async(_backend)()]


def _joined_by_another(
    loop: Loop, request: Steps[None], call: Callable[[], Steps[list[int]]], held: AsyncHeld[str], key: str
) -> list[int]:
    """Return what the one who joined a request's call gets of it, when the request is cancelled in its midst."""
    first = loop.begin(request)
    held.wait_until_begun()
    second = loop.begin(arun("calm", {"key": key}, call, scope="test"))
    first.cancel()
    loop.run(a_turn())
    held.let_go()
    value: list[int] = second.result(20).value
    return value


def test_the_orm_works_and_its_connection_is_closed(unique: str) -> None:
    """On a bare event loop."""
    with loops(1) as (loop,):
        count, backend = loop.run(arun("calm", {"key": unique}, _count_and_backend, scope="test")).value

    assert count == 0
    until(lambda: not _is_there(backend), "the call's connection to be closed")


def test_inside_a_request_a_call_has_a_thread_of_its_own(unique: str) -> None:
    """P5: Django gives each ASGI request a thread, which ends with it; a call may outlive its first caller's."""

    async def request() -> tuple[list[int], int]:
        async with ThreadSensitiveContext():
            own = await sync_to_async(_backend)()
            outcome = await arun("calm", {"key": unique}, _count_and_backend, scope="test")
            assert await sync_to_async(_backend)() == own
            await sync_to_async(connections.close_all)()
            return outcome.value, own

    with loops(1) as (loop,):
        (_, backend), own = loop.run(request())

    assert backend != own
    until(lambda: not _is_there(backend), "the call's connection to be closed")


def test_a_call_that_outlives_its_request_leaves_no_thread_behind(unique: str) -> None:
    """P5, C25: its first caller is gone when it uses the ORM."""
    held = AsyncHeld("go on")

    async def call() -> list[int]:
        await held()
        return await _count_and_backend()

    async def request() -> None:
        async with ThreadSensitiveContext():
            await sync_to_async(threading.get_ident)()
            await arun("calm", {"key": unique}, call, scope="test")

    with loops(1) as (loop,):
        _, backend = _joined_by_another(loop, request(), call, held, unique)

        until(lambda: not _is_there(backend), "the call's connection to be closed")
        assert not SyncToAsync.context_to_thread_executor


def test_a_call_of_a_sync_view_that_is_gone_goes_on(unique: str) -> None:
    """P5: the view ran in a thread and asked by `async_to_sync`; the call is on the main loop, and has followers."""
    held = AsyncHeld("go on")

    async def call() -> list[int]:
        await held()
        return await _count_and_backend()

    def view() -> Any:  # noqa: ANN401
        return async_to_sync(arun)("calm", {"key": unique}, call, scope="test")

    async def request() -> None:
        async with ThreadSensitiveContext():
            await sync_to_async(view)()

    with loops(1) as (loop,):
        count, backend = _joined_by_another(loop, request(), call, held, unique)

    assert count == 0
    until(lambda: not _is_there(backend), "the call's connection to be closed")


def test_the_callers_own_connection_is_left_alone(unique: str) -> None:
    """A TestCase, or a view inside `atomic`, asks by `async_to_sync`: its transaction is still there afterwards."""
    with transaction.atomic():
        before = _backend()

        async_to_sync(arun)("calm", {"key": unique}, _count_and_backend, scope="test")

        assert _backend() == before
        assert connection.in_atomic_block


def test_waiting_and_leading_open_no_connection_of_django(unique: str) -> None:
    """P7: the claims, looks and settles of async callers go through the app's own pool."""
    parameters = {k: v for k, v in connection.get_connection_params().items() if k not in {"context", "cursor_factory"}}
    call = AsyncHeld("answer")
    with (
        nodes(2) as (one, other),
        loops(2) as (loop, second),
        psycopg.connect(**parameters, autocommit=True) as watcher,
    ):

        def others() -> int:
            pools = [node.runtime.database._pool for node in (one, other) if node.runtime.database is not None]
            pooled = sum(pool.get_stats()["pool_size"] for pool in pools if pool is not None)
            found = watcher.execute(
                "select count(*) from pg_stat_activity where datname = current_database() "
                "and backend_type = 'client backend'"
            ).fetchone()
            assert found is not None
            return int(found[0]) - pooled

        one.run("calm", {"key": f"{unique}-warm"}, lambda: "warm")
        other.run("calm", {"key": f"{unique}-warm"}, lambda: "warm")
        before = others()
        owner = loop.begin(one.arun("calm", {"key": unique}, call))
        call.wait_until_begun()
        follower = second.begin(other.arun("calm", {"key": unique}, call))
        other.wait_for_follower("calm")
        during = others()
        call.let_go()

        assert owner.result(20).value == follower.result(20).value == "answer"
        assert during <= before


def test_a_result_that_is_written_by_way_of_the_orm_leaves_no_connection(unique: str) -> None:
    """A serializer of the project's own runs in a thread of the app, which has no request to close its connection."""
    backends: list[int] = []

    def written(value: str) -> str:
        backends.append(_backend())
        return value

    async def call() -> str:
        return "x"

    noted = Annotated[str, PlainSerializer(written)]
    with loops(1) as (loop,):
        assert loop.run(arun("calm", {"key": unique}, call, scope="test", result_type=noted)).value == "x"

    until(lambda: not any(map(_is_there, backends)), "the connection to be closed")
    assert backends
