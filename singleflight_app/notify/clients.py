"""The Redis of a django-redis alias as the app uses it: its primary, dialled on first use, given up on soon.

Plain Redis and Sentinel get connections of the app's own, which don't back off for seconds. What another connection
factory makes is used as it is; that of `contrib.redis_cluster` is bounded by itself.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from copy import copy
from functools import partial
from typing import Any

from redis import ConnectionPool, Redis
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel, SentinelConnectionPool

BOUNDS = {"socket_timeout": 1.0, "socket_connect_timeout": 1.0}
WAIT_FOR = 1.0  #: seconds that a caller waits until Redis is found; the search goes on without it


def connect(alias: str) -> Any:  # noqa: ANN401  (redis.Redis or a cluster client)
    """Return a client of a django-redis alias that dials on first use, and again if that failed."""
    return _Undialled(partial(_client, alias))


class Together:
    """Something that may take long, done by one thread for all who need it meanwhile; none waits for it very long.

    A server that hangs costs a timeout, and the search for another one asks several: that must not be the time of
    one caller, let alone of each in turn.
    """

    def __init__(self, act: Callable[..., Any]) -> None:
        self._act, self._lock = act, threading.Lock()
        self._under_way: Future[Any] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  (what `act` takes and returns)
        """Return what `act` does, or what it is doing already with the arguments of whoever came first."""
        with self._lock:
            future = self._under_way
            if future is None or future.done():
                future = self._under_way = Future()
                threading.Thread(
                    target=self._do, args=(future, args, kwargs), name="singleflight-dial", daemon=True
                ).start()
        try:
            return future.result(WAIT_FOR)
        except TimeoutError:
            raise RedisTimeoutError(f"no Redis was found within {WAIT_FOR:g} s") from None

    def _do(self, future: "Future[Any]", args: Any, kwargs: Any) -> None:  # noqa: ANN401
        try:
            future.set_result(self._act(*args, **kwargs))
        except Exception as exc:  # noqa: BLE001  (whoever waits for it gets it)
            future.set_exception(exc)


class _Undialled:
    """A client once somebody uses it: that of a cluster asks its nodes when it is made."""

    def __init__(self, dial: Callable[[], Any]) -> None:
        self._dial = Together(dial)
        self._client: Any = None

    def close(self) -> None:
        """Close the client's connections, if there is one; it makes new ones when somebody needs them."""
        if self._client is not None:
            self._client.close()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  (whatever the client has)
        if self._client is None:
            self._client = self._dial()
        return getattr(self._client, name)


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
        # On a list of this call's own: redis-py moves whoever answered to its head while other threads go through it,
        # and these ask one that is away twice, and the one that would have answered never.
        asked = copy(self)
        asked.sentinels = list(self.sentinels)
        try:
            address = super(_Sentinels, asked).discover_master(service_name)  # type: ignore[no-untyped-call]
        except MasterNotFoundError as exc:
            raise RedisTimeoutError(str(exc)) from exc
        self.sentinels = asked.sentinels
        return address


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
