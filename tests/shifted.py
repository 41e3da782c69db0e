"""A wall clock that is wrong: what `time` and `datetime` tell this process, from now on.

Replaced are `time.time`, `time.time_ns`, and `now`, `utcnow` and `today` of `datetime.datetime`, before anything of
Django is imported. Monotonic time is what it was, as on a machine whose date was set wrong.
"""

import datetime as dt
import time
from typing import Self


def shift_clock(seconds: float) -> None:
    """Let the wall clock be so much later; to be called before Django and the app are imported."""
    if not seconds:
        return
    real = time.time

    class Shifted(dt.datetime):
        """A datetime whose present is another."""

        @classmethod
        def now(cls, tz: dt.tzinfo | None = None) -> Self:
            return cls.fromtimestamp(real() + seconds, tz)

        @classmethod
        def utcnow(cls) -> Self:
            return cls.now(dt.UTC).replace(tzinfo=None)

        @classmethod
        def today(cls) -> Self:
            return cls.now()

    time.time = lambda: real() + seconds
    time.time_ns = lambda: int((real() + seconds) * 1e9)
    dt.datetime = Shifted  # type: ignore[misc]
