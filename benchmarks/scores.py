"""The owner's path, 16 threads: claim, a call that costs nothing, settle, hand on."""

import os
import threading
import time
import uuid
from collections.abc import Callable

import psycopg
from django.db import connection

from benchmarks.flights import owned
from benchmarks.ratios import ratio

THREADS = 16
CALLS = 60  #: by each thread in a round
PAYLOAD = b"x" * 600

_TABLE = "create table if not exists benchmark_bare (digest bytea primary key, status text, result bytea)"
_INSERT = "insert into benchmark_bare (digest, status) values (%s, 'running') returning digest"
_UPDATE = "update benchmark_bare set status = 'succeeded', result = %s where digest = %s returning digest"


def owner_vs_bare(rounds: int) -> float:
    """Return two bare statements (an insert and an update, each a commit) against an owner's whole path."""
    connections = [bare_connection() for _ in range(THREADS)]
    connections[0].execute(_TABLE)
    try:
        return ratio(
            lambda: timed(lambda thread: _bare(connections[thread])),
            lambda: timed(lambda _: owned(uuid.uuid4().hex)),
            rounds,
        )
    finally:
        connections[0].execute("drop table benchmark_bare")
        for open_connection in connections:
            open_connection.close()


def bare_connection() -> psycopg.Connection:
    """Return a connection to the benchmark's database that prepares its statements, as the app's do."""
    parameters = connection.get_connection_params()
    for name in ("context", "cursor_factory", "prepare_threshold"):
        parameters.pop(name, None)
    return psycopg.connect(**parameters, autocommit=True, prepare_threshold=1)


def _bare(plain: psycopg.Connection) -> None:
    digest = os.urandom(32)
    plain.execute(_INSERT, [digest]).fetchall()
    plain.execute(_UPDATE, [PAYLOAD, digest]).fetchall()


def timed(call: Callable[[int], object]) -> float:
    """Return the seconds that all threads together took."""
    barrier = threading.Barrier(THREADS + 1)

    def work(thread: int) -> None:
        barrier.wait()
        for _ in range(CALLS):
            call(thread)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    barrier.wait()
    started = time.perf_counter()
    for thread in threads:
        thread.join()
    return time.perf_counter() - started


BENCHMARKS = (("owner_vs_bare", owner_vs_bare, "owner's path against two bare statements, 16 threads"),)
