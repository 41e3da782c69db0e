"""Web servers with several workers, as programs of a test: started, asked, told to go."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import psutil
from django.db import connection

from config.servers.places import CHECKOUT
from tests.held import begin
from tests.programs.asking import askers, begun
from tests.waiting import until

if TYPE_CHECKING:
    from concurrent.futures import Future

GUNICORN = ["gunicorn", "tests.programs.web:application", "-c", "python:tests.programs.web_hooks", "--preload"]

METERED = ["gunicorn", "tests.programs.metered:application", "-c", "python:tests.programs.metered_hooks", "--preload"]


class Web:
    """A server, its workers, and the folder where their calls tell what they do."""

    def __init__(self, server: list[str], folder: Path, **environment: str) -> None:
        self.folder, self._log = folder, folder / "log"
        with _listener() as listener, self._log.open("wb") as log:
            self.address: tuple[str, int] = listener.getsockname()
            self.process = subprocess.Popen(
                [sys.executable, "-m", *(word.format(fd=listener.fileno()) for word in server)],
                cwd=CHECKOUT,
                env={**_environment(folder), **environment},
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=[listener.fileno()],
            )

    def get(self, path: str) -> dict[str, Any]:
        """Ask whichever worker takes it, on a connection of its own."""
        return dict(self.answer(path).json())

    def answer(self, path: str) -> httpx.Response:
        """Return a whole answer."""
        host, port = self.address
        answer = httpx.get(f"http://{host}:{port}/{path}", timeout=20, headers={"Connection": "close"})
        assert answer.is_success, self.log()
        return answer

    def workers(self, count: int = 2) -> list[int]:
        """Return the pids of the workers once there are `count` that have come so far as to answer."""
        master = psutil.Process(self.process.pid)
        found = until(lambda: self._booted(master, count), f"{count} workers; the server said {self.log()}")
        assert found is not None
        return found

    def get_from(self, worker: int, path: str) -> dict[str, Any]:
        """Ask one worker: the others stand still until it has answered."""
        with self._alone(worker):
            return self.get(path)

    def begin_at(self, worker: int, key: str) -> "Future[dict[str, Any]]":
        """Let one worker ask for a key whose call is held, and return what will be the answer."""
        with self._alone(worker):
            future = begin(self.get, f"ask/{key}")
            until(lambda: worker in askers(self.folder, key), f"worker {worker} to ask; it said {self.log()}")
            until(lambda: begun(self.folder, key), "the call to begin")
        return future

    def log(self) -> str:
        """Return what the server has said."""
        return self._log.read_text()

    def close(self) -> None:
        """Leave neither the server nor a worker behind."""
        if self.process.poll() is None:
            family = [psutil.Process(self.process.pid), *psutil.Process(self.process.pid).children(recursive=True)]
            for process in family:
                process.kill()
        self.process.wait()

    @contextmanager
    def _alone(self, worker: int) -> Iterator[None]:
        others = [pid for pid in self.workers() if pid != worker]
        _send(signal.SIGSTOP, others)
        try:
            yield
        finally:
            _send(signal.SIGCONT, others)

    def _booted(self, master: psutil.Process, count: int) -> list[int] | None:
        assert self.process.poll() is None, self.log()
        pids = [child.pid for child in master.children() if f"Ready: worker {child.pid}\n" in self.log()]
        return pids if len(pids) >= count else None


def _send(number: signal.Signals, pids: list[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # after a reload the old ones leave when they like
            os.kill(pid, number)


@contextmanager
def gunicorn(folder: Path, *options: str) -> Iterator[Web]:
    """Have a gunicorn with two workers, forked from a master that has called flights itself."""
    web = Web([*GUNICORN, "--workers", "2", "--bind", "fd://{fd}", "--no-control-socket", *options], folder)
    try:
        yield web
    finally:
        web.close()


@contextmanager
def metered(folder: Path, *, workers: int, **environment: str) -> Iterator[Web]:
    """Have a gunicorn with /metrics, whose calls ask the model that the environment names."""
    options = ["--workers", str(workers), "--threads", "8", "--bind", "fd://{fd}", "--no-control-socket"]
    web = Web([*METERED, *options], folder, **environment)
    try:
        web.workers(workers)
        yield web
    finally:
        web.close()


@contextmanager
def uvicorn(folder: Path, *options: str) -> Iterator[Web]:
    """Have a uvicorn that serves async views."""
    web = Web(["uvicorn", "tests.programs.asgi:application", "--fd", "{fd}", *options], folder)
    try:
        yield web
    finally:
        web.close()


def _listener() -> socket.socket:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(16)
    return listener


def _environment(folder: Path) -> dict[str, str]:
    database = str(connection.settings_dict["NAME"])
    return {**os.environ, "TEST_DATABASE_NAME": database, "TEST_FOLDER": str(folder)}
