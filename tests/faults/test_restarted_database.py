"""A PostgreSQL that is killed under two hundred flights and started again: none is called twice (C19, R18)."""

import time
from contextlib import suppress

import psutil
import psycopg
import pytest
from django.db import connection
from pytest_django.fixtures import Settings

from config.servers import places
from singleflight_app.engine.heartbeat import Lease
from tests.embedded import POSTGRES_ALONE, Folder, kill
from tests.held import Counted, Held, begin
from tests.nodes import Node, nodes
from tests.waiting import until

FLIGHTS = 200
_AGE = "select extract(epoch from clock_timestamp() - pg_postmaster_start_time())::float8"


@pytest.fixture
def server(here: Folder, monkeypatch: pytest.MonkeyPatch, settings: Settings) -> Folder:
    """A server of the test's own, which all nodes use; its keeper starts it again whenever it is killed."""
    here.user(**POSTGRES_ALONE)
    migrated = here.manage("migrate", "--no-input", **POSTGRES_ALONE)
    assert migrated.returncode == 0, migrated.stderr
    own = {"HOST": str(here.sockets / "postgres"), "NAME": places.DATABASE_NAME, "USER": places.POSTGRES_USER}
    for name, value in {**own, "PORT": "", "PASSWORD": ""}.items():
        monkeypatch.setitem(connection.settings_dict, name, value)
    settings.SINGLEFLIGHT = {**settings.SINGLEFLIGHT, "CACHE": None}
    return here


def _age(server: Folder) -> float:
    """Return for how many seconds the server has been up; 0 while it is not."""
    with suppress(psycopg.OperationalError), server.session() as session:
        row = session.execute(_AGE).fetchone()
        assert row is not None
        return float(str(row[0]))
    return 0.0


def _recovering(server: Folder) -> psutil.Process | None:
    """Return the process that brings a killed server's data in order, if it is at it."""
    for postmaster in server.servers("postgres"):
        with suppress(psutil.NoSuchProcess):
            for child in postmaster.children():
                if "startup" in " ".join(child.cmdline()):
                    return child
    return None


def _is_in_doubt(leases: list[Lease], node: Node) -> bool:
    now = node.runtime.coordinator._settling.heartbeat._monotonic()
    return all(lease.is_in_doubt(now) for lease in leases)


def test_a_killed_server_that_recovers_for_longer_than_a_lease_costs_no_call(server: Folder, unique: str) -> None:
    """All leases are over when it answers again, and it looks old enough; each owner is given one lease to beat."""
    held, second = Held("value"), Counted("second call")
    with nodes(2) as (one, other):
        heartbeat, lease = one.runtime.coordinator._settling.heartbeat, one.runtime.settings.policy("fast").lease
        until(lambda: _age(server) > lease, "the server to be older than a lease")
        owners = [begin(one.run, "fast", {"key": f"{unique}-{n}"}, held) for n in range(FLIGHTS)]
        until(lambda: held.count == FLIGHTS, "all calls to run")
        followers = [begin(other.run, "fast", {"key": f"{unique}-{n}"}, second) for n in range(FLIGHTS)]
        other.wait_for_follower("fast", FLIGHTS)

        kill(*server.servers("postgres"))
        recovery = until(lambda: _recovering(server), "the recovery")
        assert recovery is not None
        recovery.suspend()
        until(lambda: _is_in_doubt(heartbeat.held(), one), "all leases to be over")
        began_at = recovery.create_time()  # right after the postmaster itself
        until(lambda: time.time() > began_at + lease, "the server to look older than a lease")
        recovery.resume()

        until(lambda: not _is_in_doubt(heartbeat.held(), one), "the beats")
        held.let_go()
        answers = [future.result(20) for future in (*owners, *followers)]

    assert {(answer.value, answer.degraded, answer.superseded) for answer in answers} == {("value", False, False)}
    assert (held.count, second.count) == (FLIGHTS, 0)
