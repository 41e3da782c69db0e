"""A key with its row and its real replay cache, and those who ask for it, forget it or trouble it, step by step.

The row is a model of what one statement each does; the cache and its scripts are the real ones, on the real Valkey.
Time passes when a step says so: for the row by its clock, for Redis by what is left of its times.
"""

import time
from collections import defaultdict
from collections.abc import Hashable
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, TypeVar

from redis.commands.core import Script

from singleflight_app.domain.flight import Settled, StoredResult
from singleflight_app.domain.records import Kept, Looked, Ticket
from singleflight_app.domain.states import Status
from singleflight_app.outcomes.cache import FLOOR_SECONDS, WRITE_WITHIN, RedisReplayCache
from tests.exploring import Steps

T = TypeVar("T")

TTL = 600.0
RESULT = StoredResult(b"1", "1/json", b"c" * 32, 1)
_READ = "local v = redis.call('HMGET', KEYS[1], 'g', 'f', 'e') v[4] = redis.call('TTL', KEYS[1]) return v"
_ROUNDING = 0.002  #: Redis times are whole milliseconds


@dataclass(frozen=True)
class Row:
    """The row as one statement saw it."""

    generation: int
    is_running: bool = True
    forgotten: bool = False
    lease_is_over: bool = False
    expires_at: float = 0.0


class World:
    """One key: its row, its entry in Redis, and what was promised about them."""

    def __init__(self, redis: Any, cache: RedisReplayCache, name: bytes, digest: bytes) -> None:  # noqa: ANN401  (a client without types)
        self._redis, self._name, self._digest = redis, name, digest
        self._cache, self._read = cache, Script(redis, _READ)
        self._generations = count(1)
        self._ends: dict[int, float] = {}  #: when the outcome of each generation is past its TTL
        self._seen: dict[int, list[object]] = defaultdict(list)
        self._epochs: list[bytes] = []
        self._held: tuple[int, ...] | None = None
        self.acting = -1
        self.now = 0.0  #: the row's clock: it stands still between the steps that let time pass
        self.row: Row | None = None
        self.gone = 0  #: the generation up to which nobody who looks from now on may get an outcome
        self.highest = 0  #: the newest generation that the cache ever held

    # -------------------------------------------------------------------------------------------- the explorer
    def check(self) -> None:
        """See that the cache holds nothing forgotten or replaced, and nothing older than what it held before."""
        held = self._entry()[0]
        assert not held or held > self.gone, f"generation {held} is held, up to {self.gone} is gone"
        assert not held or held >= self.highest, f"generation {held} is held, {self.highest} was there before"
        self.highest = max(self.highest, held)

    def state(self) -> Hashable:
        return self.row, self.now, self.gone, self.highest, self._entry()

    def known_to(self, actor: int) -> Hashable:
        return tuple(self._seen[actor])

    def _entry(self) -> tuple[int, ...]:
        """Return generation, floor, epoch and lifetime of what Redis has; 0 stands for nothing."""
        if self._held is None:
            generation, floor, epoch, left = self._read(keys=[self._name])
            self._held = (int(generation or 0), int(floor or 0), self._number_of(epoch), left)
        return self._held

    def _number_of(self, epoch: bytes | None) -> int:
        if epoch is None:
            return 0
        if epoch not in self._epochs:
            self._epochs.append(epoch)
        return self._epochs.index(epoch) + 1

    def _saw(self, fact: T) -> T:
        self._seen[self.acting].append(fact)
        return fact

    # ------------------------------------------------------------------------------------------------- the row
    def claim(self) -> tuple[bool, Row, float]:
        """Insert a row and return (True, row), or return (False, row as it is); and when that was."""
        is_granted = self.row is None
        self.row = self.row or Row(next(self._generations))
        return self._saw((is_granted, self.row, self.now))

    def grant(self, seen: Row, *, is_fresh: bool) -> Row | None:
        """Grant a new generation over the row that was seen; None: it moved."""
        row = self.row
        if row is None or (row.generation, row.is_running) != (seen.generation, seen.is_running):
            return self._saw(None)
        is_open = row.lease_is_over if row.is_running else is_fresh or row.forgotten or row.expires_at <= self.now
        if not is_open:
            return self._saw(None)
        self.row = Row(next(self._generations))
        return self._saw(self.row)

    def settle(self, mine: Row) -> tuple[bool | None, float]:
        """Store a success; return whether it was forgotten meanwhile, None: refused; and when that was."""
        row = self.row
        if row is None or not row.is_running or row.generation != mine.generation:
            return self._saw((None, self.now))
        self._ends[row.generation] = self.now + TTL
        self.row = replace(row, is_running=False, expires_at=self._ends[row.generation])
        return self._saw((row.forgotten, self.now))

    def forget(self) -> int | None:
        """Mark the outcome as forgotten and return its generation; None: there is none to drop."""
        row = self.row
        if row is None or not (row.is_running or row.expires_at > self.now):
            return self._saw(None)
        self.row = replace(row, forgotten=True)
        return self._saw(row.generation)

    # ----------------------------------------------------------------------------------------------- the cache
    def look(self) -> Looked:
        """Look, and see that what comes is not gone, nor past its TTL."""
        looked, self._held = self._cache.look(self._digest), None
        if looked.settled is None:
            assert looked.ticket is not None, "Redis did not answer"
            self._saw(self._number_of(looked.ticket.epoch))
            return looked
        generation = self._saw(looked.settled.generation or 0)
        assert generation > self.gone, f"generation {generation} was replayed, up to {self.gone} is gone"
        assert looked.remaining > 0, f"generation {generation} was replayed past its TTL"
        past = self.now + looked.remaining - self._ends[generation]
        assert past <= _ROUNDING, f"generation {generation} is replayed for {past} s too long"
        return looked

    def keep(self, generation: int, ticket: Ticket | None, *, remaining: float, as_of: float) -> None:
        settled = Settled(7, generation, Status.SUCCEEDED, RESULT)
        # The process's own clock has gone on like the row's.
        as_of = time.monotonic() - (self.now - as_of)
        self._cache.keep([Kept(self._digest, settled, ticket, remaining, as_of)])
        self._held = None

    def raise_floor(self, generation: int) -> None:
        self._cache.raise_floor(self._digest, generation)
        self._held = None
        self.promise(generation)

    def promise(self, generation: int) -> None:
        """Let nobody who looks from now on get this generation or an older one."""
        self.gone = max(self.gone, generation)

    # ---------------------------------------------------------------------------------------------- the trouble
    def flush(self) -> None:
        self._redis.delete(self._name)
        self._held = None

    def pass_time(self, seconds: float) -> None:
        """Let everybody's clock go on: for Redis, what it holds comes so much closer to its end."""
        self.now += seconds
        self._held = None
        left, passed = self._redis.pttl(self._name), int(seconds * 1000)
        if 0 <= left <= passed:
            self.flush()
        elif left > passed:
            self._redis.pexpire(self._name, left - passed)
            if self._redis.hexists(self._name, "x"):
                self._redis.hincrby(self._name, "x", -passed)

    def fail_over(self) -> None:
        """Go on with a replica that has heard of the epoch, and of nothing that came after it."""
        self._redis.hdel(self._name, "g", "p", "x", "f")
        self._held = None


