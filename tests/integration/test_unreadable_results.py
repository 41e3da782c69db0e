"""Stored results that can't be read: led anew once, and dropped unless others can read them (R13, C35, C36)."""

import asyncio
import base64
import itertools
import secrets
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from django_redis import get_redis_connection
from pydantic import JsonValue
from pytest_django.fixtures import Settings

from singleflight_app import Layer, Outcome, ResultUnreadable, Role
from singleflight_app.engine.call import Call
from singleflight_app.outcomes.codec import for_policy
from singleflight_app.telemetry.signals import result_dropped
from tests.held import Counted, Held, at_once, begin, results
from tests.nodes import Node, nodes
from tests.stored import events_of, row_of

if TYPE_CHECKING:
    from concurrent.futures import Future

pytestmark = pytest.mark.django_db(transaction=True)

STAGE = "calm-row"


@pytest.fixture
def dropped() -> Iterator[list[str]]:
    """Why results were not read, in the order in which it was announced."""
    seen: list[str] = []

    def remember(*, reason: str, **_: object) -> None:
        seen.append(reason)

    result_dropped.connect(remember)
    yield seen
    result_dropped.disconnect(remember)


def _change(node: Node, change: bytes, generation: int | None) -> None:
    assert node.runtime.database is not None
    statement = b"update singleflight_flight set %b where generation = %%(generation)s returning id" % change
    assert len(node.runtime.database.run(statement, {"generation": generation})) == 1


DAMAGE = [
    b"result = result || '\\x00'::bytea",
    b"result = ''::bytea",
    b"result = null",
    b"checksum = sha256('other')",
    b"checksum = null",
    b"size = null, encoding = '1/json/gzip'",
    b"size = -5, encoding = '1/json/gzip'",
    b"size = 9223372036854775807, encoding = '1/json/gzip'",
]


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_result_is_dropped_and_led_anew_once(unique: str, damage: bytes, dropped: list[str]) -> None:
    """The row tells of it, and from then on everybody has the new answer."""
    with nodes(2) as (one, other):
        old = one.run(STAGE, {"key": unique}, Counted("old"))
        _change(one, damage, old.generation)

        new = other.run(STAGE, {"key": unique}, Counted("new"))

        assert (new.value, new.role) == ("new", Role.OWNER)
        assert one.run(STAGE, {"key": unique}, Counted("not called")).value == "new"
        assert events_of(new) == ["granted", "settled", "forgotten", "granted", "settled"]
    assert dropped == ["unreadable"]


def test_callers_who_meet_a_damaged_result_together_share_one_new_call(unique: str) -> None:
    """Once for all of them: in one process and in two."""
    new = Held("new")
    with nodes(2) as (one, other):
        key = one.key(STAGE, {"key": unique})
        old = one.run(STAGE, {"key": unique}, Counted("old"))
        _change(one, DAMAGE[0], old.generation)

        callers = at_once(4, one.run, STAGE, {"key": unique}, new)
        new.wait_until_begun()
        callers += at_once(4, other.run, STAGE, {"key": unique}, new)
        other.wait_for_callers(key, 4)
        new.let_go()

        assert [outcome.value for outcome in results(callers)] == ["new"] * 8
    assert new.count == 1


def test_a_damaged_entry_of_redis_costs_a_look_at_the_row(unique: str, dropped: list[str]) -> None:
    """P6: what is in the row is whole, and stays."""
    with nodes(2) as (one, other):
        old = one.run("calm-redis", {"key": unique}, Counted("old"))
        redis = get_redis_connection("default")
        name = b"singleflight:%b:outcome:%b" % (
            one.runtime.settings.namespace.encode(),
            one.key("calm-redis", {"key": unique}).digest,
        )
        assert redis.hexists(name, "p")
        redis.hset(name, "p", redis.hget(name, "p")[:-1] + b"!")

        again = other.run("calm-redis", {"key": unique}, Counted("not called"))

        assert (again.value, again.layer, again.generation) == ("old", Layer.DATABASE, old.generation)
    assert dropped == []


