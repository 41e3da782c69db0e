"""A live flight as an operator watches it; no scope, for that may name a person."""

from datetime import datetime
from typing import Any, NamedTuple

from singleflight_app.domain.states import Status


class LiveFlight(NamedTuple):
    """A pending or running flight; durations in seconds by the database's clock."""

    flight_id: int
    stage: str
    status: Status
    owner: str
    age: float
    since_beat: float | None
    lease_left: float | None  #: below zero: how long it is over
    generation: int
    attempts: int
    joins: int
    progress: dict[str, Any] | None
    is_stuck: bool  #: the lease is over and nobody took over, or no worker came within `pending_timeout`

    @property
    def node(self) -> str:
        """Host and process of the owner, without the random part."""
        return self.owner.rpartition(":")[0] or self.owner

    @property
    def trouble(self) -> str:
        """What a stuck flight waits for, in a few words; empty: it is not stuck."""
        if not self.is_stuck:
            return ""
        return "stuck: no worker" if self.status is Status.PENDING else "stuck: lease over"


class Watched(NamedTuple):
    """What was seen in one look."""

    at: datetime  #: the database's time
    flights: tuple[LiveFlight, ...]
    is_cut: bool  #: there are more than the limit
