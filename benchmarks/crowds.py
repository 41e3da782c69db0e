"""What many waiting callers and many leases cost the database: connections, and statements per tick."""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import Any
from unittest.mock import patch

from django.db import connection

from benchmarks.flights import ANSWER
from benchmarks.partners import NAME, Partner, Pipe, partner
from singleflight_app import GLOBAL, arun, run
from singleflight_app.storage.pool import Database
from singleflight_app.wiring import runtime

FLIGHTS = 100
CALLERS = 500
_STAGE = "bench-crowds"
_HEARTBEAT = 1.0  #: seconds, as in the settings of the stage
_ARRIVING = 2.0  #: seconds until all callers wait
_SETTLING = 6.0  #: seconds until the leases of one process share a beat, and the ledger has written the claims down
_WINDOW = 20.0  #: seconds in which statements are counted


def connections_added(rounds: int) -> float:
    """Return how many connections 500 waiting callers add to those of one.

    The pool is filled first: a rush of claims makes it grow to POOL_SIZE, whoever waits afterwards.
    """
    _fill_pool()
    with partner(_own) as owner:
        one = _connections_while(owner, 1)
        return _connections_while(owner, CALLERS) - one


def statements_per_tick(rounds: int) -> float:
    """Return statements per tick of a process that owns 100 flights and follows 100; a tick is a beat or a poll."""
    return asyncio.run(_statements_per_tick())


def _connections_while(owner: Partner, callers: int) -> int:
    """Return this process's connections while so many callers wait, half of them threads and half tasks."""
    numbers = _numbers()
    owner.pipe.send(numbers)
    owner.pipe.recv()
    asked = [numbers[caller % FLIGHTS] for caller in range(callers)]
    with ThreadPoolExecutor(callers) as threads:
        waiting = [threads.submit(_ask, number) for number in asked[::2]]
        waiting.append(threads.submit(asyncio.run, _ask_on_loop(asked[1::2])))
        time.sleep(_ARRIVING)
        count = _connections()
        owner.pipe.send("end")
    for answer in waiting:
        answer.result()
    return count


def _fill_pool() -> None:
    here = runtime()
    assert here.database is not None  # noqa: S101  (for the type; the benchmarks run with a database)
    with ThreadPoolExecutor(2 * here.settings.pool_size) as threads:
        for _ in range(2 * here.settings.pool_size):
            threads.submit(here.database.run, b"select pg_sleep(0.2)", {})


def _connections() -> int:
    of_this_process = "datname = current_database() and application_name <> %s"
    with connection.cursor() as cursor:
        cursor.execute(f"select count(*) from pg_stat_activity where {of_this_process}", [NAME])  # noqa: S608  (no input)
        ((count,),) = cursor.fetchall()
    return int(count)


async def _statements_per_tick() -> float:
    theirs = _numbers()
    with partner(_own) as owner:
        owner.pipe.send(theirs)
        owner.pipe.recv()
        async with _owned(_numbers()):
            waiting = asyncio.create_task(_ask_on_loop(theirs))
            await asyncio.sleep(_SETTLING)
            with _counted() as statements:
                started = time.monotonic()
                await asyncio.sleep(_WINDOW)
                seconds = time.monotonic() - started
            owner.pipe.send("end")
            await waiting
    return len(statements) / (seconds / _HEARTBEAT + seconds / runtime().settings.poll_interval)


@contextmanager
def _counted() -> Iterator[list[bytes]]:
    """Note every statement that this process sends on the app's own connections."""
    sent: list[bytes] = []
    send = Database.run

    def run_and_note(self: Database, statement: bytes, parameters: Mapping[str, Any], **how: Any) -> Any:  # noqa: ANN401
        sent.append(statement)
        return send(self, statement, parameters, **how)

    with patch.object(Database, "run", run_and_note):
        yield sent


def _numbers() -> list[str]:
    return [uuid.uuid4().hex for _ in range(FLIGHTS)]


def _own(pipe: Pipe) -> None:
    asyncio.run(_own_on_loop(pipe))


async def _own_on_loop(pipe: Pipe) -> None:
    """Own the flights that the pipe names, until it says that they end; then the next."""
    while True:
        async with _owned(await asyncio.to_thread(pipe.recv)):
            pipe.send("begun")
            await asyncio.to_thread(pipe.recv)


@asynccontextmanager
async def _owned(numbers: list[str]) -> AsyncIterator[None]:
    """Have a running call for each number until the block ends."""
    have_begun, may_end = asyncio.Barrier(len(numbers) + 1), asyncio.Event()

    async def call() -> dict[str, str]:
        await have_begun.wait()
        await may_end.wait()
        return ANSWER

    async with asyncio.TaskGroup() as callers:
        for number in numbers:
            callers.create_task(arun(_STAGE, {"number": number}, call, scope=GLOBAL))
        await have_begun.wait()
        yield
        may_end.set()


def _ask(number: str) -> None:
    run(_STAGE, {"number": number}, _refuse, scope=GLOBAL)


async def _ask_on_loop(numbers: list[str]) -> None:
    async def call() -> None:
        _refuse()

    await asyncio.gather(*(arun(_STAGE, {"number": number}, call, scope=GLOBAL) for number in numbers))


def _refuse() -> None:
    raise RuntimeError("a follower made the call")


BENCHMARKS = (
    ("connections_added", connections_added, "connections that 500 waiting callers add to those of one"),
    ("statements_per_tick", statements_per_tick, "statements per beat or poll, 100 flights owned and 100 followed"),
)
