"""Celery tasks: each is one call of the engine. The rows are the queue, so a lost or doubled message harms nothing.

`acks_late` and `reject_on_worker_lost` stay off: a dead worker's flight comes back by its lease and the sweep.
"""

import logging
from io import StringIO

from celery import shared_task
from django.core.management import call_command

from singleflight_app import api
from singleflight_app.domain.exceptions import SingleFlightError, StillRunning

logger = logging.getLogger("singleflight_app")


@shared_task(name="singleflight.run_flight", ignore_result=True)
def run_flight(flight_id: int) -> str:
    """Run a background flight; its end, a failure too, is in its row."""
    try:
        outcome = api.run_pending(flight_id)
    except StillRunning:
        return "another worker runs it"
    except SingleFlightError as exc:
        logger.warning("flight %s ended without a result: %s", flight_id, type(exc).__name__)
        return "failed"
    except Exception as exc:  # noqa: BLE001  (the function's own error is stored; the worker goes on)
        logger.warning("flight %s failed: %s", flight_id, type(exc).__name__)
        return "failed"
    return "nothing to do" if outcome is None else outcome.role.value


@shared_task(name="singleflight.purge", ignore_result=True)
def purge() -> None:
    """Delete expired flights and old audit rows for up to a minute; run it every few minutes by beat."""
    line = StringIO()
    call_command("purge_flights", max_seconds=60, stdout=line)
    logger.info(line.getvalue().strip())


@shared_task(name="singleflight.sweep", ignore_result=True)
def sweep() -> None:
    """Deal with flights whose owners died and whose messages were lost; run it every few seconds by beat."""
    api.sweep()
