"""From a key to a claim: reads the row, decides, and sends the compare-and-set that the decision asks for."""

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection
from typing import Any

from singleflight_app.domain.decision import Asking, decide, is_no_answer
from singleflight_app.domain.exceptions import seconds
from singleflight_app.domain.records import FlightSnapshot, Full
from singleflight_app.domain.states import Claim
from singleflight_app.engine.call import Asked, Call, Follow, Found, Granted
from singleflight_app.engine.failures import LOST_MESSAGE
from singleflight_app.engine.ports import FlightStore
from singleflight_app.telemetry.signals import announce, flight_lost, lease_granted, lease_taken_over

_HANDED_OUT = 10_000  #: generations remembered; older ones are long over
TRIES = 3  #: double clicks commit inside each other's statements; the second try nearly always has the row
_REPLAYS = {Claim.REPLAY_SUCCESS, Claim.REPLAY_FAILURE}

Step = Granted | Found | Follow | Full


class Claiming:
    """Makes claims for one process."""

    def __init__(
        self,
        store: FlightStore,
        *,
        owner: str,
        running: Callable[[], Collection[int]],
        on_replaced: Callable[[bytes, int, float], object],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._owner, self._on_replaced = store, owner, on_replaced
        self._running, self._monotonic = running, monotonic
        self._lock = threading.Lock()
        self._claims: Counter[bytes] = Counter()  # under way, by key
        self._handed_out: OrderedDict[int, None] = OrderedDict()  # generations that somebody here ran, oldest first

    def claim(self, asked: Asked[Any], *, no_room: Full | None = None) -> Step:
        """Return what this caller is: owner, replayer or follower. After `TRIES` lost races it follows.

        With `no_room` for its call it becomes no owner: where it could, that is the answer.
        """
        digest = asked.call.key.digest
        with self._lock:
            self._claims[digest] += 1
        try:
            step = self._claim(asked, no_room)
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
                self._handed_out.popitem(last=False)

    def _may_adopt(self, digest: bytes, generation: int) -> bool:
        """Tell an orphan grant from one that was handed out, or whose reply another claim of this process awaits.

        A worker and a caller of one process may claim the same key side by side.
        """
        with self._lock:
            return generation not in self._handed_out and self._claims[digest] == 1

    def _claim(self, asked: Asked[Any], no_room: Full | None) -> Step:
        row: FlightSnapshot | None = None
        wanted: Claim | None = None
        for _ in range(TRIES):
            sent_at = self._monotonic()
            answer = self._read_or_insert(asked, no_room)
            if answer is None:
                continue
            if isinstance(answer, Full):
                return answer
            is_granted, row = answer
            if is_granted:
                return self._granted(asked.call, row, Claim.OWNER_NEW, sent_at)
            claim = decide(row, self._asking(asked))
            step = self._without_a_move(asked, row, claim, sent_at)
            if step is None and claim is Claim.OWNER_LOST:
                self._lose(asked.call, row)
            elif step is None:
                step = no_room or self._moved(asked, row, claim, wanted, sent_at)
                wanted = claim
            if step is not None:
                return step
        # A settled row that nobody could grant is locked by somebody: its end is not this caller's answer.
        return Follow(None) if row is None or row.is_settled else _follow(asked, row)

    def _without_a_move(self, asked: Asked[Any], row: FlightSnapshot, claim: Claim, sent_at: float) -> Step | None:
        """Return what the row is to this caller as it stands; None: the caller may move it."""
        if claim in _REPLAYS:
            return Found(row.settled(), row.outcome_remaining or 0.0, sent_at)
        # Its own owner may have settled and let go of it since the row was read; that is no orphan either.
        is_ours = claim is Claim.ORPHAN_GRANT and not self._may_adopt(asked.call.key.digest, row.generation)
        if is_ours or claim in {Claim.FOLLOWER_WAIT, Claim.WAIT_OUT}:
            return _follow(asked, row)
        return None

    def _moved(
        self, asked: Asked[Any], row: FlightSnapshot, claim: Claim, wanted: Claim | None, sent_at: float
    ) -> Step | None:
        """Grant the flight to this caller; None: the row moved, or is being moved. A lost reply is found again here."""
        if claim is Claim.ORPHAN_GRANT:
            return self._granted(asked.call, row, wanted or claim, sent_at)
        return self._grant(asked, row, claim)

    def _read_or_insert(self, asked: Asked[Any], no_room: Full | None) -> tuple[bool, FlightSnapshot] | Full | None:
        answer = self._sent(asked.call, no_room)
        if asked.call.is_fresh and asked.above is None:
            # What was there when the caller asked: nothing, if a rival's row is not visible yet.
            asked.above = 0
            if answer is not None and not isinstance(answer, Full):
                is_granted, row = answer
                asked.above = 0 if is_granted else row.generation
        return answer

    def _sent(self, call: Call[Any], no_room: Full | None) -> tuple[bool, FlightSnapshot] | Full | None:
        if call.pending is not None:
            row = self._store.read(call.pending)
            return None if row is None else (False, row)
        if no_room is not None:
            row = self._store.find(call.key.digest)
            return no_room if row is None else (False, row)
        return self._store.claim(call.key, label=call.label, owner=self._owner, policy=call.policy)

    def _asking(self, asked: Asked[Any]) -> Asking:
        call = asked.call
        return Asking(
            policy=call.policy,
            above=asked.above,
            owner=self._owner,
            running=self._running(),
            may_take_over=self._store.may_take_over(call.policy.lease),
            starts_pending=call.pending is not None,
            followed=asked.flight.generation,
        )

    def _grant(self, asked: Asked[Any], row: FlightSnapshot, claim: Claim) -> Granted | Full | None:
        call, sent_at = asked.call, self._monotonic()
        granted = self._store.grant(
            row,
            claim,
            owner=self._owner,
            stage=call.key.stage,
            policy=call.policy,
            starts_pending=call.pending is not None,
            is_fresh=asked.is_fresh,
        )
        if granted is None or isinstance(granted, Full):
            return granted
        if row.forgotten or asked.is_fresh:
            self._on_replaced(call.key.digest, row.generation, row.outcome_remaining or 0.0)
        return self._granted(call, granted, claim, sent_at)

    def _granted(self, call: Call[Any], row: FlightSnapshot, claim: Claim, sent_at: float) -> Granted:
        facts = {"stage": call.key.stage, "flight_id": row.flight_id, "generation": row.generation}
        announce(lease_granted, **facts, claim=claim)
        if claim is Claim.OWNER_TAKEOVER:
            announce(lease_taken_over, **facts)
        return Granted(row, claim, sent_at)

    def _lose(self, call: Call[Any], row: FlightSnapshot) -> None:
        message = LOST_MESSAGE.format(count=row.takeovers + 1)
        if self._store.lose(row.flight_id, row.generation, ttl=seconds(call.policy.failure_ttl), message=message):
            facts = {"stage": call.key.stage, "flight_id": row.flight_id, "generation": row.generation}
            announce(flight_lost, **facts, reason="gave_up")


def _follow(asked: Asked[Any], row: FlightSnapshot) -> Follow:
    return Follow(row, waits_out=is_no_answer(row, asked.above))
