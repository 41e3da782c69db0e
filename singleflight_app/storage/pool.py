"""The app's own connections: autocommit, bounded in number and in time, apart from Django's.

Callers' transactions, routers and replicas don't touch them. A statement that got no reply may have
committed all the same (rule R6), so every statement that is sent twice here must bear it.
"""

import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn, TypeVar

import psycopg
from django.db import connections
from psycopg import errors
from psycopg.abc import PQGen
from psycopg_pool import ConnectionPool, PoolTimeout

from singleflight_app.conf import Settings
from singleflight_app.domain.exceptions import CoordinationUnavailable

BORROW_TIMEOUT = 2.0
PROBE_INTERVAL = 0.5
Rows = list[tuple[Any, ...]]
Statement = tuple[bytes, Mapping[str, Any]]
RV = TypeVar("RV")
_CONFLICTS = (errors.SerializationFailure, errors.DeadlockDetected)


class StatementTimeout(psycopg.OperationalError):
    """A statement outlasted its deadline; it may have been committed all the same."""


class BoundedConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection on which no statement outlasts `statement_timeout` seconds, kept by the client.

    A `SET` would be session state, which a transaction-pooling proxy hands to somebody else.
    """

    statement_timeout = 2.0

    def wait(self, gen: PQGen[RV], interval: float = 0.1, timeout: float | None = None) -> RV:
        """Wait for the server; past the timeout close the connection, whose state is unknown then."""
        try:
            return super().wait(gen, interval, self.statement_timeout if timeout is None else timeout)
        except psycopg.OperationalError as exc:
            if not self.closed and self.info.transaction_status == psycopg.pq.TransactionStatus.ACTIVE:
                self.close()
                raise StatementTimeout(f"a statement took longer than {self.statement_timeout:g} s") from exc
            raise


class Database:
    """Runs named statements on the pool and remembers when the server was last out of reach."""

    def __init__(self, settings: Settings, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._settings, self._monotonic = settings, monotonic
        self._lock = threading.Lock()
        self._pool: ConnectionPool[BoundedConnection] | None = None
        self._pool_target: tuple[object, ...] = ()
        self._down = self._probing = False
        self._busy = 0
        self._is_closed = False
        self._next_probe = 0.0
        self._failed_at = self._back_at = float("-inf")
        self._pid = os.getpid()

    def was_reachable_for(self, seconds: float) -> bool:
        """Tell whether the server has answered this process for `seconds` without a failure (rule R18).

        Counted from the first answer after an outage: until then nobody's beat came through.
        """
        return self._monotonic() - max(self._failed_at, self._back_at) >= seconds

    def run(
        self, statement: bytes, parameters: Mapping[str, Any], *, once: bool = False, after: Statement | None = None
    ) -> Rows:
        """Send one statement and return its rows; a dead connection is replaced once, unless `once`.

        `after`: a statement that goes before it in one transaction, and in one round trip.

        Raises CoordinationUnavailable: at once while the server is known to be down, except for the one caller per
        interval that finds out whether it is back.
        """
        probe = self._enter()
        try:
            if probe:
                self._knock()
            send = partial(self._try, statement, parameters, after)
            rows = send() if once else self._try_twice(send)
        except (StatementTimeout, PoolTimeout) as exc:
            self._timed_out(exc)
        except (psycopg.DataError, psycopg.IntegrityError):
            raise  # the values are at fault, not the server
        except errors.UndefinedTable as exc:
            problem = "the tables of singleflight_app are missing; run `manage.py migrate`"
            raise CoordinationUnavailable(problem, is_outage=False) from exc
        except psycopg.Error as exc:
            self._failed(exc)
        finally:
            if probe:
                self._probing = False
        if probe:
            self._back_at = self._monotonic()
        self._down = False
        return rows

    def close(self) -> None:
        """Close the pool for good: a call that ends after its runtime must not open one that nobody closes."""
        with self._lock:
            pool, self._pool, self._is_closed = self._pool, None, True
        if pool is not None and self._pid == os.getpid():
            pool.close(timeout=1.0)

    def _enter(self) -> bool:
        if not self._down:
            return False
        with self._lock:
            if self._probing or self._monotonic() < self._next_probe:
                raise CoordinationUnavailable("PostgreSQL is out of reach; the next try is under way", was_sent=False)
            self._probing = True
        return True

    def _failed(self, exc: Exception, *, was_sent: bool = True) -> NoReturn:
        self._failed_at = self._monotonic()
        self._next_probe = self._failed_at + PROBE_INTERVAL
        self._down = True
        self._drop_pool()
        reason = str(exc).strip().splitlines()[0] if str(exc).strip() else type(exc).__name__
        raise CoordinationUnavailable(f"PostgreSQL is out of reach: {reason}", was_sent=was_sent) from exc

    def _knock(self) -> None:
        """Find out at once that nobody answers: the pool tries again after a second, then after two."""
        try:
            psycopg.connect(**self._connection_parameters()).close()
        except psycopg.Error as exc:
            self._failed(exc, was_sent=False)

    def _drop_pool(self) -> None:
        """Let the next probe begin with a new pool: this one's own reconnecting backs off for longer than a lease."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is None:
            return
        with suppress(RuntimeError):  # no thread to be had: it is closed with the last reference to it
            threading.Thread(target=pool.close, name="singleflight-close", daemon=True).start()

    def _timed_out(self, exc: Exception) -> NoReturn:
        """Tell a locked row or a busy pool from a server that answers nobody."""
        was_sent = not isinstance(exc, PoolTimeout)
        answers = self._is_answering() if was_sent else self._busy > 0
        if not answers:
            self._failed(exc, was_sent=was_sent)
        problem = f"PostgreSQL did not answer in time: {exc}"
        raise CoordinationUnavailable(problem, is_outage=False, was_sent=was_sent) from exc

    def _is_answering(self) -> bool:
        try:
            return bool(self._try(b"select 1", {}, None))
        except psycopg.Error:
            return False

    def _try_twice(self, send: Callable[[], Rows]) -> Rows:
        try:
            return send()
        except _CONFLICTS:
            return send()
        except (StatementTimeout, PoolTimeout, psycopg.DataError, psycopg.IntegrityError):
            raise  # nothing says that its connection, or another, is dead
        except psycopg.Error:
            # After a restart every pooled connection is dead, not just this one; after a failover each may lead to a
            # server that takes no writes any more, and after a migration hold plans that no longer fit.
            failed_at = self._monotonic()
            self._current_pool().drain()
            rows = send()
            if self._monotonic() - failed_at > PROBE_INTERVAL:  # not one dead connection: the server was away
                self._back_at = self._monotonic()
            return rows

    def _try(self, statement: bytes, parameters: Mapping[str, Any], after: Statement | None) -> Rows:
        pool = self._current_pool()
        connection = pool.getconn()
        self._count_busy(1)
        try:
            if after is None:
                return connection.execute(statement, parameters, binary=True).fetchall()
            # Between two syncs of a pipeline all is one transaction; a block of psycopg's would sync at each edge.
            with connection.pipeline():
                connection.execute(*after)
                cursor = connection.execute(statement, parameters, binary=True)
            return cursor.fetchall()
        finally:
            self._count_busy(-1)
            pool.putconn(connection)

    def _count_busy(self, change: int) -> None:
        # Under the lock: a count that drifted would take a dead server for a busy pool, or the reverse, for good.
        with self._lock:
            self._busy += change

    def _current_pool(self) -> ConnectionPool[BoundedConnection]:
        target = self._target()
        if self._pool is not None and target == self._pool_target:
            return self._pool
        with self._lock:
            if self._is_closed:
                problem = "the app's connections of this process were closed"
                raise CoordinationUnavailable(problem, is_outage=False, was_sent=False)
            if self._pool is None or target != self._pool_target:
                old, self._pool, self._pool_target = self._pool, self._opened(), target
                if old is not None:
                    old.close(timeout=0)
            return self._pool

    def _opened(self) -> ConnectionPool[BoundedConnection]:
        kind = type("_Connection", (BoundedConnection,), {"statement_timeout": self._settings.statement_timeout})
        pool: ConnectionPool[BoundedConnection] = ConnectionPool(
            connection_class=kind,
            kwargs=self._connection_parameters,
            configure=None if self._settings.prepare_statements else _prepare_nothing_behind_a_proxy,
            min_size=1,
            max_size=self._settings.pool_size,
            timeout=BORROW_TIMEOUT,
            reconnect_timeout=BORROW_TIMEOUT,
            name="singleflight",
            open=False,
        )
        pool.open()
        return pool

    def _target(self) -> tuple[object, ...]:
        """Return what tells one server and database from another; the test runner changes NAME in place."""
        # The dict that every thread's wrapper of the alias shares; asking for a wrapper would make one per thread.
        alias = connections.settings[self._settings.database]
        return alias["NAME"], alias["HOST"], alias["PORT"], alias["USER"]

    def _connection_parameters(self) -> dict[str, Any]:
        threshold = None if self._settings.prepare_statements is False else 1
        return {**_parameters(self._settings), "prepare_threshold": threshold}


def dial(settings: Settings) -> BoundedConnection:
    """Return a connection of one's own, outside of every pool, as the app's are: for whoever looks at the server.

    It prepares no statement; psycopg.Error: nobody answered within about 2 s.
    """
    return BoundedConnection.connect(**{**_parameters(settings), "prepare_threshold": None})


def _parameters(settings: Settings) -> dict[str, Any]:
    # Asked for at each new connection, so that a rotated password is taken up.
    parameters = {"connect_timeout": 2, **connections[settings.database].get_connection_params()}
    # Django's adapters would read jsonb as str; its cursors belong to its wrapper.
    for name in ("context", "cursor_factory"):
        parameters.pop(name, None)
    return {**parameters, "autocommit": True}


def _prepare_nothing_behind_a_proxy(connection: BoundedConnection) -> None:
    """Give up prepared statements where a proxy hands sessions out by transaction, and one client gets another's.

    A proxy shows a process id of its own; the server tells its own.
    """
    if connection.prepare_threshold is not None:
        rows = connection.execute("select pg_backend_pid()", prepare=False).fetchall()
        if rows[0][0] != connection.info.backend_pid:
            connection.prepare_threshold = None
