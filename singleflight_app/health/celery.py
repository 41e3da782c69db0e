"""Celery, where the project has it: broker, queue, workers, and what runs the sweep and the purge."""

from collections.abc import Iterator
from typing import Any

from singleflight_app.health.finding import Finding, error, note, ok, warning
from singleflight_app.wiring import RUN_FLIGHT

ANSWER_WITHIN = 2.0  #: seconds for the broker, and again for the workers
TASKS = ("singleflight.sweep", "singleflight.purge")
_WITHOUT = "submit() keeps the flights, and the sweep sends their messages again"


def current() -> Any:  # noqa: ANN401  (celery.Celery)
    """Return the app of this thread, for another one may have none; None: Celery is not installed."""
    try:
        from celery.app import app_or_default  # noqa: PLC0415  (an extra)
    except ImportError:
        return None
    return app_or_default()


def check(app: Any) -> Iterator[Finding]:  # noqa: ANN401
    """Yield all that is found about Celery."""
    yield from _asked(app, is_glance=False)


def glance(app: Any) -> Iterator[Finding]:  # noqa: ANN401
    """Yield what a dashboard shows: whether the broker answers, and how long its queue is."""
    yield from _asked(app, is_glance=True)


def _asked(app: Any, *, is_glance: bool) -> Iterator[Finding]:  # noqa: ANN401
    if app is None:
        yield note("celery.broker", "Celery is not installed: submit() has no workers", "Install the extra `celery`.")
        return
    if not (app.conf.broker_url or app.conf.broker_write_url):
        text = "no broker is configured: submit() has no workers"
        yield note("celery.broker", text, "Set CELERY_BROKER_URL, and load the Celery app with Django.")
        return
    yield from _broker(app, is_glance=is_glance)
    if not is_glance:
        yield from _options(app)


def _broker(app: Any, *, is_glance: bool) -> Iterator[Finding]:  # noqa: ANN401
    with app.connection_for_write(connect_timeout=ANSWER_WITHIN) as connection:
        where = _place(connection)
        try:
            connection.ensure_connection(max_retries=1, interval_start=0, timeout=ANSWER_WITHIN)
            depth = _depth(connection, _queue(app))
        except Exception as exc:  # noqa: BLE001  (each transport has its own errors)
            text = f"the broker {where} gives no answer: {type(exc).__name__}: {exc}; {_WITHOUT}"
            yield error("celery.broker", text, "Start it, or correct CELERY_BROKER_URL.")
            return
        yield ok("celery.broker", f"the broker {where} answers", transport=connection.transport_cls)
        yield from _queued(_queue(app), depth)
        if not is_glance and connection.transport.driver_type != "filesystem":  # its workers answer too late
            yield from _workers(app, connection)


def _place(connection: Any) -> str:  # noqa: ANN401
    """Return where the broker is, without who asks it."""
    place = connection.info()
    return f"{place['transport']} at {place['hostname']}:{place['port']}" if place["port"] else str(place["transport"])


def _queue(app: Any) -> str:  # noqa: ANN401
    """Return the queue that messages of flights go to."""
    queue = app.amqp.router.route({}, RUN_FLIGHT).get("queue")
    return str(getattr(queue, "name", queue) or app.conf.task_default_queue)


def _depth(connection: Any, queue: str) -> int | None:  # noqa: ANN401
    """Return how many messages wait; None: there is no such queue yet."""
    try:
        with connection.channel() as channel:
            return int(channel.queue_declare(queue=queue, passive=True).message_count)
    except connection.channel_errors:
        return None


def _queued(queue: str, depth: int | None) -> Iterator[Finding]:
    if depth is None:
        text = f"the queue {queue!r} does not exist yet: no worker has ever listened to it"
        yield note("celery.queue", text, f"Start a worker: celery -A PROJECT worker -Q {queue}.", queue=queue, depth=0)
    else:
        yield ok("celery.queue", f"{depth} messages wait in {queue!r}", queue=queue, depth=depth)


def _workers(app: Any, connection: Any) -> Iterator[Finding]:  # noqa: ANN401
    answers = app.control.ping(timeout=ANSWER_WITHIN / 2, connection=connection) or []
    names = sorted(name for answer in answers for name in answer)
    if names:
        yield ok("celery.workers", f"{len(names)} workers answer: {', '.join(names)}", workers=len(names))
        return
    text = f"no worker answers; {_WITHOUT}, but nobody runs them"
    yield warning("celery.workers", text, "Start a worker: celery -A PROJECT worker.", workers=0)


def _options(app: Any) -> Iterator[Finding]:  # noqa: ANN401
    conf = app.conf
    if conf.task_acks_late or conf.task_reject_on_worker_lost:
        text = (
            "task_acks_late or task_reject_on_worker_lost is on: the broker redelivers messages of dead workers, "
            "without limit, beside the sweep"
        )
        repair = "Leave both off for singleflight.run_flight: the lease and the sweep recover its flights."
        yield note("celery.options", text, repair)
    scheduled = {entry.get("task") for entry in (conf.beat_schedule or {}).values()}
    if missing := [task for task in TASKS if task not in scheduled]:
        text = f"beat_schedule has no {' and no '.join(missing)}"
        commands = "manage.py singleflight_sweep every few seconds, manage.py purge_flights every few minutes"
        yield note("celery.beat", text, f"Schedule them, or run the commands some other way: {commands}.")
    else:
        yield ok("celery.beat", "beat_schedule has the sweep and the purge")
