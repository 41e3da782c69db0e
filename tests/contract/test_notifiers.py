"""What every notifier keeps: sending is never the sender's trouble, and what is heard is what was sent, in its order.

The null one hears nothing and says so. A listener hears each hint of a stage from the moment that it opened it.
"""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pytest_django.fixtures import Settings
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from config.servers import start_servers
from singleflight_app.domain.records import FLOORS, Hint
from singleflight_app.engine.ports import Notifier
from singleflight_app.notify.clients import connect
from singleflight_app.notify.null import NullNotifier
from singleflight_app.notify.redis_stream import PAUSE, RedisStreamNotifier
from tests.embedded import Folder, folder, kill
from tests.held import at_once, results

Client = Any  #: django-redis hands out a client without types
Process = Callable[[], Notifier]  #: returns the notifier of one more process
A_WHILE = 0.5  #: seconds of a read that has something to hear
AT_ONCE = 0.01  #: seconds of a read that has not
BATCH = 1000  #: messages that one read brings at most


@pytest.fixture(scope="module")
def redis() -> Client:
    start_servers()
    return connect("default")


@pytest.fixture(params=["redis stream", "null"])
def process(request: pytest.FixtureRequest, unique: str) -> Process:
    """Every kind of notifier in turn."""
    if request.param == "null":
        return NullNotifier
    client = request.getfixturevalue("redis")
    return lambda: RedisStreamNotifier(client, namespace=unique, length=100)


@pytest.fixture
def listening(redis: Client, unique: str) -> Process:
    """Those that hear."""
    return lambda: RedisStreamNotifier(redis, namespace=unique, length=5000)


@pytest.fixture
def valkey(tmp_path: Path, settings: Settings) -> Iterator[Folder]:
    """A Valkey of the test's own, which may go away; the cache `default` leads to it."""
    with folder(tmp_path / "servers") as here:
        settings.CACHES = {
            "default": {**settings.CACHES["default"], "LOCATION": f"unix://{here.sockets / 'valkey.sock'}?db=0"}
        }
        _start(here)
        yield here


def _start(valkey: Folder) -> None:
    valkey.user(DATABASE_URL="postgres://nobody@database.invalid/none")


def _stop(valkey: Folder) -> None:
    """Let the server be away until it is started: whoever would start it again is killed with it."""
    kill(*valkey.keepers("valkey"), *valkey.servers("valkey-server"))


def opened(process: Process, *stages: str) -> Notifier:
    notifier = process()
    for stage in stages:
        notifier.open(stage)
    return notifier


def hints(count: int, key: bytes = b"key") -> list[Hint]:
    return [Hint(key, number) for number in range(1, count + 1)]


def test_sending_is_no_trouble_whether_or_not_anybody_listens(process: Process) -> None:
    """P8: one hint, many, or none at all."""
    notifier = process()

    is_sent = [notifier.publish([("score", hint) for hint in hints(count)]) for count in (0, 1, 200)]

    assert is_sent == [True] * 3


def test_a_stage_is_opened_once(process: Process) -> None:
    """Which time was the first is told, so that whoever opened it looks at the rows once more; null has none."""
    notifier = process()

    told = [notifier.open("score"), notifier.open("score"), notifier.open("report")]

    assert told == [notifier.is_listening, False, notifier.is_listening]


def test_a_hint_reaches_those_who_listen_and_nobody_else(process: Process) -> None:
    """R9: `is_listening` says beforehand whether to rely on the poll alone."""
    sender, listener = process(), opened(process, "score")

    sender.publish([("score", Hint(b"key", 7))])

    assert listener.read(["score"], A_WHILE) == ([Hint(b"key", 7)] if listener.is_listening else [])


def test_a_quiet_stage_is_read_in_vain(process: Process) -> None:
    """No error, and no hint."""
    listener = opened(process, "score")

    assert listener.read(["score"], AT_ONCE) == []


def test_the_null_notifier_says_that_it_hears_nothing() -> None:
    """P6: without Redis followers rely on the poll, and no thread listens for nothing."""
    assert NullNotifier.is_listening is False


def test_every_listener_hears_every_hint_in_order(listening: Process) -> None:
    """Each process has a position of its own; a stream is no queue. The sender hears itself, too."""
    listeners = [opened(listening, "score") for _ in range(3)]

    listeners[0].publish([("score", hint) for hint in hints(10)])

    for listener in listeners:
        assert listener.read(["score"], A_WHILE) == hints(10)
        assert listener.read(["score"], AT_ONCE) == []


