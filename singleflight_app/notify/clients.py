"""The Redis of a django-redis alias as the app uses it: its primary, dialled on first use, given up on soon.

Plain Redis and Sentinel get connections of the app's own, which don't back off for seconds. What another connection
factory makes is used as it is; that of `contrib.redis_cluster` is bounded by itself.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from redis import ConnectionPool, Redis
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel, SentinelConnectionPool

BOUNDS = {"socket_timeout": 1.0, "socket_connect_timeout": 1.0}
DIAL_FOR = 1.0  #: seconds that a caller waits for a client to be there; it goes on being dialled


def connect(alias: str) -> Any:  # noqa: ANN401  (redis.Redis or a cluster client)
    """Return a client of a django-redis alias that dials on first use, and again if that failed."""
    return _Undialled(partial(_client, alias))


class _Undialled:
    """A client once somebody uses it: that of a cluster asks one node after the other when it is made."""

    def __init__(self, dial: Callable[[], Any]) -> None:
        self._dial, self._lock = dial, threading.Lock()
        self._dialled: Future[Any] | None = None
        self._client: Any = None

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  (whatever the client has)
        return getattr(self._client or self._awaited(), name)

    def _awaited(self) -> Any:  # noqa: ANN401
        with self._lock:
            dialled = self._dialled
            if dialled is None or (dialled.done() and dialled.exception()):
                dialled = self._dialled = Future()
                threading.Thread(target=self._fulfil, args=(dialled,), name="singleflight-dial", daemon=True).start()
        try:
            self._client = dialled.result(DIAL_FOR)
        except TimeoutError:
            raise RedisTimeoutError(f"no Redis answered within {DIAL_FOR:g} s") from None
        return self._client

    def _fulfil(self, dialled: "Future[Any]") -> None:
        try:
            dialled.set_result(self._dial())
        except Exception as exc:  # noqa: BLE001  (whoever waits for it gets it)
            dialled.set_exception(exc)


class _Sentinels(Sentinel):
    """Sentinels of which each is asked once: that no primary is known is no reason to ask all of them again."""

    def __init__(self, given: Sentinel) -> None:
        vars(self).update(vars(given))
        once = Retry(NoBackoff(), 0)
        self.sentinels = [
            Redis.from_pool(ConnectionPool(**_bounded(client.connection_pool, once))) for client in given.sentinels
        ]

    def discover_master(self, service_name: str) -> Any:  # noqa: ANN401  (an address)
        """Return the primary's address."""
        try:
            return super().discover_master(service_name)  # type: ignore[no-untyped-call]
        except MasterNotFoundError as exc:
            raise RedisTimeoutError(str(exc)) from exc


def _client(alias: str) -> Any:  # noqa: ANN401
    from django_redis import get_redis_connection  # noqa: PLC0415  (an extra)

    client = get_redis_connection(alias, write=True)
    if type(client) is not Redis:
        return client
    pool = client.connection_pool
    # A dead pooled connection is replaced at once; a server that hangs is not asked twice.
    retry = Retry(NoBackoff(), 1, supported_errors=(RedisConnectionError,))
    if type(pool) is ConnectionPool:
        return Redis.from_pool(ConnectionPool(**_bounded(pool, retry)))
    if type(pool) is SentinelConnectionPool:
        return Redis.from_pool(_of_primary(pool, retry))
    return client


def _of_primary(pool: SentinelConnectionPool, retry: Retry) -> SentinelConnectionPool:
    """Return a pool to the same service, whichever server that is."""
    arguments = _bounded(pool, retry) | {"check_connection": pool.check_connection}
    arguments["connection_class"] = _dropping(pool.connection_class)
    del arguments["connection_pool"]  # the other pool's own
    return SentinelConnectionPool(pool.service_name, _Sentinels(pool.sentinel_manager), **arguments)  # type: ignore[no-untyped-call]


def _dropping(connection_class: Any) -> type[Any]:  # noqa: ANN401  (either of two that have no types)
    """Return a class of connections that a timeout ends.

    Those of Sentinel leave that to the retry. One that is used again is still one to the primary of before, and what
    it reads next is the late reply: another key's answer.
    """

    class Dropping(connection_class):  # type: ignore[misc]
        def read_response(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            try:
                return super().read_response(*args, **kwargs)
            except RedisTimeoutError:
                self.disconnect()
                raise

    return Dropping


def _bounded(pool: ConnectionPool, retry: Retry) -> dict[str, Any]:
    """Return the arguments that make a pool like this one, with bounds where it has none."""
    given = {name: value for name, value in pool.connection_kwargs.items() if value is not None}
    own = {"connection_class": pool.connection_class, "max_connections": pool.max_connections, "retry": retry}
    return {**BOUNDS, **given, **own}
