"""The app through a real Redis Cluster, and through Sentinel: what works with one Redis works with them (R9, R15)."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.checks import run_checks
from pytest_django.fixtures import Settings

from singleflight_app import Layer, Role
from singleflight_app.domain.flight import Settled, StoredResult
from singleflight_app.domain.records import Hint, Kept, Looked
from singleflight_app.domain.states import Status
from singleflight_app.notify.clients import connect
from singleflight_app.notify.redis_stream import RedisStreamNotifier
from singleflight_app.outcomes.cache import RedisReplayCache
from tests.held import PATIENCE, Counted, Held, at_once, begin, results
from tests.nodes import nodes
from tests.valkeys import Cluster, Watched, serving
from tests.waiting import until

pytestmark = pytest.mark.django_db

DIGESTS = [number.to_bytes(32) for number in range(60)]  #: in a cluster, keys of all nodes
STAGES = ["score", "report", "*forgotten", "quiet"]
RESULT = StoredResult(b"1", "1/json", b"c" * 32, 1)


@pytest.fixture(scope="module", params=[Cluster, Watched], ids=["cluster", "sentinel"])
def kind(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster | Watched]:
    """Servers that all tests of this module share."""
    with serving(request.param(tmp_path_factory.mktemp("servers"))) as made:
        yield made


@pytest.fixture
def redis(kind: Cluster | Watched, settings: Settings) -> Any:  # noqa: ANN401  (a client without types)
    """A client on them; they are the default cache."""
    settings.CACHES = {"default": kind.cache}
    return connect("default")


def test_the_checks_have_nothing_to_say(redis: Any) -> None:  # noqa: ANN401
    """E007, W008: both are django-redis, with timeouts."""
    assert run_checks(tags=["singleflight"]) == []


def test_nodes_share_a_call_replay_it_and_forget_it(redis: Any, unique: str, settings: Settings) -> None:  # noqa: ANN401
    """P1, R9, R15: a hint alone wakes the follower, as the poll comes too late to; the answer is in Redis, and goes."""
    settings.SINGLEFLIGHT = {**settings.SINGLEFLIGHT, "POLL_INTERVAL": 25}
    held, key = Held("value"), {"key": unique}
    with nodes(3) as (one, other, third):
        owner = begin(one.run, "calm-redis", key, held)
        held.wait_until_begun()
        follower = begin(other.run, "calm-redis", key, Counted("second call"))
        other.wait_for_follower("calm-redis")
        # The first look at the rows comes with the opening of the stream; what wakes after it is a hint.
        until(lambda: other.runtime.notifier._positions, "the stream to be opened")  # type: ignore[attr-defined]
        held.let_go()
        found = [owner.result(20), follower.result(20)]

        found.append(third.run("calm-redis", key, Counted("third call")))
        assert other.forget(other.key("calm-redis", key))
        found.append(third.run("calm-redis", key, Counted("new")))

    assert [(outcome.value, outcome.role) for outcome in found] == [
        ("value", Role.OWNER),
        ("value", Role.FOLLOWER),
        ("value", Role.REPLAY),
        ("new", Role.OWNER),
    ]
    assert found[2].layer is Layer.REDIS


def test_outcomes_of_all_slots_are_kept_in_one_trip(redis: Any, unique: str) -> None:  # noqa: ANN401
    """R15: the scripts touch one key each; servers that don't know them yet are sent them."""
    cache = RedisReplayCache(redis, namespace=unique, ticket_lifetime=600)
    tickets = {digest: cache.look(digest).ticket for digest in DIGESTS}
    as_of = time.monotonic()
    redis.script_flush()

    for generation in (5, 6, 7):
        settled = Settled(7, generation, Status.SUCCEEDED, RESULT)
        cache.keep([Kept(digest, settled, ticket, 600, as_of) for digest, ticket in tickets.items()])
        if generation == 6:
            for digest in DIGESTS[::2]:
                cache.raise_floor(digest, 7)

    found = [looked.settled and looked.settled.generation for looked in map(cache.look, DIGESTS)]
    assert found == [None, 7] * (len(DIGESTS) // 2)


def test_hints_of_all_stages_are_sent_in_one_trip_and_read_at_once(redis: Any, unique: str) -> None:  # noqa: ANN401
    """R9: the streams of a namespace are in one slot."""
    sender, listener = (RedisStreamNotifier(redis, namespace=unique, length=100) for _ in range(2))
    for stage in STAGES:
        listener.open(stage)
    sent = [(stage, Hint(stage.encode(), number)) for number, stage in enumerate(STAGES[:3])]

    reading = begin(listener.read, STAGES, 0.9)
    sender.publish(sent)

    heard = {*reading.result(PATIENCE)}
    while len(heard) < len(sent):
        heard |= {*listener.read(STAGES, 0.9)}
    assert heard == {hint for _, hint in sent}


def test_a_reply_that_comes_too_late_is_no_other_keys_answer(redis: Any, kind: Cluster | Watched, unique: str) -> None:  # noqa: ANN401
    """P9: a connection on which a reply was given up is not used again."""
    first, second = (RedisReplayCache(redis, namespace=unique, ticket_lifetime=600) for _ in range(2))
    settled = Settled(7, 5, Status.SUCCEEDED, RESULT)
    first.keep([Kept(b"{a}one", settled, first.look(b"{a}one").ticket, 600, time.monotonic())])
    for admin in kind.admins():
        admin.execute_command("CLIENT", "PAUSE", 1300)

    given_up = first.look(b"{a}one")
    found = until(lambda: _ticket_or_outcome(second, b"{a}other"), "an answer of the second key")

    assert given_up == Looked()
    assert found is not None
    assert found.settled is None


def _ticket_or_outcome(cache: RedisReplayCache, digest: bytes) -> Looked | None:
    looked = cache.look(digest)
    return looked if looked.ticket or looked.settled else None


def test_threads_that_use_it_for_the_first_time_all_reach_it(
    redis: Any,  # noqa: ANN401
    unique: str,
    failures: list[str],
) -> None:
    """R12: it is dialled when somebody needs it, by as many as there are, though the first Sentinel is away."""
    for _ in range(20):
        cache = RedisReplayCache(connect("default"), namespace=unique, ticket_lifetime=600)
        for looked in results(at_once(8, cache.look, b"key")):
            assert looked.ticket is not None, failures
