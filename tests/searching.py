"""How property tests search: as long as it takes on a loaded machine, without leaving files behind."""

from collections.abc import Callable
from typing import ParamSpec

import pytest
from hypothesis import HealthCheck, settings

P = ParamSpec("P")

PATIENT = settings(
    deadline=None,
    database=None,
    max_examples=100,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
#: A thread that another test left running (a pool's, say) may draw a random number meanwhile.
let_others_draw = pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")


def searching(test: Callable[P, None]) -> Callable[P, None]:
    """Search a hundred examples."""
    return let_others_draw(PATIENT(test))
