"""Hints over Redis streams: one per stage, of capped length.

A position is remembered per stage and read on from there, never blindly from the end: what was sent
between a claim and the first read is still in the stream.
"""

import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

from redis.exceptions import RedisError

from singleflight_app.domain.records import Hint
from singleflight_app.telemetry.signals import announce, coordination_failed

PAUSE = 1.0  #: seconds without sending after a failure
_BATCH = 1000


class RedisStreamNotifier:
    """Sends and hears hints through a redis-py client."""

    is_listening = True

    def __init__(
        self,
        client: Any,  # noqa: ANN401  (redis.Redis or a cluster client)
        *,
        namespace: str,
        length: int,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client, self._length, self._monotonic = client, length, monotonic
        self._prefix = f"singleflight:{namespace}:hints:"
        self._positions: dict[str, bytes] = {}
        self._paused_until = float("-inf")

    def publish(self, hints: Sequence[tuple[str, Hint]]) -> None:
        """Send hints to every process that listens to their stages, in one trip."""
        if not hints or self._monotonic() < self._paused_until:
            return
        try:
            with self._client.pipeline(transaction=False) as trip:
                for stage, hint in hints:
                    fields = {"d": hint.digest, "g": hint.generation, **({"f": 1} if hint.is_floor else {})}
                    trip.xadd(self._prefix + stage, fields, maxlen=self._length, approximate=True)
                trip.execute()
        except RedisError as exc:
            self._paused_until = self._monotonic() + PAUSE
            announce(coordination_failed, component="notify", error=type(exc).__name__)

    def open(self, stage: str, *, back: float = 0.0) -> bool:
        """Remember the stream's end, less `back` seconds, as the stage's position; True: none was known before."""
        name = self._prefix + stage
        if name in self._positions:
            return False
        try:
            newest = self._client.xrevrange(name, count=1)
        except RedisError as exc:
            raise ConnectionError(str(exc)) from exc
        self._positions[name] = _earlier(newest[0][0], back) if newest else b"0-0"
        return True

    def read(self, stages: Collection[str], timeout: float) -> list[Hint]:
        """Wait up to `timeout` seconds for hints of opened stages; ConnectionError when Redis is away."""
        names = {name: self._positions[name] for name in (self._prefix + stage for stage in stages)}
        try:
            answer = self._client.xread(names, count=_BATCH, block=max(1, int(timeout * 1000)))
        except RedisError as exc:
            # A server that comes back empty would count from a smaller id; the poll covers the gap.
            self._positions.clear()
            raise ConnectionError(str(exc)) from exc
        hints = []
        for name, messages in answer.items() if isinstance(answer, dict) else answer:
            self._positions[name.decode()] = messages[-1][0]
            hints += [Hint(fields[b"d"], int(fields[b"g"]), b"f" in fields) for _, fields in messages]
        return hints


def _earlier(position: bytes, back: float) -> bytes:
    """Return a position some seconds before one: it begins with its time in milliseconds."""
    return position if not back else b"%d-0" % max(0, int(position.partition(b"-")[0]) - int(back * 1000))


def connect(alias: str) -> Any:  # noqa: ANN401  (redis.Redis or a cluster client)
    """Return a client on a django-redis alias's primary that fails fast instead of backing off for seconds."""
    from django_redis import get_redis_connection  # noqa: PLC0415  (an extra)
    from redis import ConnectionPool, Redis  # noqa: PLC0415
    from redis.backoff import NoBackoff  # noqa: PLC0415
    from redis.exceptions import ConnectionError as RedisConnectionError  # noqa: PLC0415
    from redis.retry import Retry  # noqa: PLC0415

    client = get_redis_connection(alias, write=True)
    if type(client) is not Redis or type(client.connection_pool) is not ConnectionPool:
        return client
    pool = client.connection_pool
    bounds = {"socket_timeout": 1.0, "socket_connect_timeout": 1.0}
    # A dead pooled connection is replaced at once; a server that hangs is not asked twice.
    retry = Retry(NoBackoff(), 1, supported_errors=(RedisConnectionError,))
    given = {name: value for name, value in pool.connection_kwargs.items() if value is not None}
    return Redis.from_pool(
        ConnectionPool(
            connection_class=pool.connection_class,
            max_connections=pool.max_connections,
            **{**bounds, **given, "retry": retry},
        )
    )
