"""Two web nodes: gunicorn in processes of their own, that know nothing of each other but an address."""

import errno
import socket
from collections.abc import Mapping
from contextlib import suppress

import httpx
from django.conf import settings

from interview_demo.demo.processes import Program
from interview_demo.demo.waiting import wait_until

THREADS = 32
_START_TIMEOUT = 30.0


class Node:
    """One node and its address, which it keeps when it is killed and started again."""

    def __init__(self, name: str, port: int = 0) -> None:
        self.name = name
        self.program: Program | None = None
        self._listener: socket.socket | None = _listener(port)
        self.port: int = self._listener.getsockname()[1]

    @property
    def url(self) -> str:
        """The node's address, without a trailing slash."""
        return f"http://127.0.0.1:{self.port}"

    def start(self, environment: Mapping[str, str]) -> None:
        """Start it; returns before it answers."""
        listener = self._listener or wait_until(
            self._old_address, timeout=_START_TIMEOUT, what=f"the old address of node {self.name}"
        )
        module, _, name = settings.WSGI_APPLICATION.rpartition(".")
        options = [f"{module}:{name}", "--bind", f"fd://{listener.fileno()}"]
        options += ["--worker-class", "gthread", "--workers", "1", "--threads", str(THREADS)]
        options += ["--graceful-timeout", "3", "--log-level", "warning", "--no-control-socket"]
        self.program = Program(
            f"node {self.name}",
            "gunicorn",
            options,
            environment={**environment, "NODE_NAME": self.name},
            inherited=[listener.fileno()],
        )
        # The node's own copy is the last one: when it dies, callers are refused instead of left hanging.
        listener.close()
        self._listener = None

    def wait_ready(self) -> None:
        """Wait until it answers; `ProgramEnded` if it can't start."""
        wait_until(self._answers, timeout=_START_TIMEOUT, what=f"an answer of node {self.name}")

    def kill(self) -> None:
        """Kill master and worker at once, in the middle of whatever they do."""
        if self.program:
            self.program.kill()

    def stop(self) -> None:
        """End it, started or not."""
        if self._listener:
            self._listener.close()
        if self.program:
            self.program.stop()

    def _old_address(self) -> socket.socket | None:
        # A killed worker may hold it for a moment longer than its master.
        try:
            return _listener(self.port)
        except OSError as exc:
            if exc.errno != errno.EADDRINUSE:
                raise
            return None

    def _answers(self) -> bool | None:
        if self.program:
            self.program.check()
        with suppress(httpx.TransportError):
            return httpx.get(self.url, timeout=10.0).is_success or None
        return None


def _listener(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen(128)
    except OSError:
        listener.close()
        raise
    return listener
