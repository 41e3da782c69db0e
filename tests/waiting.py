"""Waiting for facts: a condition is looked at until it holds, and failing that is an error with a name.

The one place where tests sleep: between two looks at what another thread, process or server does in its own time.
"""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(condition: Callable[[], T], what: str, *, timeout: float = 20.0) -> T:
    """Return the first true value of `condition`; AssertionError naming `what` after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {timeout:g} s in vain for {what}"
        time.sleep(0.01)
    return value
