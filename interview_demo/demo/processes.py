"""Programs that the demo starts: each in a process group of its own, each ended when the demo ends."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

CHECKOUT = Path(__file__).resolve().parents[2]
_PATIENCE = 5.0
_TAIL = 15


class ProgramEnded(Exception):
    """A program ended before it was told to; the sentence carries the end of what it printed."""

    def __init__(self, name: str, code: int, printed: str) -> None:
        super().__init__(f"{name} ended with code {code}:\n{printed}")
        self.name, self.code = name, code


class Program:
    """A module that runs as a program, the leader of its group; what it prints goes to a file of its own.

    It is tied to this process: should this one be killed, it ends by itself.
    """

    def __init__(
        self,
        name: str,
        module: str,
        arguments: Sequence[str] = (),
        *,
        environment: Mapping[str, str] | None = None,
        inherited: Sequence[int] = (),
    ) -> None:
        self.name = name
        self._last_words: str | None = None
        self._printed: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed by kill)
        self._process = subprocess.Popen(  # noqa: S603  (the demo's own programs, with its own arguments)
            [sys.executable, "-m", "interview_demo.demo.tied", module, *arguments],
            cwd=CHECKOUT,
            env={**os.environ, **(environment or {})},
            stdin=subprocess.PIPE,
            stdout=self._printed,
            stderr=subprocess.STDOUT,
            pass_fds=inherited,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """The leader's pid, which is the group's id as well."""
        return self._process.pid

    def printed(self) -> str:
        """Return what it printed so far."""
        if self._last_words is not None:
            return self._last_words
        printed = self._printed.fileno()
        return os.pread(printed, os.fstat(printed).st_size, 0).decode(errors="replace")

    def tail(self) -> str:
        """Return the last lines of what it printed."""
        return "\n".join(self.printed().splitlines()[-_TAIL:])

    def check(self) -> None:
        """Raise `ProgramEnded` if it is no longer running."""
        code = self._process.poll()
        if code is not None:
            raise ProgramEnded(self.name, code, self.tail())

    def kill(self) -> None:
        """End the whole group at once, as a power cut would."""
        if self._last_words is not None:
            return  # by now the number may be another group's
        # Also when the leader ended by itself: a worker of its group may be left.
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._last_words = self.printed()
        self._printed.close()
        if self._process.stdin:
            self._process.stdin.close()

    def end(self) -> None:
        """Ask it to end, and return at once."""
        if self._process.poll() is None:
            self._signal(signal.SIGTERM)

    def stop(self) -> None:
        """Ask it to end; after a while, make it end."""
        self.end()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_PATIENCE)
        self.kill()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)


@contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C be an exception, so that what is open gets closed, also where a shell has put this in the background.

    SIGTERM and SIGHUP end this process without one, and by their tie its programs: an exception that comes out of
    nowhere may leave a lock held, and whoever waits for it on the way out would wait for ever.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
