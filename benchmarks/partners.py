"""A second process, for what takes two: it runs one function of the benchmarks, and talks through a pipe."""

import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

NAME = "benchmark-partner"  #: of its connections

# Spawned, as a server's processes are: a fork would bring the runtime of this one along.
_context = multiprocessing.get_context("spawn")


class Pipe(Protocol):
    """One end of a pipe between two processes."""

    def send(self, obj: Any, /) -> None: ...  # noqa: ANN401  (anything that can be pickled)

    def recv(self) -> Any: ...  # noqa: ANN401


@dataclass(frozen=True)
class Partner:
    """The other process, and this end of the pipe to it."""

    pipe: Pipe
    process: BaseProcess

    def kill(self) -> None:
        """End it with SIGKILL, with no chance to say goodbye."""
        self.process.kill()
        self.process.join()


@contextmanager
def partner(work: Callable[[Pipe], object]) -> Iterator[Partner]:
    """Have a process that does `work` with its end of a pipe; it is killed when the block ends."""
    ours, theirs = _context.Pipe()
    process = _context.Process(target=_begin, args=(work, theirs), daemon=True)
    process.start()
    theirs.close()
    found = Partner(ours, process)
    try:
        yield found
    finally:
        found.kill()
        ours.close()


def _begin(work: Callable[[Pipe], object], pipe: Pipe) -> None:
    import django

    os.environ["PGAPPNAME"] = NAME
    django.setup()
    work(pipe)
