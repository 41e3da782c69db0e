"""Replay cache in Redis: one hash per flight key, written under rule R15.

A hash holds the entry (generation `g`, payload `p`, expiry `x`), the floor `f` and the epoch `e`, a random
value that a flush loses. A writer shows the epoch that it saw before it read the row, and a time by which
it must write; both keep a late or paused writer from bringing an old outcome back. Times are Redis time in
milliseconds. Each script touches one key, so that a cluster runs it.
"""

import hashlib
import json
import secrets
import time
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

from redis.exceptions import NoScriptError, RedisClusterException, RedisError

from singleflight_app.domain.exceptions import CoordinationUnavailable
from singleflight_app.domain.flight import Settled, StoredResult, Usage
from singleflight_app.domain.records import Kept, Looked, Ticket
from singleflight_app.domain.states import Status
from singleflight_app.telemetry.signals import announce, coordination_failed

ERRORS = (RedisError, RedisClusterException)  #: a cluster's client raises both
WRITE_WITHIN = 5.0  #: seconds after its row was read or settled in which an outcome may be written
FLOOR_SECONDS = 60.0  #: outlives WRITE_WITHIN by far
PAUSE = 1.0  #: seconds without Redis after a failure, so that an outage costs one timeout, not one per caller

_NOW = "local t = redis.call('TIME') local now = t[1] * 1000 + math.floor(t[2] / 1000) "
_KEEP_AT_LEAST = (
    "local function keep_for(ms) if redis.call('PTTL', KEYS[1]) < ms then redis.call('PEXPIRE', KEYS[1], ms) end end "
)
#: ARGV: epoch to begin with, lifetime of an empty hash. Returns payload and what is left of it, or nil, now, epoch.
#: The write that changes nothing is refused by a replica: nobody is answered by a primary that was replaced.
_LOOK = (
    _NOW
    + _KEEP_AT_LEAST
    + """
redis.call('HDEL', KEYS[1], '')
local v = redis.call('HMGET', KEYS[1], 'p', 'g', 'x', 'f', 'e')
if v[1] and tonumber(v[3]) > now and tonumber(v[2]) > tonumber(v[4] or '0') then return {v[1], tonumber(v[3]) - now} end
local epoch = v[5]
if not epoch then
    epoch = ARGV[1]
    redis.call('HSET', KEYS[1], 'e', epoch)
end
keep_for(tonumber(ARGV[2]))
return {false, now, epoch}
"""
)
#: ARGV: generation, payload, expiry, time to write by, epoch seen. Returns 1 if kept.
_KEEP = (
    _NOW
    + _KEEP_AT_LEAST
    + """
local generation, expires = tonumber(ARGV[1]), tonumber(ARGV[3])
local v = redis.call('HMGET', KEYS[1], 'g', 'f', 'e')
if v[3] ~= ARGV[5] or now > tonumber(ARGV[4]) or now >= expires then return 0 end
if generation <= tonumber(v[1] or '0') or generation <= tonumber(v[2] or '0') then return 0 end
redis.call('HSET', KEYS[1], 'g', ARGV[1], 'p', ARGV[2], 'x', ARGV[3])
keep_for(expires - now)
return 1
"""
)
#: ARGV: generation, epoch to begin with, lifetime of the floor.
_RAISE_FLOOR = (
    _KEEP_AT_LEAST
    + """
local v = redis.call('HMGET', KEYS[1], 'g', 'f', 'e')
local generation = tonumber(ARGV[1])
if not v[3] then redis.call('HSET', KEYS[1], 'e', ARGV[2]) end
if generation > tonumber(v[2] or '0') then redis.call('HSET', KEYS[1], 'f', ARGV[1]) end
if v[1] and tonumber(v[1]) <= generation then redis.call('HDEL', KEYS[1], 'g', 'p', 'x') end
keep_for(tonumber(ARGV[3]))
return 1
"""
)


