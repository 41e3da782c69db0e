"""From a key to a claim: reads the row, decides, and sends the compare-and-set that the decision asks for."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any

from singleflight_app.domain.decision import Asking, decide
from singleflight_app.domain.exceptions import CoordinationUnavailable, seconds
from singleflight_app.domain.records import FlightSnapshot
from singleflight_app.domain.states import Claim
from singleflight_app.engine.call import Call, Follow, Found, Granted
from singleflight_app.engine.failures import LOST_MESSAGE
from singleflight_app.engine.ports import FlightStore, ReplayCache
from singleflight_app.telemetry.signals import announce, lease_granted, lease_taken_over

_HANDED_OUT = 10_000  #: generations remembered; older ones are long over
TRIES = 3  #: double clicks commit inside each other's statements; the second try nearly always has the row
_GRANTS = {Claim.OWNER_NEW, Claim.OWNER_TAKEOVER, Claim.OWNER_RETRY}
_REPLAYS = {Claim.REPLAY_SUCCESS, Claim.REPLAY_FAILURE}

Step = Granted | Found | Follow


class Claiming:
    """Makes claims for one process."""

    def __init__(
        self,
        store: FlightStore,
        cache: ReplayCache,
        *,
        owner: str,
        running: Callable[[], Collection[int]],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._cache, self._owner = store, cache, owner
        self._running, self._monotonic = running, monotonic
        self._lock = threading.Lock()
        self._claims: Counter[bytes] = Counter()  # under way, by key
        self._handed_out: dict[int, None] = {}  # generations that somebody here ran, oldest first

    def claim(self, call: Call[Any]) -> Step:
        """Return what this caller is: owner, replayer or follower. After `TRIES` lost races it follows."""
        digest = call.key.digest
        with self._lock:
            self._claims[digest] += 1
        try:
            step = self._claim(call)
            if isinstance(step, Granted):
                self._remember(step.row.generation)
            return step
        finally:
            with self._lock:
                self._claims[digest] -= 1
                if not self._claims[digest]:
                    del self._claims[digest]

    def _remember(self, generation: int) -> None:
        with self._lock:
            self._handed_out[generation] = None
            while len(self._handed_out) > _HANDED_OUT:
                del self._handed_out[next(iter(self._handed_out))]

    def _may_adopt(self, digest: bytes, generation: int) -> bool:
        """Tell an orphan grant from one that was handed out, or whose reply another claim of this process awaits.

        A worker and a caller of one process may claim the same key side by side.
        """
        with self._lock:
            return generation not in self._handed_out and self._claims[digest] == 1

    def _claim(self, call: Call[Any]) -> Step:
        row: FlightSnapshot | None = None
        wanted: Claim | None = None
        for _ in range(TRIES):
            sent_at = self._monotonic()
            answer = self._read_or_insert(call)
            if answer is None:
                continue
            is_granted, row = answer
            if is_granted:
                return self._granted(call, row, Claim.OWNER_NEW, sent_at)
            claim = decide(row, self._asking(call))
            if claim is Claim.ORPHAN_GRANT:
                if not self._may_adopt(call.key.digest, row.generation):
                    return Follow(row)
                return self._granted(call, row, wanted or claim, sent_at)
            if claim in _REPLAYS:
                return Found(row.settled(), row.outcome_remaining or 0.0, sent_at)
            if claim in _GRANTS:
                wanted = claim
                if (step := self._grant(call, row, claim)) is not None:
                    return step
            elif claim is Claim.OWNER_LOST:
                self._lose(call, row)
            else:
                return Follow(row)
        # A settled row that nobody could grant is locked by somebody: its end is not this caller's answer.
        return Follow(None if row is None or row.is_settled else row)

    def _read_or_insert(self, call: Call[Any]) -> tuple[bool, FlightSnapshot] | None:
        if call.pending is not None:
            row = self._store.read(call.pending)
            return None if row is None else (False, row)
        return self._store.claim(call.key, label=call.label, owner=self._owner, lease=call.policy.lease)

    def _asking(self, call: Call[Any]) -> Asking:
        return Asking(
            policy=call.policy,
            owner=self._owner,
            running=self._running(),
            may_take_over=self._store.may_take_over(call.policy.lease),
            starts_pending=call.pending is not None,
        )

    def _grant(self, call: Call[Any], row: FlightSnapshot, claim: Claim) -> Granted | None:
        sent_at = self._monotonic()
        granted = self._store.grant(
            row, claim, owner=self._owner, policy=call.policy, starts_pending=call.pending is not None
        )
        if granted is None:
            return None
        if row.forgotten:
            # `forget` raised this floor already, or told its caller that it could not.
            with suppress(CoordinationUnavailable):
                self._cache.raise_floor(call.key.digest, row.generation)
        return self._granted(call, granted, claim, sent_at)

    def _granted(self, call: Call[Any], row: FlightSnapshot, claim: Claim, sent_at: float) -> Granted:
        facts = {"stage": call.key.stage, "flight_id": row.flight_id, "generation": row.generation}
        announce(lease_granted, **facts, claim=claim)
        if claim is Claim.OWNER_TAKEOVER:
            announce(lease_taken_over, **facts)
        return Granted(row, claim, sent_at)

    def _lose(self, call: Call[Any], row: FlightSnapshot) -> None:
        message = LOST_MESSAGE.format(count=row.takeovers + 1)
        self._store.lose(row.flight_id, row.generation, ttl=seconds(call.policy.failure_ttl), message=message)
