"""The one way to wait for something that gives no signal: look, until a deadline."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_LOOK_EVERY = 0.05


class NeverCame(Exception):
    """What was waited for did not come in time."""

    def __init__(self, what: str, timeout: float) -> None:
        super().__init__(f"{what} did not come within {timeout:g} s")
        self.what, self.timeout = what, timeout


def wait_until(look: Callable[[], T | None], *, timeout: float, what: str) -> T:
    """Return the first thing that `look` finds; None means not yet. `look` may raise to give up early."""
    deadline = time.monotonic() + timeout
    while (found := look()) is None:
        if time.monotonic() > deadline:
            raise NeverCame(what, timeout)
        time.sleep(_LOOK_EVERY)
    return found
