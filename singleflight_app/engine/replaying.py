"""Stored outcomes near the caller: the replay memory of the process and the replay cache, under one floor.

Both hold copies. What they are offered carries what they need to refuse it: an older outcome never comes back.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from singleflight_app.domain.exceptions import CoordinationUnavailable, ResultUnreadable, seconds
from singleflight_app.domain.flight import Settled, StoredResult
from singleflight_app.domain.records import FLOORS, Forgotten, Hint, Kept, Looked, Ticket
from singleflight_app.domain.states import Layer, Role
from singleflight_app.engine.call import Asked, Call, Ended
from singleflight_app.engine.ports import FlightStore, Memory, ReplayCache
from singleflight_app.engine.spreading import Spreading
from singleflight_app.telemetry.signals import announce, flight_forgotten, result_dropped

R = TypeVar("R")


class Replaying:
    """What one process replays, and keeps for replay."""

    def __init__(
        self,
        store: FlightStore,
        cache: ReplayCache,
        memory: Memory,
        spreading: Spreading,
        *,
        on_remembered: Callable[[float], object],
    ) -> None:
        self._store, self._cache, self._memory, self._spreading = store, cache, memory, spreading
        self._on_remembered = on_remembered  #: called with the monotonic time until which an outcome is remembered

    def from_memory(self, call: Call[R]) -> Ended[R] | None:
        """Return what this process remembers of the key."""
        if not (call.policy.replay_memory and call.may_replay):
            return None
        held = self._memory.look(call.key.digest)
        copy = None if held is None else copy_of(call, held)
        return None if held is None or copy is None else Ended(held, Role.REPLAY, Layer.MEMORY, copy=copy)

    async def from_cache(self, asked: Asked[R], as_of: float) -> Ended[R] | Ticket | None:
        """Return what Redis has of the key, or the ticket for writing it; `as_of` is monotonic, before the look."""
        call = asked.call
        if not (call.policy.replay_cache and call.may_replay):
            return None
        looked: Looked = await asked.rim.do(partial(self._cache.look, call.key.digest))
        copy = None if looked.settled is None else copy_of(call, looked.settled)
        if looked.settled is None or copy is None:
            return looked.ticket
        self._remember(call, looked.settled, looked.remaining, as_of)
        return Ended(looked.settled, Role.REPLAY, Layer.REDIS, copy=copy)

    def ticket(self, call: Call[R]) -> Ticket | None:
        """Return the ticket of a fresh call, which looked for no stored outcome, once its floor is raised."""
        return self._cache.look(call.key.digest).ticket if call.policy.replay_cache else None

    def keep(self, call: Call[R], settled: Settled, *, ticket: Ticket | None, remaining: float, as_of: float) -> None:
        """Put a success nearer to the next caller: `remaining` seconds of its TTL were left at monotonic `as_of`."""
        if settled.result is None:
            return
        self._remember(call, settled, remaining, as_of)
        if call.policy.replay_cache and not settled.result.location:  # what is too large for a row is so for Redis
            self._spreading.keep(Kept(call.key.digest, settled, ticket, remaining, as_of))

    def drop(self, call: Call[R], settled: Settled) -> None:
        """Forget an unreadable result, this generation and no other."""
        # The next claim says if the database is out of reach; the grant over this row raises Redis's floor again.
        with suppress(CoordinationUnavailable):
            dropped = self._store.forget(flight_id=settled.flight_id, generation=settled.generation)
            if dropped is not None:
                self._raise_floor(call.key.digest, dropped.generation)
        _announce_dropped(call, settled, "unreadable")

    def pass_over(self, asked: Asked[R], settled: Settled) -> None:
        """Look for a newer outcome than one that this process can't open: others can, so it is not dropped."""
        asked.above = settled.generation
        _announce_dropped(asked.call, settled, "unknown")

    def forgotten(self, forgotten: Forgotten) -> None:
        """Raise the floor of a forgotten outcome in every layer.

        CoordinationUnavailable if Redis does not confirm it; it is tried again as long as this process lives.
        """
        if not forgotten.already:
            facts = {"flight_id": forgotten.flight_id, "generation": forgotten.generation}
            announce(flight_forgotten, stage=forgotten.stage, **facts)
        try:
            self._raise_floor(forgotten.digest, forgotten.generation)
        except CoordinationUnavailable:
            self._spreading.floor(forgotten.digest, forgotten.generation, seconds=float("inf"))
            raise

    def replaced(self, digest: bytes, generation: int, remaining: float) -> None:
        """Raise the floor over an outcome that a new flight replaces; what Redis can't confirm now is tried again.

        `remaining` seconds of its TTL are left. Of a forgotten outcome `forget` has said already if it could not.
        """
        try:
            self._raise_floor(digest, generation)
        except CoordinationUnavailable:
            self._spreading.floor(digest, generation, seconds=remaining)

    def _raise_floor(self, digest: bytes, generation: int) -> None:
        self._memory.raise_floor(digest, generation)
        self._spreading.hint(FLOORS, Hint(digest, generation, is_floor=True))
        self._cache.raise_floor(digest, generation)

    def _remember(self, call: Call[R], settled: Settled, remaining: float, as_of: float) -> None:
        is_at_hand = settled.result is not None and bool(settled.result.payload)
        if call.policy.replay_memory and is_at_hand:
            until = as_of + min(seconds(call.policy.replay_memory_ttl), remaining)
            self._memory.keep(call.key.digest, settled, until=until)
            self._on_remembered(until)


def _announce_dropped(call: Call[Any], settled: Settled, reason: str) -> None:
    facts = {"flight_id": settled.flight_id, "generation": settled.generation}
    announce(result_dropped, stage=call.key.stage, **facts, reason=reason)


def copy_of(call: Call[R], settled: Settled) -> tuple[R] | None:
    """Return the decoded value in a tuple of one; None: it can't be read."""
    try:
        return None if settled.result is None else (opened(call, settled.result),)
    except ResultUnreadable:
        return None


def opened(call: Call[R], result: StoredResult) -> R:
    """Return the decoded value, or raise ResultUnreadable."""
    return call.codec.decode(result, call.key.digest)
