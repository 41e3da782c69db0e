"""Puts the real things into the engine's ports: one runtime per process, built on first use.

A changed setting and a fork make a new one. The child of a fork leaves its parent's sockets alone.
Long, since this is the only module that may name every layer.
"""

import atexit
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

from asgiref.sync import AsyncToSync, SyncToAsync, ThreadSensitiveContext, sync_to_async
from django.core.signals import setting_changed
from django.db import connections

from singleflight_app.conf import Settings, database_problem, get_settings
from singleflight_app.domain.exceptions import InvalidRequest
from singleflight_app.domain.flight import Identity
from singleflight_app.domain.records import Forgotten, Hint
from singleflight_app.domain.spans import NO_TRACING
from singleflight_app.engine import operating
from singleflight_app.engine.coordinator import Coordinator
from singleflight_app.engine.large import LargeResults
from singleflight_app.engine.looping import Around
from singleflight_app.engine.ports import BlobNotes, Blobs, FlightStore, Notifier, ReplayCache, Tracing
from singleflight_app.notify.null import NullNotifier
from singleflight_app.outcomes.blobs import NoBlobs, StorageBlobs
from singleflight_app.outcomes.encryption import KeyRing
from singleflight_app.outcomes.memory import ReplayMemory
from singleflight_app.outcomes.null import NoReplayCache
from singleflight_app.storage.blobs import NoBlobNotes, PostgresBlobNotes
from singleflight_app.storage.flights import PostgresFlights
from singleflight_app.storage.memory import MemoryFlights
from singleflight_app.storage.pool import Database
from singleflight_app.storage.stats import StageStats
from singleflight_app.telemetry import ledger
from singleflight_app.telemetry.signals import announce, coordination_failed

NEEDS_POSTGRESQL = 'this needs PostgreSQL; set SINGLEFLIGHT["MODE"] to "hybrid" or "distributed"'
RUN_FLIGHT = "singleflight.run_flight"  #: name of the Celery task
BROKER_PAUSE = 10.0  #: seconds without messages after a failure: a broker that is away costs one caller, not each
_TICKET_LEEWAY = 60.0  #: seconds that an empty cache entry outlives the longest call


@asynccontextmanager
async def own_connections() -> AsyncIterator[None]:
    """Give an async call its own thread for Django's sync code, and close the connections that it opened there.

    Without it the call would hold on to its first caller's request, whose thread is gone when that caller is.
    """
    # Set, not entered: inside a request's context, entering another one changes nothing. The call has a task, and so
    # these variables, for itself.
    context = ThreadSensitiveContext()
    context.token = SyncToAsync.thread_sensitive_context.set(context)
    AsyncToSync.executors.current = None
    try:
        yield
    finally:
        if context in SyncToAsync.context_to_thread_executor:
            await sync_to_async(connections.close_all)()
        await context.__aexit__(None, None, None)  # type: ignore[no-untyped-call]


class Runtime:
    """Everything of the app that a process has once."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.identity = Identity()
        self.keys = KeyRing(settings.encryption_keys)
        self.database: Database | None = None
        self.store: FlightStore
        self._queue: PostgresFlights | MemoryFlights | None = None
        self._notes: BlobNotes = NoBlobNotes()
        self._blobs = blobs_of(settings)
        self._connect()
        self.large = LargeResults(self._notes, self._blobs)
        self.coordinator = self._coordinated()

    def _connect(self) -> None:
        """Have the servers that the settings name; in local mode, memory."""
        settings = self.settings
        if settings.mode == "local":
            ledger.disconnect()
            self.store = MemoryFlights(entries=settings.memory_entries, size=settings.memory_bytes)
        else:
            if (problem := database_problem(settings)) is not None:
                raise problem
            self.database = Database(settings)
            self.store = self._queue = PostgresFlights(self.database)
            self._notes = PostgresBlobNotes(self.database)
            ledger.connect(StageStats(self.database))
        self.cache, self.notifier = redis_of(settings)

    def _coordinated(
        self,
        kind: Callable[..., Coordinator] = Coordinator,
        *,
        around: Around = own_connections,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> Coordinator:
        settings = self.settings
        return kind(
            self.store,
            self.cache,
            ReplayMemory(
                entries=settings.memory_entries,
                size=settings.memory_bytes,
                longest_ttl=settings.replay_memory_ttl_max,
                monotonic=monotonic,
            ),
            self.notifier,
            self.large,
            owner=self.identity.name,
            may_degrade=settings.mode == "hybrid",
            poll_interval=settings.poll_interval,
            late_limits=(settings.unsettled_flights, settings.unsettled_bytes),
            workers=settings.pool_size,
            around=around,
            tidy=connections.close_all,
            tracing=_tracing(),
            monotonic=monotonic,
        )

    @property
    def queue(self) -> PostgresFlights | MemoryFlights:
        """The store of background flights and of an operator's moves; local mode has none."""
        if self._queue is None:
            raise InvalidRequest(NEEDS_POSTGRESQL)
        return self._queue

    def send(self, flight_id: int) -> bool:
        """Send the message of a background flight; False: the broker is away, and the sweep sends it again."""
        return send(flight_id)

    def forget(
        self,
        *,
        digest: bytes | None = None,
        flight_id: int | None = None,
        generation: int | None = None,
        actor: str = "",
    ) -> bool:
        """Drop an outcome in the row, then in every layer above it; False: there was none."""
        forgotten = self.store.forget(digest=digest, flight_id=flight_id, generation=generation, actor=actor)
        if forgotten is None:
            return False
        self.coordinator.replaying.forgotten(forgotten)
        self.hint(forgotten)
        return not forgotten.already

    def expire_lease(self, flight_id: int, *, actor: str, generation: int | None = None) -> bool:
        """End a running flight's lease by hand, and wake who waits for it; False: it is not running."""
        expired = operating.expire(self.queue, flight_id, actor=actor, generation=generation)
        if expired is None:
            return False
        self.hint(expired)
        return True

    def cancel(self, flight_id: int, *, actor: str, generation: int | None = None) -> bool:
        """End a flight by hand, and wake who waits for it; False: it had ended."""
        moved = operating.cancel(self.queue, flight_id, actor=actor, generation=generation)
        if moved is None:
            return False
        self.coordinator.cancelled(moved)
        self.hint(moved)
        return True

    def hint(self, moved: Forgotten) -> None:
        """Tell the followers of a flight that was moved by hand."""
        self.notifier.publish([(moved.stage, Hint(moved.digest, moved.generation))])

    def close(self) -> None:
        """Release every lease, end the threads, close the pool."""
        self.coordinator.close()
        if self.database is not None:
            ledger.disconnect()
        self.store.close()


