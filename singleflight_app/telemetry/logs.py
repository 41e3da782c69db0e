"""What an operator reads in the log: takeovers, refused ends, and a server that is out of reach, once per outage."""

import logging
import time
from collections.abc import Callable

from singleflight_app.telemetry import signals

QUIET = 30.0  #: seconds without a failure after which an outage counts as over
logger = logging.getLogger("singleflight_app")


class _Outages:
    """Lets the first failure of each component through, and the next one after a quiet time."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._last: dict[str, float] = {}

    def is_news(self, component: str) -> bool:
        now = self._monotonic()
        last, self._last[component] = self._last.get(component, float("-inf")), now
        return now - last > QUIET


_outages = _Outages()


def connect() -> None:
    """Begin to log; called once per process."""
    signals.lease_taken_over.connect(_taken_over)
    signals.lease_lost.connect(_lost)
    signals.flight_fenced.connect(_fenced)
    signals.flight_degraded.connect(_degraded)
    signals.breaker_opened.connect(_opened)
    signals.result_dropped.connect(_dropped)
    signals.result_changed.connect(_changed)
    signals.coordination_failed.connect(_failed)


def _taken_over(*, stage: str, flight_id: int, generation: int, **_: object) -> None:
    logger.warning(
        "lease_taken_over flight=%s stage=%s generation=%s role=owner: the call is made again",
        *(flight_id, stage, generation),
    )


def _lost(*, stage: str, flight_id: int, generation: int, reason: str, **_: object) -> None:
    logger.warning(
        "lease_lost flight=%s stage=%s generation=%s role=owner reason=%s",
        flight_id,
        stage,
        generation,
        reason,
    )


def _fenced(*, stage: str, flight_id: int, generation: int, **_: object) -> None:
    logger.warning(
        "flight_fenced flight=%s stage=%s generation=%s role=owner: a late end was refused",
        *(flight_id, stage, generation),
    )


def _degraded(*, stage: str, **_: object) -> None:
    if _outages.is_news("degraded"):
        logger.error("flight_degraded stage=%s: without the database each process makes its own calls", stage)


def _opened(*, stage: str, **_: object) -> None:
    if _outages.is_news(f"breaker {stage}"):
        logger.warning("breaker_opened stage=%s: callers of this process are refused until a call succeeds", stage)


def _dropped(*, stage: str, flight_id: int, generation: int, reason: str, **_: object) -> None:
    logger.warning("result_dropped flight=%s stage=%s generation=%s reason=%s", flight_id, stage, generation, reason)


def _changed(*, stage: str, **_: object) -> None:
    if _outages.is_news(f"result_changed {stage}"):
        logger.warning("result_changed stage=%s: annotate the function with the type it returns", stage)


def _failed(*, component: str, error: str, **_: object) -> None:
    if _outages.is_news(component):
        logger.warning("coordination_failed component=%s error=%s: worked around", component, error)
