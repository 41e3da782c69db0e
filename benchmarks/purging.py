"""What `purge_flights` deletes in a second, and how long its longest batch takes; then claims beside many rows."""

import statistics
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import cache
from typing import Any

from benchmarks.rows import load_events, load_flights
from benchmarks.scores import bare_connection

FLIGHTS = 200_000  #: and twice as many audit rows
SMALL, LARGE = 10_000, 1_000_000
CLAIMS = 200  #: of each kind in a round
_STAGE = "bench-purge"


def purge_rows_s(_: int) -> float:
    """Return flights deleted per second."""
    return _purged()[0]


def purge_events_s(_: int) -> float:
    """Return audit rows deleted per second."""
    return _purged()[1]


def purge_batch_ms_max(_: int) -> float:
    """Return milliseconds of the longest batch of flights or audit rows: statement, commit and reply."""
    return _purged()[2]


@cache
def _purged() -> tuple[float, float, float]:
    from singleflight_app.conf import get_settings
    from singleflight_app.domain.purging import PurgePlan
    from singleflight_app.storage.pool import Database
    from singleflight_app.storage.purging import ExpiredRows

    with closing(bare_connection()) as bare:
        load_flights(bare, _STAGE, FLIGHTS)
        load_events(bare, _STAGE)
    plan = PurgePlan(wait_timeout_max=1, event_retention=timedelta(days=3000), stages=(_STAGE,))
    with closing(Database(get_settings())) as database:
        rows = ExpiredRows(database)
        flights, events = _timed(rows.purge_flights, plan), _timed(rows.purge_events, plan)
    return FLIGHTS / sum(flights), 2 * FLIGHTS / sum(events), 1000 * max(*flights, *events)


def _timed(purge_batch: Callable[..., Any], plan: Any) -> list[float]:  # noqa: ANN401
    """Return the seconds of each batch until nothing is left."""
    times, since, is_done = [], None, False
    while not is_done:
        started = time.perf_counter()
        batch = purge_batch(plan, since)
        times.append(time.perf_counter() - started)
        since, is_done = batch.until, batch.deleted < plan.batch_size
    return times


def claim_1m_vs_10k(rounds: int) -> float:
    """Return how much longer a claim takes in a table of a million rows than in one of ten thousand, by turns."""
    with ExitStack() as stack:
        small, large = (stack.enter_context(_table(count)) for count in (SMALL, LARGE))
        pairs = [(small(), large()) for _ in range(rounds + 1)]
    return statistics.median(much / little for little, much in pairs[1:])


@contextmanager
def _table(count: int) -> Iterator[Callable[[], float]]:
    """Have a table of so many flights, in a schema of its own; gives what claims in it, and the median of seconds."""
    from django.db import connections

    from singleflight_app.conf import get_settings
    from singleflight_app.storage.flights import PostgresFlights
    from singleflight_app.storage.pool import Database

    schema, settings = f"bench_{count}", get_settings()
    with closing(bare_connection()) as bare:
        bare.execute(f"drop schema if exists {schema} cascade".encode())
        bare.execute(f"create schema {schema}".encode())
        bare.execute(f"create table {schema}.singleflight_flight (like singleflight_flight including all)".encode())
        load_flights(bare, _STAGE, count, schema=schema)
        alias = connections.settings[settings.database]
        options = {**alias["OPTIONS"], "options": f"-c search_path={schema},public"}
        connections.settings[schema] = {**alias, "OPTIONS": options}
        try:
            with closing(Database(replace(settings, database=schema))) as database:
                yield lambda: _claims(PostgresFlights(database))
        finally:
            del connections.settings[schema]
            bare.execute(f"drop schema {schema} cascade".encode())


def _claims(store: Any) -> float:  # noqa: ANN401
    """Return the median seconds of claims of new keys and, each, a follower's of the same."""
    from singleflight_app.domain.keys import flight_key
    from singleflight_app.domain.policy import StagePolicy

    times = []
    for _ in range(CLAIMS):
        key = flight_key("bench", _STAGE, "bench:1", {"n": uuid.uuid4().hex})
        started = time.perf_counter()
        for owner in ("bench:1:1", "bench:2:2"):
            store.claim(key, label="", owner=owner, policy=StagePolicy())
        times.append(time.perf_counter() - started)
    return statistics.median(times)


BENCHMARKS = (
    ("purge_rows_s", purge_rows_s, "flights that a purge deletes in a second, of 200,000"),
    ("purge_events_s", purge_events_s, "audit rows that a purge deletes in a second, of 400,000"),
    ("purge_batch_ms_max", purge_batch_ms_max, "milliseconds of the purge's longest batch"),
    ("claim_1m_vs_10k", claim_1m_vs_10k, "a claim among 1,000,000 rows against one among 10,000, in time"),
)