class _Script:
    """A script that touches one key; a server that does not know it yet is sent the text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    def run(self, client: Any, key: bytes, arguments: Sequence[Any]) -> Any:  # noqa: ANN401  (what Lua returns)
        try:
            return client.evalsha(self.sha, 1, key, *arguments)
        except NoScriptError:
            return client.eval(self._text, 1, key, *arguments)


class RedisReplayCache:
    """Successes of all processes, near the caller; failures of Redis are announced and cost latency only."""

    def __init__(
        self,
        client: Any,  # noqa: ANN401  (redis.Redis or a cluster client)
        *,
        namespace: str,
        ticket_lifetime: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._monotonic = monotonic
        self._prefix = f"singleflight:{namespace}:outcome:".encode()
        self._ticket_lifetime = int(ticket_lifetime * 1000)
        self._client = client
        self._look, self._keep, self._raise_floor = map(_Script, (_LOOK, _KEEP, _RAISE_FLOOR))
        self._paused_until = float("-inf")
        self._is_failing = False

    def look(self, digest: bytes) -> Looked:
        """Return the outcome of a key, or else the ticket for writing one; neither while Redis is away."""
        now = self._monotonic()
        if now < self._paused_until:
            return Looked()
        if self._is_failing:
            self._paused_until = now + PAUSE  # one caller finds out whether Redis is back; the others go on without
        try:
            arguments = [secrets.token_hex(8), self._ticket_lifetime]
            payload, number, *epoch = self._look.run(self._client, self._prefix + digest, arguments)
        except ERRORS as exc:
            self._failed(exc)
            return Looked()
        self._is_failing, self._paused_until = False, float("-inf")
        if payload is not None:
            return Looked(_unpacked(payload), number / 1000)
        # Counted from after the reply: Redis can only be further ahead than this.
        return Looked(ticket=Ticket(epoch[0], number / 1000 - self._monotonic()))

    def keep(self, offered: Sequence[Kept]) -> None:
        """Offer outcomes, in one trip; those without a ticket, and failures, are passed over."""
        offers = [offer for kept in offered if (offer := self._offer(kept)) is not None]
        if not offers or self._monotonic() < self._paused_until:
            return
        try:
            self._send(offers)
        except ERRORS as exc:
            self._failed(exc)

    def _offer(self, kept: Kept) -> tuple[bytes, list[Any]] | None:
        """Return key and arguments of the script; the times are Redis time, estimated low."""
        if kept.ticket is None or kept.settled.result is None:
            return None
        then = kept.as_of + kept.ticket.redis_ahead
        times = [int((then + kept.remaining) * 1000), int((then + WRITE_WITHIN) * 1000)]
        arguments = [kept.settled.generation, _packed(kept.settled), *times, kept.ticket.epoch]
        return self._prefix + kept.digest, arguments

    def _send(self, offers: list[tuple[bytes, list[Any]]]) -> None:
        with self._client.pipeline(transaction=False) as trip:
            for key, arguments in offers:
                # Not by its method: a cluster's pipeline refuses that, for scripts of several keys.
                trip.execute_command("EVALSHA", self._keep.sha, 1, key, *arguments)
            answers = trip.execute(raise_on_error=False)
        errors = [answer for answer in answers if isinstance(answer, Exception)]
        if not all(isinstance(error, NoScriptError) for error in errors):
            raise next(error for error in errors if not isinstance(error, NoScriptError))
        if errors:
            # One by one the script is loaded where it is missing; offering an outcome twice changes nothing.
            for key, arguments in offers:
                self._keep.run(self._client, key, arguments)

    def raise_floor(self, digest: bytes, generation: int) -> None:
        """Refuse generations up to this one from now on; raise CoordinationUnavailable if unconfirmed."""
        try:
            arguments = [generation, secrets.token_hex(8), int(FLOOR_SECONDS * 1000)]
            self._raise_floor.run(self._client, self._prefix + digest, arguments)
        except ERRORS as exc:
            self._failed(exc)
            problem = "Redis did not confirm that the outcome is dropped from the replay cache; forget it again"
            raise CoordinationUnavailable(problem) from exc

    def _failed(self, exc: Exception) -> None:
        self._is_failing, self._paused_until = True, self._monotonic() + PAUSE
        announce(coordination_failed, component="cache", error=type(exc).__name__)


def _packed(settled: Settled) -> bytes:
    result, usage = settled.result, settled.usage
    assert result is not None  # noqa: S101  (keep() checked it)
    head = [
        settled.flight_id,
        settled.generation,
        result.encoding,
        result.checksum.hex(),
        result.size,
        usage.model,
        usage.input_tokens,
        usage.output_tokens,
        str(usage.cost),
    ]
    return json.dumps(head).encode() + b"\n" + result.payload


def _unpacked(packed: bytes) -> Settled | None:
    """Return the outcome of an entry; one that can't be read is a miss."""
    head, _, payload = packed.partition(b"\n")
    try:
        flight_id, generation, encoding, checksum, size, model, input_tokens, output_tokens, cost = json.loads(head)
        usage = Usage(model, input_tokens, output_tokens, Decimal(cost))
        result = StoredResult(payload, encoding, bytes.fromhex(checksum), size)
    except (ValueError, TypeError, ArithmeticError):
        return None
    return Settled(flight_id, generation, Status.SUCCEEDED, result, usage=usage)
