"""Other processes of the cluster, as a test plays them: each holds one flight."""

import itertools
from types import TracebackType
from typing import Generic, Self, TypeVar

from singleflight_app.domain.decision import Asking, decide
from singleflight_app.domain.exceptions import InvalidRequest, LeaseLost
from singleflight_app.domain.flight import Failure, Settled, StoredResult
from singleflight_app.domain.records import Beat, FlightSnapshot, Full
from singleflight_app.domain.states import Claim, Status
from singleflight_app.engine.call import Call
from singleflight_app.engine.failures import failure_of
from singleflight_app.engine.settling import ttl_of
from singleflight_app.testing.world import World

R = TypeVar("R")

_GRANTED = {Claim.OWNER_NEW, Claim.OWNER_RETRY, Claim.OWNER_TAKEOVER}
_REFUSED = {
    Claim.REPLAY_SUCCESS: "a stored value would answer it; forget() it first",
    Claim.REPLAY_FAILURE: "a stored failure would answer it; forget() it first",
    Claim.OWNER_LOST: "its owners have died too often (max_takeovers)",
}
_LEFT = Failure("singleflight_app.FlightCancelled", "its process left before the call ended", retryable=True)
_numbers = itertools.count(1)


class Elsewhere(Generic[R]):
    """Another process that runs a flight, healthily until one of the methods ends that.

    In a `with` it leaves in order at the end of the block, if its call has not ended by then.
    """

    def __init__(self, world: World, call: Call[R]) -> None:
        self._world, self._call = world, call
        self._owner = f"elsewhere:{next(_numbers)}"
        self._row = self._claimed()
        #: when the next beat is due, by the clock of the test
        self.next_beat = world.clock.now() + call.policy.heartbeat
        world.elsewhere.append(self)

    def __enter__(self) -> Self:
        """Return the process, whose call runs."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Leave in order, if the call still runs: whoever waits takes the flight at once."""
        if self in self._world.elsewhere:
            self._settled(Status.CANCELLED, failure=_LEFT)

    @property
    def generation(self) -> int:
        """The generation that this process runs."""
        return self._row.generation

    def succeed(self, value: R) -> None:
        """End the call with a value, for all who wait. LeaseLost: another owner came meanwhile."""
        self._settle(Status.SUCCEEDED, result=self._call.codec.encode(value, self._call.key.digest))

    def fail(self, error: Exception) -> None:
        """End the call with an error, for all who wait. LeaseLost: another owner came meanwhile."""
        self._settle(Status.FAILED, failure=failure_of(error, self._call.policy))

    def die(self) -> None:
        """Beat no more. The lease is left, and runs out when the test lets time pass; a late end may still come."""
        if self in self._world.elsewhere:
            self._world.elsewhere.remove(self)

    def beat(self) -> None:
        """Renew the lease, if that is due."""
        now = self._world.clock.now()
        if now >= self.next_beat:
            beat = Beat(self._row.flight_id, self.generation, self._call.policy.lease)
            self._world.flights.renew([beat], owner=self._owner)
            self.next_beat = now + self._call.policy.heartbeat

    def _settle(self, status: Status, *, result: StoredResult | None = None, failure: Failure | None = None) -> None:
        if not self._settled(status, result=result, failure=failure):
            raise LeaseLost(self._row.flight_id, self.generation)

    def _settled(self, status: Status, *, result: StoredResult | None = None, failure: Failure | None = None) -> bool:
        self.die()
        end = Settled(self._row.flight_id, self.generation, status, result, failure)
        stored = self._world.flights.settle(end, owner=self._owner, ttl=ttl_of(end, self._call.policy))
        self._world.wake(self._call.key.digest)
        return stored is not None

    def _claimed(self) -> FlightSnapshot:
        """Return the row, once it is this process's; the memory of a test refuses nobody for a rival's sake."""
        flights, call = self._world.flights, self._call
        answer = flights.claim(call.key, label=call.label, owner=self._owner, policy=call.policy)
        if isinstance(answer, tuple) and not answer[0]:
            answer = self._granted(answer[1])
        if isinstance(answer, Full):
            raise InvalidRequest(f"another process has no room for this call: {answer.reason}")
        assert answer is not None  # noqa: S101  (for the type)
        return answer[1]

    def _granted(self, row: FlightSnapshot) -> tuple[bool, FlightSnapshot] | Full | None:
        call = self._call
        claim = decide(row, Asking(policy=call.policy, owner=self._owner, starts_pending=True))
        if claim not in _GRANTED:
            why = _REFUSED.get(claim, "it runs already; take_over() takes it from its owner")
            raise InvalidRequest(f"no other process would begin this call of stage {call.key.stage!r}: {why}")
        stage, policy = call.key.stage, call.policy
        granted = self._world.flights.grant(
            row, claim, owner=self._owner, stage=stage, policy=policy, starts_pending=True
        )
        return (False, granted) if isinstance(granted, FlightSnapshot) else granted
