"""What a keeper knows about a server, be it PostgreSQL or Valkey."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

Say = Callable[[str], None]
"""Tells the user something once, on stderr of the process that asked for the server."""


class Server(Protocol):
    """One of the embedded servers; stateless, as any process may ask whether it answers."""

    name: str
    #: What ends it at once but in order, clients or not.
    stop_signal: signal.Signals

    @property
    def log(self) -> Path: ...

    @property
    def marker(self) -> str:
        """Text that only this checkout's server has on its command line."""
        ...

    @property
    def program(self) -> str:
        """The name of its process."""
        ...

    def answers(self) -> bool:
        """Whether it serves clients right now: a real exchange, not a pid or a file."""
        ...

    def owns(self, pid: int) -> bool:
        """Whether the process serves the data that is in the folder now, and not data that was removed."""
        ...

    def prepare(self, say: Say) -> None:
        """Make or repair the files that a start needs; no process of this server runs."""
        ...

    def command(self) -> list[str]: ...

    def demote(self) -> Callable[[], None] | None:
        """What the child does before it becomes the server, for one that refuses to run as root."""
        ...

    def complete(self) -> None:
        """Called once it answers."""
        ...

    def clear(self) -> None:
        """Remove what a killed server leaves behind; no process of this server runs."""
        ...
