"""One of each announcement that is counted, as the engine would make it."""

from decimal import Decimal
from typing import Any

from singleflight_app.domain.flight import Usage
from singleflight_app.domain.states import Claim, Layer, Role, Status
from singleflight_app.telemetry import signals

USAGE = Usage("small-1", 100, 20, Decimal("0.25"))


def announce_one_of_each(stage: str) -> None:
    """Announce what there is, of one flight."""
    flight: dict[str, Any] = {"stage": stage, "flight_id": 1, "generation": 1}
    answer = {**flight, "waited": 0.2, "usage": USAGE, "failed": False}
    signals.announce(signals.lease_granted, **flight, claim=Claim.OWNER_NEW)
    signals.announce(signals.lease_taken_over, **flight)
    signals.announce(signals.flight_settled, **flight, status=Status.FAILED, seconds=4.0, usage=USAGE)
    signals.announce(signals.flight_fenced, **flight, usage=USAGE)
    signals.announce(signals.lease_lost, **flight, reason="superseded")
    signals.announce(signals.request_answered, **answer, role=Role.OWNER, layer=Layer.CALL)
    signals.announce(signals.request_answered, **answer, role=Role.FOLLOWER, layer=Layer.PROCESS)
    signals.announce(signals.request_answered, **answer, role=Role.REPLAY, layer=Layer.REDIS)
    signals.announce(signals.wait_timed_out, stage=stage, waited=90.0)
    signals.announce(signals.follower_woken, stage=stage, by="hint")
    signals.announce(signals.breaker_opened, stage=stage)
    signals.announce(signals.caller_refused, stage=stage, reason="max_waiters")
    signals.announce(signals.flight_degraded, stage=stage)
    signals.announce(signals.flight_forgotten, **flight)
    signals.announce(signals.result_dropped, **flight, reason="checksum")
    signals.announce(signals.result_changed, stage=stage)
    signals.announce(signals.coordination_failed, component="cache", error="ConnectionError")
