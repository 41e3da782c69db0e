"""Real processes that race for the places of a stage: never more than the limit, and all are served in the end."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.callers import Caller
from tests.waiting import until

pytestmark = pytest.mark.django_db

LIMIT, RACERS = 3, 8


@pytest.fixture
def racers(unique: str) -> Iterator[list[Caller]]:
    """Eight processes that are ready to ask, each for a key of its own."""
    with ExitStack() as stack:
        found = []
        for number in range(RACERS):
            caller = Caller("three-anywhere", f"{unique}-{number}")
            stack.callback(caller.close)
            found.append(caller)
        for caller in found:
            caller.warm_up()
        yield found


def test_no_more_than_the_limit_are_inside_at_any_moment(racers: list[Caller]) -> None:
    """A call ends when the test says so: who is inside is who has begun and was not told to end."""
    for caller in racers:
        caller.call()

    for ended in range(RACERS):
        inside_at_most = min(LIMIT, RACERS - ended)
        until(lambda wanted=ended + inside_at_most: len(begun(racers)) >= wanted, "calls in all places")  # type: ignore[misc]
        assert len(begun(racers)) == ended + inside_at_most
        running = next(caller for caller in begun(racers) if not caller.all("returning"))
        running.done("served")
        running.wait_for("outcome")

    assert [caller.wait_for("outcome")[0]["value"] for caller in racers] == ["served"] * RACERS
    assert not any(caller.all("error") for caller in racers)


def test_a_place_of_a_killed_process_comes_free_with_its_lease(unique: str) -> None:
    """P4: who waits gets it then; nothing has to be cleaned up."""
    with ExitStack() as stack:
        first, second = (Caller("one-fast-anywhere", f"{unique}-{number}") for number in range(2))
        stack.callback(first.close)
        stack.callback(second.close)
        first.wait_for("ready")
        first.call()
        first.wait_for("called")
        second.call()

        first.kill()
        second.wait_for("called")
        second.done("served")

        assert second.wait_for("outcome")[0]["value"] == "served"


def begun(racers: list[Caller]) -> list[Caller]:
    return [caller for caller in racers if caller.all("called")]
