"""What tests of processes share."""

from collections.abc import Iterator

import pytest

from tests.commands import StartCommand, commands


@pytest.fixture
def command() -> Iterator[StartCommand]:
    """Return what starts commands of `manage.py`; none outlives the test."""
    with commands() as start:
        yield start
