"""Results of 100 bytes to 50 MB: what the owner's call and a replay take, with the result in the row and in a file."""

import secrets
import time
import uuid
from collections.abc import Callable
from functools import partial
from statistics import median

from singleflight_app import GLOBAL, single_flight

SIZES = {"100b": 100, "100kb": 100_000, "5mb": 5_000_000, "50mb": 50_000_000}
_values: dict[int, str] = {}


@single_flight("bench-in-row", scope=GLOBAL)
def in_row(number: str, size: int) -> str:
    """Kept in the row, whatever its size; the text is compressed to half."""
    return _values[size]


@single_flight("bench-in-file", scope=GLOBAL)
def in_file(number: str, size: int) -> str:
    """Kept in a file, whatever its size."""
    return _values[size]


def _measure(function: Callable[[str, int], str], size: int, is_replay: bool, rounds: int) -> float:  # noqa: FBT001
    """Return the median of milliseconds of a call that is made, or of its replay."""
    _values[size] = secrets.token_hex(size // 2)
    times = []
    for _ in range(min(rounds, 5)):
        number = uuid.uuid4().hex
        if is_replay:
            function(number, size)
        started = time.perf_counter()
        function(number, size)
        times.append((time.perf_counter() - started) * 1000)
    del _values[size]
    return median(times)


def _lines() -> list[tuple[str, Callable[[int], float], str]]:
    return [
        (
            f"{name}_{where}_{what}_ms",
            partial(_measure, function, size, what == "replay"),
            f"milliseconds of {'a replay' if what == 'replay' else 'the call'} of {name}, {where.replace('_', ' ')}",
        )
        for name, size in SIZES.items()
        for where, function in (("in_row", in_row), ("in_file", in_file))
        for what in ("owner", "replay")
    ]


BENCHMARKS = tuple(_lines())
