"""Hints over Redis streams: one per stage, of capped length.

A position is remembered per stage and read on from there, never blindly from the end: what was sent
between a claim and the first read is still in the stream. All streams of a namespace are in one hash slot,
so that a cluster can read several at once.
"""

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any

from redis.exceptions import RedisClusterException, RedisError

from singleflight_app.domain.records import Hint
from singleflight_app.telemetry.signals import announce, coordination_failed

ERRORS = (RedisError, RedisClusterException)  #: a cluster's client raises both
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
        self._prefix = f"{{singleflight:{namespace}}}:hints:"
        self._positions: dict[str, bytes] = {}
        self._paused_until = float("-inf")

    def publish(self, hints: Sequence[tuple[str, Hint]]) -> bool:
        """Send hints to every process that listens to their stages, in one trip; False: some may not have arrived."""
        if not hints:
            return True
        if self._monotonic() < self._paused_until:
            return False
        try:
            with self._client.pipeline(transaction=False) as trip:
                for stage, hint in hints:
                    fields = {"d": hint.digest, "g": hint.generation, **({"f": 1} if hint.is_floor else {})}
                    trip.xadd(self._prefix + stage, fields, maxlen=self._length, approximate=True)
                trip.execute()
        except ERRORS as exc:
            self._paused_until = self._monotonic() + PAUSE
            announce(coordination_failed, component="notify", error=type(exc).__name__)
            return False
        return True

    def open(self, stage: str, *, back: float = 0.0) -> bool:
        """Remember the stream's end, less `back` seconds, as the stage's position; True: none was known before."""
        name = self._prefix + stage
        if name in self._positions:
            return False
        try:
            newest = self._client.xrevrange(name, count=1)
        except ERRORS as exc:
            raise ConnectionError(str(exc)) from exc
        self._positions[name] = _earlier(newest[0][0], back) if newest else b"0-0"
        return True

    def close(self) -> None:
        """Close the client's connections; they are made again when somebody needs one."""
        with suppress(*ERRORS):
            self._client.close()

    def read(self, stages: Collection[str], timeout: float) -> list[Hint]:
        """Wait up to `timeout` seconds for hints of opened stages; ConnectionError when Redis is away."""
        names = {name: self._positions[name] for name in (self._prefix + stage for stage in stages)}
        try:
            answer = self._client.xread(names, count=_BATCH, block=max(1, int(timeout * 1000)))
        except ERRORS as exc:
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