def test_what_was_sent_before_the_stage_was_opened_is_not_heard_and_what_came_after_is(listening: Process) -> None:
    """R9: reading starts from where the stage was opened, never blindly from the end."""
    listener, sender = listening(), listening()
    sender.publish([("score", Hint(b"before", 1))])
    listener.open("score")
    sender.publish([("score", Hint(b"after", 2))])
    listener.open("score")

    assert listener.read(["score"], A_WHILE) == [Hint(b"after", 2)]


def test_a_stage_that_nobody_has_sent_to_is_opened_at_its_beginning(listening: Process) -> None:
    """The first hint that its stream ever has is heard."""
    listener = opened(listening, "score")

    listening().publish([("score", Hint(b"first", 1))])

    assert listener.read(["score"], A_WHILE) == [Hint(b"first", 1)]


def test_nothing_is_lost_between_two_reads(listening: Process) -> None:
    """R9: nor is anything heard twice, however the sending and the reading fall."""
    listener, sender = opened(listening, "score"), listening()
    heard: list[Hint] = []

    for hint in hints(20):
        sender.publish([("score", hint)])
        if hint.generation % 3 == 0:
            heard += listener.read(["score"], A_WHILE)
    heard += listener.read(["score"], A_WHILE)

    assert heard == hints(20)


def test_more_than_one_read_can_bring_is_brought_by_the_next(listening: Process) -> None:
    """A listener that was away for a while catches up."""
    listener = opened(listening, "score")
    listening().publish([("score", hint) for hint in hints(2 * BATCH + 1)])

    heard = [listener.read(["score"], A_WHILE) for _ in range(3)]

    assert [len(batch) for batch in heard] == [BATCH, BATCH, 1]
    assert list(itertools.chain(*heard)) == hints(2 * BATCH + 1)


def test_senders_that_race_are_all_heard(listening: Process) -> None:
    """Those of one sender in its order; a listener that reads meanwhile misses none."""
    listener, senders = opened(listening, "score"), [listening() for _ in range(4)]
    keys = itertools.count()

    def send() -> None:
        number = next(keys)
        for hint in hints(25, b"%d" % number):
            senders[number].publish([("score", hint)])

    sending = at_once(4, send)
    heard: list[Hint] = []
    while len(heard) < 100 and (batch := listener.read(["score"], A_WHILE)):
        heard += batch

    results(sending)
    for number in range(4):
        assert [hint for hint in heard if hint.digest == b"%d" % number] == hints(25, b"%d" % number)


def test_several_stages_are_sent_to_and_read_at_once(listening: Process) -> None:
    """One trip for all; each stage keeps its own order and position."""
    listener = opened(listening, "score", "report", "quiet")
    listening().publish([("report", Hint(b"r", 1)), ("score", Hint(b"s", 2)), ("report", Hint(b"r", 3))])

    heard = listener.read(["score", "report", "quiet"], A_WHILE)

    assert sorted(heard) == [Hint(b"r", 1), Hint(b"r", 3), Hint(b"s", 2)]
    assert heard.index(Hint(b"r", 1)) < heard.index(Hint(b"r", 3))
    assert listener.read(["score", "report", "quiet"], AT_ONCE) == []


def test_a_stage_that_is_left_out_of_a_read_keeps_its_place(listening: Process) -> None:
    """Nobody waits there for now; what was sent meanwhile is heard by the next read of it."""
    listener = opened(listening, "score", "report")
    listening().publish([("score", Hint(b"s", 1)), ("report", Hint(b"r", 2))])

    assert listener.read(["report"], A_WHILE) == [Hint(b"r", 2)]
    assert listener.read(["score"], A_WHILE) == [Hint(b"s", 1)]


@pytest.mark.parametrize("digest", [b"", b"\x00\xff" * 16, b"\r\n*3\r\n$", bytes(range(256)), "\u4f60".encode()])
def test_any_bytes_and_any_generation_come_as_they_were(listening: Process, digest: bytes) -> None:
    """A digest is no text; a generation has 63 bits; a hint is a floor or is none."""
    listener = opened(listening, "score", FLOORS)
    hint, floor = Hint(digest, 2**63 - 1), Hint(digest, 2**63 - 1, is_floor=True)

    listening().publish([("score", hint), (FLOORS, floor)])

    assert listener.read(["score"], A_WHILE) == [hint]
    assert listener.read([FLOORS], A_WHILE) == [floor]


