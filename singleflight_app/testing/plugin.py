"""A pytest plugin with the fixture `flights`; one line in the outermost conftest.py of a project has it.

    pytest_plugins = ["singleflight_app.testing.plugin"]

It is no entry point, which would import Django at the start of everybody's tests and before coverage is measured.
"""

from collections.abc import Iterator

import pytest

from singleflight_app.testing.flights import Flights
from singleflight_app.testing.mode import flights_in_memory

MARK = "singleflight(mode=None, wait_timeout=None, strict=True): options of the fixture `flights`"


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line("markers", MARK)


@pytest.fixture
def flights(request: pytest.FixtureRequest) -> Iterator[Flights]:
    """Test mode of singleflight_app: flights in memory, on a clock that the test moves.

    `@pytest.mark.singleflight(mode="distributed")` gives it options; they are those of `flights_in_memory`.
    """
    mark = request.node.get_closest_marker("singleflight")
    if mark is not None and mark.args:
        raise pytest.UsageError("options of the marker `singleflight` are given by name, as in mode='distributed'")
    options = mark.kwargs if mark is not None else {}
    failed_before = request.session.testsfailed
    mode = flights_in_memory(**options)
    yield mode.enable()
    mode.disable(has_failed=request.session.testsfailed > failed_before)
