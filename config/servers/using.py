"""The user's side: hold the lock, make sure that a keeper lives, wait until the server answers."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from config.servers import locks, places
from config.servers.errors import VARIABLES, ServerCannotStart
from config.servers.postgres import Postgres
from config.servers.report import facts
from config.servers.server import Server
from config.servers.valkey import Valkey

#: A first start writes a whole database; on a slow disk that takes its time.
START_TIMEOUT = 120.0
#: Between two looks at a server that another process is starting.
POLL_INTERVAL = 0.05
#: Settings of clients, of coverage, and of Python what would keep a module of the checkout from running.
NOT_FOR_KEEPERS = ("PG", "COV", "PYTHONSAFEPATH", "PYTHONWARNINGS", "PYTHONDEVMODE")

_starting = threading.Lock()
#: Held open, and thereby locked, until this process and its forked children are gone.
_held: dict[Path, int] = {}


def start_servers() -> None:
    """Return once this process has a PostgreSQL and a Valkey, its own or the ones in the environment.

    Calling it again is cheap. Raises `ServerCannotStart`, one sentence with the repair.
    """
    with _starting:
        _make_broker_folder()
        for server in (Postgres(), Valkey()):
            if not os.environ.get(VARIABLES[server.name], ""):
                _use(server)


def _make_broker_folder() -> None:
    """Celery's filesystem transport expects it; it is a folder, not a server."""
    if not os.environ.get("CELERY_BROKER_URL", ""):
        try:
            places.broker_messages().mkdir(parents=True, exist_ok=True)
        except OSError as problem:
            raise _unusable("broker", problem) from problem


def _use(server: Server) -> None:
    try:
        places.servers_folder().mkdir(parents=True, exist_ok=True)
        _hold(places.servers_folder() / f"{server.name}.users")
        _wait_for(server)
    except OSError as problem:
        raise _unusable(server.name, problem) from problem


def _unusable(name: str, problem: OSError) -> ServerCannotStart:
    why = f"{problem.filename or places.servers_folder()}: {problem.strerror or problem}"
    repair = f"Make it writable, or set SINGLEFLIGHT_SERVERS_DIR to a folder that is, or {VARIABLES[name]}"
    return ServerCannotStart(name, why, repair=repair)


def _hold(path: Path) -> None:
    lock = _held.get(path)
    if lock is not None and locks.is_file_of(path, lock):
        return
    lock = locks.open_lock(path)
    locks.share(lock)
    # The lock of a folder that was removed stays open beside it and harms nobody.
    _held[path] = lock


def _wait_for(server: Server) -> None:
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline:
        keeper = locks.open_lock(places.servers_folder() / f"{server.name}.keeper")
        try:
            if locks.try_alone(keeper):
                _start_keeper(server, keeper, deadline)
                return
        finally:
            os.close(keeper)
        # A keeper lives; it is starting the server for another user, or did so long ago.
        if server.answers():
            server.complete()
            return
        time.sleep(POLL_INTERVAL)
    raise ServerCannotStart(server.name, f"no answer in {START_TIMEOUT:g} s", log=server.log)


def _start_keeper(server: Server, keeper: int, deadline: float) -> None:
    """Hand the keeper's lock over to a new process, so that it is never free in between."""
    log = places.servers_folder() / "keeper.log"
    reading, writing = os.pipe()
    try:
        _launch([server.name, str(keeper), str(writing)], (keeper, writing), log)
    except subprocess.CalledProcessError as problem:
        os.close(reading)
        raise ServerCannotStart(server.name, "its keeper can't run", log=log) from problem
    finally:
        os.close(writing)
    try:
        _follow(server, reading, deadline)
    finally:
        os.close(reading)


def _launch(arguments: list[str], descriptors: tuple[int, int], log: Path) -> None:
    with log.open("ab") as output:
        # It forks once more and this child returns: the keeper is nobody's zombie.
        subprocess.run(  # noqa: S603 (fixed words and numbers)
            [sys.executable, "-m", "config.servers.keeper", *arguments],
            cwd=places.CHECKOUT,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=descriptors,
            start_new_session=True,
            check=True,
        )


def _environment() -> dict[str, str]:
    """A keeper outlives the process that starts it, so what is meant for that one alone stays behind."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(NOT_FOR_KEEPERS)}
    return kept | {"SINGLEFLIGHT_SERVERS_DIR": str(places.servers_folder())}


def _follow(server: Server, report: int, deadline: float) -> None:
    """Pass on what the keeper says until it says how the start ended."""
    for fact in facts(report, deadline):
        if "ready" in fact:
            return
        if "failed" in fact:
            raise ServerCannotStart(server.name, fact["failed"], repair=fact["repair"])
        print(fact["say"], file=sys.stderr, flush=True)  # noqa: T201 (what a person should know, once)
    raise ServerCannotStart(server.name, "its keeper ended without a word", log=places.servers_folder() / "keeper.log")
