"""The Redis of CACHE: version, role, clock, memory, eviction, persistence, and a hint that is sent and read back.

Redis only makes things faster, so hardly anything here is an error: without it answers come a poll later.
"""

import secrets
import time
from collections.abc import Iterator, Mapping
from typing import Any

from django.core.cache.backends.base import InvalidCacheBackendError

from singleflight_app.conf import Settings
from singleflight_app.domain.records import FLOORS
from singleflight_app.health.finding import Finding, error, note, ok, warning

LEAST_VERSION = (6, 2)
FULL = 0.9  #: of maxmemory
LONG = 2  #: times STREAM_LENGTH: it is capped roughly
CLOCK_MOST = 5.0  #: seconds
_POLL = "until then followers are woken by the poll, and replays come from PostgreSQL"
Info = Mapping[str, Any]


def check(settings: Settings) -> Iterator[Finding]:
    """Yield all that is found about Redis."""
    yield from _asked(settings, is_glance=False)


def glance(settings: Settings) -> Iterator[Finding]:
    """Yield what a dashboard shows: whether it answers, and how late a hint comes."""
    yield from _asked(settings, is_glance=True)


def _asked(settings: Settings, *, is_glance: bool) -> Iterator[Finding]:
    if settings.cache is None:
        text = "no Redis: followers are woken by the poll, and replays come from PostgreSQL or memory"
        yield note("redis.answer", text, "Set CACHE to an alias of django-redis, if answers should come sooner.")
        return
    try:
        from redis.exceptions import RedisClusterException, RedisError  # noqa: PLC0415  (an extra)

        from singleflight_app.notify.clients import connect  # noqa: PLC0415
    except ImportError:
        text = "CACHE is set, but django-redis is missing"
        yield error("redis.answer", text, 'Install the extra: pip install "django-singleflight-app[redis]".')
        return
    client = connect(settings.cache)
    try:
        yield from _server(client, settings, is_glance=is_glance)
    except (RedisError, RedisClusterException) as exc:
        text = f"Redis ({settings.cache!r}) gives no answer: {exc}; {_POLL}, and forget() fails"
        yield error("redis.answer", text, f"Start it, or correct CACHES[{settings.cache!r}].")
    except (InvalidCacheBackendError, NotImplementedError):
        text = f"CACHE is {settings.cache!r}, which is no alias of django-redis"
        yield error("redis.answer", text, "Use the backend django_redis.cache.RedisCache, or set CACHE to None.")
    finally:
        client.close()


def _server(client: Any, settings: Settings, *, is_glance: bool) -> Iterator[Finding]:  # noqa: ANN401
    client.ping()  # the dialling is not the answer's time
    began = time.perf_counter()
    client.ping()
    answer_ms = round((time.perf_counter() - began) * 1000, 2)
    nodes = _nodes(client)
    version = " and ".join(sorted({_version(info) for info in nodes})) or "of a version that it does not tell"
    facts = {"version": version, "answer_ms": answer_ms, "nodes": max(1, len(nodes))}
    yield ok("redis.answer", f"Redis {version} answers in {answer_ms:.1f} ms", **facts)
    if any(info.get("role") == "slave" for info in nodes):
        text = "CACHE leads to a replica, which takes no hint and no outcome"
        yield error("redis.replica", text, "Point its LOCATION at the primary, or use Sentinel (docs/redis.md).")
        return
    yield _lag(client, settings)
    if not is_glance:
        saves = _saves(client)
        for info in nodes:
            yield from _node(info, saves=saves)
        yield _clock(client)
        yield _lengths(client, settings)


def _nodes(client: Any) -> list[Info]:  # noqa: ANN401
    """Return what each primary tells of itself; a server that forbids INFO tells nothing."""
    from redis.exceptions import ResponseError  # noqa: PLC0415

    try:
        told = client.info()
    except ResponseError:
        return []
    if told and all(isinstance(value, dict) and "role" in value for value in told.values()):
        return [info for info in told.values() if info.get("role") == "master"]  # a cluster's, by node
    return [told]


def _version(info: Info) -> str:
    name = "Valkey " if info.get("valkey_version") else ""
    return f"{name}{info.get('valkey_version') or info.get('redis_version', '?')}"


def _node(info: Info, *, saves: bool | None) -> Iterator[Finding]:
    numbers = tuple(int(part) for part in str(info.get("redis_version", "")).split(".")[:2] if part.isdigit())
    if numbers and numbers < LEAST_VERSION:
        text = f"Redis {info['redis_version']} is older than what the streams need"
        yield error("redis.version", text, "Upgrade to Redis 6.2 or newer, or to Valkey.")
    yield from _memory(info)
    yield from _persistence(info, saves=saves)


