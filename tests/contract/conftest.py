"""The stores that share a contract, each in turn."""

from collections.abc import Callable, Iterator

import pytest

from singleflight_app.conf import get_settings
from singleflight_app.storage.flights import PostgresFlights
from singleflight_app.storage.memory import MemoryFlights
from singleflight_app.storage.pool import Database
from tests.kept import Kept, KeptQueue
from tests.past import pass_time, purge_all


@pytest.fixture
def database(db: None) -> Iterator[Database]:
    """Connections of the app's own to the test database."""
    made = Database(get_settings())
    yield made
    made.close()


def _memory() -> tuple[MemoryFlights, Callable[[float], object]]:
    passed = [0.0]
    memory = MemoryFlights(entries=1000, monotonic=lambda: passed[0])
    return memory, lambda seconds: passed.append(passed.pop() + seconds)


@pytest.fixture(params=["postgresql", "memory"])
def kept(request: pytest.FixtureRequest, unique: str) -> Kept:
    """Both stores in turn."""
    if request.param == "memory":
        memory, wait = _memory()
        return Kept(memory, unique, wait)
    database = request.getfixturevalue("database")
    return Kept(PostgresFlights(database), unique, lambda by: pass_time(database, by, stages=[unique]))


@pytest.fixture(params=["postgresql", "memory"])
def queued(request: pytest.FixtureRequest, unique: str) -> KeptQueue:
    """Both stores in turn, without any flight yet."""
    if request.param == "memory":
        memory, wait = _memory()
        return KeptQueue(memory, unique, wait, memory)
    database = request.getfixturevalue("database")
    purge_all(database)
    store = PostgresFlights(database)
    return KeptQueue(store, unique, lambda by: pass_time(database, by, stages=[unique]), store)
