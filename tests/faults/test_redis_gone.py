"""Redis only makes things faster: without it the answers are the same (P6)."""

import pytest

from tests.callers import callers

pytestmark = pytest.mark.django_db


def test_without_redis_followers_get_their_answer_by_the_poll(unique: str) -> None:
    """C20: the notify stream and the replay cache are out of reach; still one call and one answer."""
    nowhere = "unix:///nonexistent/valkey.sock?db=0"
    with callers("calm", unique, 3, TEST_REDIS=nowhere) as (owner, follower, later):
        owner.call()
        owner.wait_for("called")
        follower.call()
        owner.done("without Redis")
        (followed,) = follower.wait_for("outcome")
        later.call()
        (replayed,) = later.wait_for("outcome")

        assert (followed["value"], replayed["value"]) == ("without Redis", "without Redis")
        assert (replayed["role"], replayed["layer"]) == ("replay", "database")
        assert not follower.all("called")
        assert not later.all("called")