def _memory(info: Info) -> Iterator[Finding]:
    most, used, policy = int(info.get("maxmemory", 0)), int(info.get("used_memory", 0)), info.get("maxmemory_policy")
    facts = {"maxmemory": most, "used": used, "policy": policy}
    if most and used > FULL * most and policy == "noeviction":
        text = (
            f"memory is full ({used} of {most} bytes) and noeviction refuses writes: hints are lost, and forget() fails"
        )
        repair = "Raise maxmemory, or set maxmemory-policy to volatile-lru: outcomes may go, the streams stay."
        yield warning("redis.memory", text, repair, **facts)
    elif policy and str(policy).startswith("allkeys"):
        text = (
            f"maxmemory-policy is {policy}: under pressure the streams of hints may be evicted, which costs a poll "
            "interval each; answers stay right"
        )
        yield note("redis.eviction", text, "Prefer volatile-lru, or a Redis of the app's own.", **facts)
    else:
        yield ok("redis.memory", f"maxmemory-policy is {policy or 'not told'}, {used} bytes are used", **facts)


def _persistence(info: Info, *, saves: bool | None) -> Iterator[Finding]:
    if "aof_enabled" not in info:
        return
    if info["aof_enabled"]:
        yield ok("redis.persistence", "it writes an append-only file", aof=True)
    elif saves is False:
        text = "it keeps nothing on disk: a restart loses the replay cache and hints under way, which costs time alone"
        yield ok("redis.persistence", text, aof=False, snapshots=False)
    else:
        text = (
            "it saves snapshots, or may, and no append-only file: a restart from an old one may bring back outcomes "
            "that were forgotten since"
        )
        repair = 'Turn appendonly on, or snapshots off (save ""): the app needs nothing of Redis after a restart.'
        yield note("redis.persistence", text, repair, aof=False, snapshots=saves)


def _saves(client: Any) -> bool | None:  # noqa: ANN401
    """Tell whether it saves snapshots; None: it does not say."""
    from redis.exceptions import RedisClusterException, RedisError  # noqa: PLC0415

    try:
        told = client.config_get("save")
    except (RedisError, RedisClusterException):
        return None  # managed servers forbid CONFIG
    return bool(told["save"]) if "save" in told else None


def _lag(client: Any, settings: Settings) -> Finding:  # noqa: ANN401
    """Send a hint on a stream that nobody listens to, and read it back."""
    stream, mark = f"{_prefix(settings)}*probe", secrets.token_hex(4).encode()
    began = time.perf_counter()
    sent = client.xadd(stream, {"probe": mark}, maxlen=10, approximate=True)
    client.pexpire(stream, 60_000)
    before = f"{int(sent.partition(b'-')[0]) - 1}-0"
    answer = client.xread({stream: before}, count=10, block=1000)
    took = round((time.perf_counter() - began) * 1000, 2)
    messages = [
        fields for _, found in (answer.items() if isinstance(answer, dict) else answer or []) for _, fields in found
    ]
    if mark not in str(messages).encode():
        text = f"a hint that was sent did not come back within a second; {_POLL}"
        return warning("redis.stream", text, "Look at its memory and its eviction policy.")
    return ok("redis.stream", f"a hint comes back in {took:.1f} ms", lag_ms=took)


def _clock(client: Any) -> Finding:  # noqa: ANN401
    here = time.time()
    told = client.time()
    now, micros = next(iter(told.values())) if isinstance(told, dict) else told
    ahead = now + micros / 1e6 - here
    text = f"this machine's clock and Redis's are {abs(ahead):.1f} s apart"
    if abs(ahead) > CLOCK_MOST:
        text += "; nothing hangs on it, but times in logs mislead"
        return warning("redis.clock", text, "Let NTP set both clocks.", ahead_s=round(ahead, 3))
    return ok("redis.clock", text, ahead_s=round(ahead, 3))


def _lengths(client: Any, settings: Settings) -> Finding:  # noqa: ANN401
    lengths = {stage: client.xlen(_prefix(settings) + stage) for stage in (FLOORS, *settings.stages)}
    longest = max(lengths, key=lambda stage: lengths[stage])
    text = f"the longest stream, of {longest}, has {lengths[longest]} hints; the cap is {settings.stream_length}"
    if lengths[longest] > LONG * settings.stream_length:
        repair = "Give every process the same STREAM_LENGTH: whoever adds a hint cuts the stream to its own."
        return warning("redis.stream_length", text, repair, lengths=lengths)
    return ok("redis.stream_length", text, lengths=lengths)


def _prefix(settings: Settings) -> str:
    """Return what the names of the streams begin with, as the notifier makes them."""
    return f"{{singleflight:{settings.namespace}}}:hints:"
