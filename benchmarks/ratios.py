"""How two things are compared that the machine disturbs alike."""

from collections.abc import Callable
from statistics import median


def ratio(bare: Callable[[], float], ours: Callable[[], float], rounds: int) -> float:
    """Return the median of bare / ours over rounds in which they take turns; the first round only warms up."""
    pairs = [(bare(), ours()) if turn % 2 else tuple(reversed((ours(), bare()))) for turn in range(rounds + 1)]
    return median(plain / flight for plain, flight in pairs[1:])
