"""How property tests search: as long as it takes on a loaded machine, without leaving files behind."""

from collections.abc import Callable
from typing import ParamSpec

import pytest
from hypothesis import HealthCheck, settings

P = ParamSpec("P")


def searching(test: Callable[P, None]) -> Callable[P, None]:
    """Search a hundred examples."""
    # A thread that another test left running (a pool's, say) may draw a random number meanwhile.
    let_others_draw = pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")
    patience = [HealthCheck.too_slow, HealthCheck.data_too_large]
    search = settings(deadline=None, database=None, max_examples=100, suppress_health_check=patience)
    return let_others_draw(search(test))