@pytest.mark.parametrize("encoding", [b"2/json", b"1/json/zstd", b"2/cbor/zstd/aesgcm/1"])
def test_a_result_of_a_newer_release_is_passed_over(unique: str, encoding: bytes, dropped: list[str]) -> None:
    """A rolling deploy: others can read it, so it is never forgotten; who can't read it has it replaced."""
    with nodes(2) as (one, other):
        old = one.run(STAGE, {"key": unique}, Counted("old"))
        _change(one, b"encoding = '%b'" % encoding, old.generation)

        new = other.run(STAGE, {"key": unique}, Counted("new"))

        assert (new.value, new.role) == ("new", Role.OWNER)
        assert one.run(STAGE, {"key": unique}, Counted("not called")).value == "new"
        assert events_of(new) == ["granted", "settled", "granted", "settled"]
    assert dropped == ["unknown"]


def test_callers_who_pass_a_result_over_together_share_one_new_call(unique: str) -> None:
    """P1: in one process, in a thread and on a loop, and in another one."""
    new = Held("new")

    async def ask() -> str:
        async def call() -> str:
            return await asyncio.to_thread(new)

        return (await other.arun(STAGE, {"key": unique}, call)).value

    with nodes(2) as (one, other):
        key = one.key(STAGE, {"key": unique})
        old = one.run(STAGE, {"key": unique}, Counted("old"))
        _change(one, b"encoding = '2/json'", old.generation)

        callers = at_once(3, one.run, STAGE, {"key": unique}, new)
        new.wait_until_begun()
        one.wait_for_callers(key, 3)
        callers += at_once(3, other.run, STAGE, {"key": unique}, new)
        looped = begin(asyncio.run, ask())
        other.wait_for_callers(key, 4)
        new.let_go()

        assert [outcome.value for outcome in results(callers)] == ["new"] * 6
        assert looped.result(20) == "new"
        assert not one.leftovers()
    assert new.count == 1


def test_a_result_sealed_with_a_key_of_later_is_passed_over(
    unique: str, settings: Settings, dropped: list[str]
) -> None:
    """Keys that were not given to every process first: it costs calls, but no answer and no error."""
    old_key, new_key = (base64.b64encode(secrets.token_bytes(32)).decode() for _ in range(2))
    settings.SINGLEFLIGHT = {**settings.SINGLEFLIGHT, "ENCRYPTION_KEYS": [new_key, old_key]}
    with nodes(1) as (ahead,):
        settings.SINGLEFLIGHT = {**settings.SINGLEFLIGHT, "ENCRYPTION_KEYS": [old_key]}
        with nodes(1) as (behind,):
            sealed = ahead.run(STAGE, {"key": unique}, Counted("sealed"))
            passed = behind.run(STAGE, {"key": unique}, Counted("passed"))

            assert (passed.value, passed.role) == ("passed", Role.OWNER)
            assert ahead.run(STAGE, {"key": unique}, Counted("not called")).value == "passed"
            assert sealed.generation is not None
    assert dropped == ["unknown"]


def test_results_sealed_with_a_key_of_later_are_passed_over_again_and_again(unique: str, settings: Settings) -> None:
    """As long as the caller waits: others go on making calls whose outcomes it can't open; at last it makes its own."""
    new_key, old_key = (base64.b64encode(secrets.token_bytes(32)).decode() for _ in range(2))
    settings.SINGLEFLIGHT = {**settings.SINGLEFLIGHT, "ENCRYPTION_KEYS": [new_key]}
    with nodes(1) as (ahead,):
        settings.SINGLEFLIGHT = {**settings.SINGLEFLIGHT, "ENCRYPTION_KEYS": [old_key]}
        with nodes(1) as (behind,):
            ahead.run(STAGE, {"key": unique}, Counted("sealed"))
            begun: list[Future[Outcome[str]]] = []
            replaying = behind.runtime.coordinator.replaying
            pass_over = replaying.pass_over

            def begin_another(*passed: Any) -> None:  # noqa: ANN401
                pass_over(*passed)
                if len(begun) < 2:
                    call = Held("sealed anew")
                    begun.append(begin(ahead.run, STAGE, {"key": unique}, call, is_fresh=True))
                    call.wait_until_begun()
                    begin(_let_go_once_followed, behind, call)

            replaying.pass_over = begin_another  # type: ignore[method-assign,assignment]

            passed = behind.run(STAGE, {"key": unique}, Counted("its own"))

            assert (passed.value, passed.role) == ("its own", Role.OWNER)
            assert [outcome.value for outcome in results(begun)] == ["sealed anew"] * 2


def _let_go_once_followed(node: Node, call: Held[str]) -> None:
    node.wait_for_follower(STAGE)
    call.let_go()