def caller(world: World) -> Steps:
    """Whoever asks: a replay, a follower, or the owner of a new call."""
    looked = world.look()
    if looked.settled is None:
        yield
        yield from _led(world, looked.ticket, is_fresh=False)


def fresh(world: World) -> Steps:
    """Whoever wants a new answer."""
    yield from _led(world, None, is_fresh=True)


def forget(world: World) -> Steps:
    """Whoever forgets: the row, then the floor."""
    generation = world.forget()
    if generation is not None:
        yield
        world.raise_floor(generation)


def lease_ends(world: World) -> Steps:
    """Let the owner of a running flight have been silent for too long."""
    if world.row is not None and world.row.is_running:
        world.row = replace(world.row, lease_is_over=True)
    yield from ()


def flush(world: World) -> Steps:
    """Lose all that Redis holds."""
    world.flush()
    yield from ()


def failover(world: World) -> Steps:
    """Lose what the replica had not heard of; by the time it is the primary, every write that was under way is late."""
    world.fail_over()
    world.pass_time(WRITE_WITHIN + 1)
    yield from ()


def pause(world: World) -> Steps:
    """Let more time pass than a floor lasts."""
    world.pass_time(FLOOR_SECONDS + 1)
    yield from ()


def expiry(world: World) -> Steps:
    """Let every outcome that there is run past its TTL."""
    world.pass_time(TTL)
    yield from ()


def purge(world: World) -> Steps:
    """Let every outcome run past its TTL, and remove its row; the real purge waits longer."""
    world.pass_time(TTL)
    if world.row is not None and not world.row.is_running:
        world.row = None
    yield from ()


def raised(world: World, generation: int) -> Steps:
    """Raise the floor over what a grant replaces, before the function runs."""
    world.raise_floor(generation)
    yield


def _led(world: World, ticket: Ticket | None, *, is_fresh: bool) -> Steps:
    """Claim until there is an end, as engine/leading.py and engine/claiming.py do."""
    above: int | None = None
    while True:
        is_granted, row, read_at = world.claim()
        yield
        if is_granted:
            yield from _owned(world, row, ticket, is_fresh=is_fresh)
            return
        above = row.generation if is_fresh and above is None else above
        is_answer = not row.forgotten and row.generation > (above or 0)
        if row.is_running and not row.lease_is_over:
            if is_answer:
                return  # a follower keeps nothing
            continue  # waits it out
        if not row.is_running and is_answer and row.expires_at > read_at:
            world.keep(row.generation, ticket, remaining=row.expires_at - read_at, as_of=read_at)
            return
        granted = world.grant(row, is_fresh=is_fresh)
        yield
        if granted is not None:
            if row.forgotten or is_fresh:
                yield from raised(world, row.generation)
            yield from _owned(world, granted, ticket, is_fresh=is_fresh, replaced=row.generation)
            return


def _owned(world: World, mine: Row, ticket: Ticket | None, *, is_fresh: bool, replaced: int = 0) -> Steps:
    """Call, settle, and offer what was stored, as engine/owning.py and engine/settling.py do."""
    if is_fresh:
        ticket = world.look().ticket
        yield
    is_forgotten, settled_at = world.settle(mine)
    if is_fresh and is_forgotten is not None:
        world.promise(replaced)
    yield
    if is_forgotten is False:
        world.keep(mine.generation, ticket, remaining=TTL, as_of=settled_at)