def test_a_stage_may_be_opened_some_seconds_back(process: Process) -> None:
    """R15: whoever remembers what it read a moment ago hears of what was forgotten since."""
    sender, listener, late = process(), process(), process()
    sender.publish([(FLOORS, Hint(b"key", 1, is_floor=True))])

    told = [listener.open(FLOORS, back=60), listener.open(FLOORS, back=60), late.open(FLOORS)]

    assert told == [listener.is_listening, False, late.is_listening]
    assert listener.read([FLOORS], A_WHILE) == [Hint(b"key", 1, is_floor=True)] * listener.is_listening
    assert late.read([FLOORS], AT_ONCE) == []


def test_namespaces_are_apart(listening: Process, redis: Client, unique: str) -> None:
    """Two installations on one Redis don't hear each other."""
    other = RedisStreamNotifier(redis, namespace=f"{unique}-other", length=100)
    other.open("score")

    listening().publish([("score", Hint(b"key", 1))])

    assert other.read(["score"], AT_ONCE) == []


def test_a_stream_keeps_to_its_length(redis: Client, unique: str) -> None:
    """P4: bounded, give or take what Redis trims in one go; a listener too slow for it hears the newest."""
    notifier = RedisStreamNotifier(redis, namespace=unique, length=100)
    notifier.open("score")
    for number in range(10):
        notifier.publish([("score", Hint(b"key", number * 100 + rest)) for rest in range(100)])

    heard = notifier.read(["score"], A_WHILE)

    assert redis.xlen(f"{{singleflight:{unique}}}:hints:score") == len(heard) < 300
    assert [hint.generation for hint in heard] == list(range(1000 - len(heard), 1000))


def test_a_flushed_stream_is_read_on(listening: Process, redis: Client, unique: str) -> None:
    """C20: hints get lost, later ones are heard."""
    listener = opened(listening, "score")
    listening().publish([("score", Hint(b"lost", 1))])
    redis.delete(f"{{singleflight:{unique}}}:hints:score")

    listening().publish([("score", Hint(b"heard", 2))])

    assert listener.read(["score"], A_WHILE) == [Hint(b"heard", 2)]


def test_a_server_that_goes_away_is_an_error_to_listeners_and_none_to_senders(
    unique: str, valkey: Folder, failures: list[str]
) -> None:
    """P6, C20: and when it is back, as empty as a restart leaves it, the stage is opened anew and hints are heard."""
    now = [0.0]
    listener = RedisStreamNotifier(connect("default"), namespace=unique, length=100, monotonic=lambda: now[0])
    sender = RedisStreamNotifier(connect("default"), namespace=unique, length=100, monotonic=lambda: now[0])
    listener.open("score")
    sender.publish([("score", hint) for hint in hints(3)])
    before = listener.read(["score"], A_WHILE)

    _stop(valkey)
    sender.publish([("score", Hint(b"into the void", 4))])
    with pytest.raises(ConnectionError):
        listener.read(["score"], A_WHILE)
    with pytest.raises(ConnectionError):
        listener.open("score")
    _start(valkey)
    now[0] += PAUSE
    is_new = listener.open("score")
    sender.publish([("score", Hint(b"back", 5))])

    assert (before, failures, is_new) == (hints(3), ["notify"], True)
    assert listener.read(["score"], A_WHILE) == [Hint(b"back", 5)]


def test_an_outage_costs_senders_one_try_a_second(unique: str, failures: list[str]) -> None:
    """P6: not one for each hint; each try that failed is announced, and each hint's sender told."""
    now = [0.0]
    nowhere = Redis(unix_socket_path="/nonexistent/redis.sock", retry=Retry(NoBackoff(), 0))
    away = RedisStreamNotifier(nowhere, namespace=unique, length=100, monotonic=lambda: now[0])

    is_sent = [away.publish([("score", Hint(b"key", 1))]) for _ in range(3)]
    tried = list(failures)
    now[0] += PAUSE
    is_sent.append(away.publish([("score", Hint(b"key", 1))]))

    assert (tried, failures) == (["notify"], ["notify", "notify"])
    assert is_sent == [False] * 4