@pytest.mark.parametrize("change", [b"encoding = '2/json'", b"result = null"])
def test_a_worker_that_comes_too_late_leaves_what_it_cant_read_alone(unique: str, change: bytes) -> None:
    """C27: its flight has ended, and nobody asked it for the answer."""
    call = Counted("not called")
    with nodes(2) as (one, late):
        key = one.key(STAGE, {"key": unique})
        old = one.run(STAGE, {"key": unique}, Counted("old"))
        _change(one, change, old.generation)
        policy = late.runtime.settings.policy(STAGE)
        worker: Call[Any] = Call(key, policy, call, for_policy(JsonValue, policy), 0.0, pending=old.flight_id)

        with pytest.raises(ResultUnreadable):
            late.runtime.coordinator.run(worker)

        assert call.count == 0
        assert events_of(old) == ["granted", "settled"]


def test_a_rotation_in_three_deploys_costs_no_call(unique: str, settings: Settings) -> None:
    """Each deploy is half done at some time: whatever one node writes then, the other one reads, from either layer."""
    old, new = (base64.b64encode(secrets.token_bytes(32)).decode() for _ in range(2))
    deploys = [[old], [old, new], [new, old], [new]]
    for number, (before, after) in enumerate(itertools.pairwise(deploys)):
        for stage in ("calm-redis", STAGE):
            settings.SINGLEFLIGHT = {**settings.SINGLEFLIGHT, "ENCRYPTION_KEYS": before}
            with nodes(1) as (behind,):
                settings.SINGLEFLIGHT = {**settings.SINGLEFLIGHT, "ENCRYPTION_KEYS": after}
                with nodes(1) as (ahead,):
                    for writer, reader in ((behind, ahead), (ahead, behind)):
                        key = {"key": f"{unique} {number} {writer is behind}"}
                        assert writer.run(stage, key, Counted("sealed")).role is Role.OWNER
                        assert reader.run(stage, key, Counted("not called")).value == "sealed"


def test_a_sealed_result_is_no_text_in_any_server(unique: str, settings: Settings) -> None:
    """Neither in the row nor in Redis; both give it back."""
    key = base64.b64encode(secrets.token_bytes(32)).decode()
    settings.SINGLEFLIGHT = {**settings.SINGLEFLIGHT, "ENCRYPTION_KEYS": [key]}
    with nodes(2) as (one, other):
        called = one.run("calm-redis", {"key": unique}, Counted("my answer"))
        again = other.run("calm-redis", {"key": unique}, Counted("not called"))

        assert (again.value, again.layer) == ("my answer", Layer.REDIS)
        row = row_of(called)
        assert b"answer" not in bytes(row.result or b"")
        assert row.encoding.startswith("1/json/aesgcm/")
        name = b"singleflight:%b:outcome:%b" % (one.runtime.settings.namespace.encode(), bytes(row.digest))
        assert b"answer" not in get_redis_connection("default").hget(name, "p")


def test_a_result_of_the_type_of_yesterday_is_a_miss(unique: str, dropped: list[str]) -> None:
    """C36: the function returns another type since the last deploy."""
    with nodes(2) as (yesterday, today):
        yesterday.run(STAGE, {"key": unique}, Counted({"points": 7}))

        new = today.run(STAGE, {"key": unique}, Counted([7]), result_type=list[int])

        assert (new.value, new.role) == ([7], Role.OWNER)
    assert dropped == ["unreadable"]


def test_a_second_unreadable_result_is_an_error(unique: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two releases that write over each other: the caller is told, instead of paying in turn with the other."""
    with nodes(2) as (yesterday, today):
        call: Counted[Any] = Counted({"points": 7})
        yesterday.run(STAGE, {"key": unique}, call)
        replaying = today.runtime.coordinator.replaying
        drop_alone = replaying.drop

        def drop(*dropped: Any) -> None:  # noqa: ANN401
            monkeypatch.setattr(replaying, "drop", drop_alone)
            drop_alone(*dropped)
            yesterday.run(STAGE, {"key": unique}, call)

        monkeypatch.setattr(replaying, "drop", drop)

        with pytest.raises(ResultUnreadable, match="two stored results in a row could not be read"):
            today.run(STAGE, {"key": unique}, Counted([7]), result_type=list[int])
    assert call.count == 2
