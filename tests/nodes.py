"""Nodes of a cluster inside one test process: each is all that a process has once, with a name of its own.

Two of them share nothing but the servers, so what they agree on, processes agree on. What only a real
process can show (a kill, a fork, a pause) is in `tests/processes` and `tests/faults`.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

from pydantic import JsonValue

from singleflight_app.conf import get_settings
from singleflight_app.domain.flight import Outcome
from singleflight_app.domain.keys import FlightKey, Global, flight_key
from singleflight_app.engine.call import Call
from singleflight_app.engine.local import LocalFlight
from singleflight_app.outcomes.codec import for_policy
from singleflight_app.telemetry import ledger
from singleflight_app.wiring import Runtime
from tests.waiting import until

R = TypeVar("R")


class Node:
    """One process of the cluster, as far as flights are concerned."""

    def __init__(self) -> None:
        self.runtime = Runtime(get_settings())
        ledger.disconnect()  # it counts for one runtime only, and this one ends before the tests do

    @property
    def name(self) -> str:
        """What stands in the `owner` column."""
        return self.runtime.identity.name

    def key(self, stage: str, request: Mapping[str, object], *, scope: str | Global = "test") -> FlightKey:
        """Return the key of a request."""
        settings = self.runtime.settings
        return flight_key(settings.namespace, stage, scope, request, versions=(settings.policy(stage).version, ""))

    def run(
        self,
        stage: str,
        request: Mapping[str, object],
        function: Callable[[], R],
        *,
        scope: str | Global = "test",
        result_type: Any = JsonValue,  # noqa: ANN401  (any annotation that pydantic knows)
        wait_timeout: float | None = None,
        is_fresh: bool = False,
        accept: Callable[[R], object] | None = None,
    ) -> Outcome[R]:
        """Ask as `singleflight_app.run` does, on this node, and let Redis hear of it before anybody else asks."""
        policy = self.runtime.settings.policy(stage)
        budget = policy.wait if wait_timeout is None else wait_timeout
        key = self.key(stage, request, scope=scope)
        coordinator = self.runtime.coordinator
        try:
            codec = for_policy(result_type, policy, self.runtime.keys)
            return coordinator.run(Call(key, policy, function, codec, budget, is_fresh=is_fresh, accept=accept))
        finally:
            coordinator.drain(20)

    async def arun(
        self,
        stage: str,
        request: Mapping[str, object],
        function: Callable[[], Awaitable[R]],
        *,
        scope: str | Global = "test",
        result_type: Any = JsonValue,  # noqa: ANN401  (any annotation that pydantic knows)
        wait_timeout: float | None = None,
    ) -> Outcome[R]:
        """Ask as `singleflight_app.arun` does, on this node."""
        policy = self.runtime.settings.policy(stage)
        budget = policy.wait if wait_timeout is None else wait_timeout
        key = self.key(stage, request, scope=scope)
        codec = for_policy(result_type, policy, self.runtime.keys)
        return await self.runtime.coordinator.arun(Call(key, policy, function, codec, budget))

    def leftovers(self) -> dict[str, object]:
        """Return what this node still holds for callers and calls: nothing, once all of them are gone."""
        coordinator = self.runtime.coordinator
        held = {
            "lines": coordinator._local._flights,
            "watches": coordinator._following._watches,
            "heard stages": coordinator._following._waiting,
            "places": +coordinator._limits._held,
            "callers without a place": coordinator._limits._waiting,
            "leases": coordinator.running(),
        }
        return {name: things for name, things in held.items() if things}

    def wait_until_idle(self) -> None:
        """Return once this node holds nothing any more."""
        until(lambda: not self.leftovers(), f"an idle node; it holds {self.leftovers()}")

    @contextmanager
    def without_a_beat(self) -> Iterator[None]:
        """Let the node's one lease get no beat in the block, and one right after it."""
        heartbeat = self.runtime.coordinator._settling.heartbeat
        (lease,) = heartbeat.held()
        lease.beat_at = float("inf")
        yield
        lease.beat_at = 0.0
        heartbeat.beat()

    def expire(self, key: FlightKey) -> None:
        """End the lease of a running flight, as an operator does."""
        row = self.runtime.queue.find(key.digest)
        assert row is not None
        assert self.runtime.queue.expire_lease(row.flight_id, row.generation, actor="mira") is not None

    def forget(self, key: FlightKey) -> bool:
        """Drop a key's outcome as `forget` does, on this node."""
        forgotten = self.runtime.store.forget(digest=key.digest)
        if forgotten is None:
            return False
        self.runtime.coordinator.replaying.forgotten(forgotten)
        self.runtime.hint(forgotten)
        return not forgotten.already

    def remembers(self, key: FlightKey) -> bool:
        """Tell whether this node's replay memory has the key's outcome."""
        return self.runtime.coordinator.replaying._memory.look(key.digest) is not None

    def line_of(self, key: FlightKey, *, is_fresh: bool = False) -> LocalFlight | None:
        """What the callers of this node share who ask for a key just now."""
        return self.runtime.coordinator._local._flights.get((key.digest, is_fresh))

    def callers_of(self, key: FlightKey) -> int:
        """How many callers of this node ask for a key just now, its owner included."""
        line = self.line_of(key)
        return 0 if line is None else line.callers

    def wait_for_another_caller(self, key: FlightKey, line: LocalFlight | None) -> None:
        """Return once one caller more than the one there was has joined `line`, or begun another."""

        def has_come() -> bool:
            now = self.line_of(key)
            return now is not None and (now is not line or now.callers > 1)

        until(has_come, f"another caller of {key}")

    def wait_for_callers(self, key: FlightKey, count: int) -> None:
        """Return once so many callers of this node ask for the key."""
        until(lambda: self.callers_of(key) >= count, f"{count} callers of {key}")

    def wait_for_follower(self, stage: str, count: int = 1) -> None:
        """Return once callers of this node follow flights of the stage, or wait for room to call."""
        following = self.runtime.coordinator._following
        until(lambda: following._waiting[stage] >= count, f"{count} who wait in {stage}")


@contextmanager
def nodes(count: int) -> Iterator[list[Node]]:
    """Have `count` nodes; their leases are released and their connections closed at the end."""
    with ExitStack() as stack:
        found = []
        for _ in range(count):
            node = Node()
            stack.callback(node.runtime.close)
            found.append(node)
        yield found