def blobs_of(settings: Settings) -> Blobs:
    """Return the storage of results that are too large for a row; in local mode all are in memory."""
    return (
        NoBlobs() if settings.blob_storage is None or settings.mode == "local" else StorageBlobs(settings.blob_storage)
    )


def redis_of(settings: Settings) -> tuple[ReplayCache, Notifier]:
    """Return the replay cache and the notifier that the settings name; those that do nothing without Redis."""
    if settings.cache is None or settings.mode == "local":
        return NoReplayCache(), NullNotifier()
    from singleflight_app.notify.clients import connect  # noqa: PLC0415  (an extra)
    from singleflight_app.notify.redis_stream import RedisStreamNotifier  # noqa: PLC0415
    from singleflight_app.outcomes.cache import RedisReplayCache  # noqa: PLC0415

    client = connect(settings.cache)
    longest = max(float(policy.execution_timeout) for policy in settings.policies)  # type: ignore[arg-type]
    cache = RedisReplayCache(client, namespace=settings.namespace, ticket_lifetime=longest + _TICKET_LEEWAY)
    return cache, RedisStreamNotifier(client, namespace=settings.namespace, length=settings.stream_length)


def _tracing() -> Tracing:
    """Return what begins spans; it is the project's own package that makes it do so."""
    try:
        from singleflight_app.telemetry.tracing import OpenTelemetry  # noqa: PLC0415  (an extra)
    except ImportError:
        return NO_TRACING
    return OpenTelemetry()


_quiet_until = float("-inf")
_lock = threading.Lock()
_runtime: Runtime | None = None
_make: Callable[[], Runtime] | None = None  #: a test's own way of making one
_put_aside: list[Runtime] = []  #: while a test has its own
_left_behind: list[Runtime] = []  #: parents' runtimes, kept so that nothing of theirs is finalized in a child


def runtime() -> Runtime:
    """Return this process's runtime; settings that make no sense raise InvalidSetting."""
    global _runtime  # noqa: PLW0603  (one per process is the point)
    if _runtime is not None:
        return _runtime
    with _lock:
        if _runtime is None:
            _runtime = Runtime(get_settings()) if _make is None else _make()
        return _runtime


@contextmanager
def made_by(make: Callable[[], Runtime]) -> Iterator[None]:
    """Have runtimes made by `make` until the block ends; what the process had before is put aside, and put back."""
    global _make, _runtime  # noqa: PLW0603
    with _lock:
        former, (before, _runtime), _make = _make, (_runtime, None), make
        _put_aside.extend([before] if before is not None else [])
    try:
        with ledger.paused():
            try:
                yield
            finally:
                close()
    finally:
        with _lock:
            _make = former
            if before in _put_aside:  # else the settings changed meanwhile, and it was closed
                _put_aside.remove(before)
                _runtime = before


def send(flight_id: int) -> bool:
    """Send the message of a background flight; False: the broker is away, and the sweep sends it again."""
    global _quiet_until  # noqa: PLW0603
    try:
        from celery import current_app  # noqa: PLC0415  (an extra)
    except ImportError as exc:
        raise InvalidRequest("background flights need Celery; install the extra `celery`") from exc
    if time.monotonic() < _quiet_until:
        return False
    try:
        current_app.send_task(RUN_FLIGHT, args=[flight_id], ignore_result=True, retry=False)
    except Exception as exc:  # noqa: BLE001  (each transport has its own errors, and the message is only a nudge)
        _quiet_until = time.monotonic() + BROKER_PAUSE
        announce(coordination_failed, component="broker", error=type(exc).__name__)
        return False
    return True


def close() -> None:
    """Release this process's leases and close its connections; the next call builds a new runtime."""
    global _runtime
    with _lock:
        old, _runtime = _runtime, None
    if old is not None:
        old.close()


def leave() -> None:
    """Release this process's leases for good: whoever asks from now on waits for the end of the process.

    Nothing may begin any more that nobody would release.
    """
    global _runtime
    _lock.acquire()  # never released
    old, _runtime = _runtime, None
    if old is not None:
        old.close()


def _after_fork() -> None:
    global _runtime, _lock  # noqa: PLW0603
    _lock = threading.Lock()
    if _runtime is not None:
        _runtime.coordinator.after_fork()
        _left_behind.append(_runtime)
        _runtime = None
    _left_behind.extend(_put_aside)
    _put_aside.clear()


def _on_setting_changed(*, setting: str, **_: object) -> None:
    if setting in {"SINGLEFLIGHT", "CACHES", "DATABASES"}:
        close()
        while _put_aside:
            _put_aside.pop().close()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(close)
setting_changed.connect(_on_setting_changed, dispatch_uid="singleflight_app.wiring")
