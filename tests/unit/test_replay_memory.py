"""The replay memory of one process: fresh for seconds, bounded, and never older than what was forgotten."""

import threading

import pytest

from singleflight_app.domain.flight import Failure, Settled, StoredResult
from singleflight_app.domain.states import Status
from singleflight_app.outcomes.memory import ReplayMemory

OVERHEAD = 200  #: what an entry counts beside its payload


class Clock:
    """A monotonic clock, moved by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def memory(clock: Clock) -> ReplayMemory:
    return ReplayMemory(entries=3, size=3000, monotonic=clock)


def settled(generation: int | None, size: int = 10) -> Settled:
    return Settled(1, generation, Status.SUCCEEDED, StoredResult(b"x" * size, "1/json", b"", size))


def generation_of(memory: ReplayMemory, digest: bytes) -> int | None:
    found = memory.look(digest)
    return None if found is None else found.generation


def test_what_was_kept_is_there_until_its_time(memory: ReplayMemory, clock: Clock) -> None:
    """Not a moment longer."""
    memory.keep(b"key", settled(5), until=clock.now + 10)

    clock.now += 9.999
    before = generation_of(memory, b"key")
    clock.now += 0.001

    assert before == 5
    assert memory.look(b"key") is None
    assert memory._size == 0


def test_what_is_over_already_is_not_kept(memory: ReplayMemory, clock: Clock) -> None:
    """Its time counts from before the row was read, so a slow read may leave none."""
    memory.keep(b"key", settled(5), until=clock.now)

    assert memory.look(b"key") is None


def test_failures_and_degraded_answers_are_not_kept(memory: ReplayMemory, clock: Clock) -> None:
    """Successes of a generation only."""
    memory.keep(b"key", Settled(1, 5, Status.FAILED, failure=Failure("x", "", retryable=False)), until=clock.now + 10)
    memory.keep(b"key", settled(None), until=clock.now + 10)

    assert memory.look(b"key") is None


def test_a_lower_generation_does_not_replace_a_higher_one(memory: ReplayMemory, clock: Clock) -> None:
    """A late thread's answer is the older one."""
    memory.keep(b"key", settled(5), until=clock.now + 10)
    memory.keep(b"key", settled(4), until=clock.now + 10)
    kept = generation_of(memory, b"key")
    memory.keep(b"key", settled(6), until=clock.now + 10)

    assert (kept, generation_of(memory, b"key")) == (5, 6)


def test_a_floor_drops_and_refuses(memory: ReplayMemory, clock: Clock) -> None:
    """R15: what was forgotten does not come back by a thread that read it before."""
    memory.keep(b"key", settled(5), until=clock.now + 10)

    memory.raise_floor(b"key", 5)
    memory.keep(b"key", settled(5), until=clock.now + 10)
    refused = generation_of(memory, b"key")
    memory.raise_floor(b"key", 3)
    memory.keep(b"key", settled(4), until=clock.now + 10)
    still_refused = generation_of(memory, b"key")
    memory.keep(b"key", settled(6), until=clock.now + 10)

    assert (refused, still_refused, generation_of(memory, b"key")) == (None, None, 6)


def test_a_floor_leaves_a_higher_generation_and_other_keys(memory: ReplayMemory, clock: Clock) -> None:
    """Forgetting one answer forgets no other."""
    memory.keep(b"key", settled(5), until=clock.now + 10)
    memory.keep(b"other", settled(2), until=clock.now + 10)

    memory.raise_floor(b"key", 4)

    assert (generation_of(memory, b"key"), generation_of(memory, b"other")) == (5, 2)


def test_the_least_recently_used_entry_goes_first(memory: ReplayMemory, clock: Clock) -> None:
    """P4: bounded by entries."""
    for name in (b"a", b"b", b"c"):
        memory.keep(name, settled(1), until=clock.now + 10)
    memory.look(b"a")

    memory.keep(b"d", settled(1), until=clock.now + 10)

    assert {name for name in (b"a", b"b", b"c", b"d") if memory.look(name)} == {b"a", b"c", b"d"}


def test_bytes_are_bounded_too(memory: ReplayMemory, clock: Clock) -> None:
    """P4: a replaced entry counts once, a dropped one not at all."""
    for generation in range(1, 50):
        memory.keep(b"a", settled(generation, 1000), until=clock.now + 10)
    memory.keep(b"b", settled(1, 1000), until=clock.now + 10)
    held = memory._size

    memory.keep(b"c", settled(1, 1000), until=clock.now + 10)

    assert held == 2 * (1000 + OVERHEAD)
    assert memory.look(b"a") is None
    assert memory._size == 2 * (1000 + OVERHEAD)


def test_an_answer_larger_than_the_memory_pushes_nobody_out(memory: ReplayMemory, clock: Clock) -> None:
    """It would only be dropped again at once, after all the others."""
    memory.keep(b"small", settled(1), until=clock.now + 10)

    memory.keep(b"large", settled(1, 5000), until=clock.now + 10)

    assert memory.look(b"large") is None
    assert memory.look(b"small") is not None


def test_floors_are_bounded_in_time(memory: ReplayMemory, clock: Clock) -> None:
    """P4: a floor is needed only as long as a late thread may still hold what it read."""
    for number in range(100):
        memory.raise_floor(b"%d" % number, 5)
    clock.now += 61

    memory.raise_floor(b"last", 5)

    assert set(memory._floors) == {b"last"}


def test_a_floor_outlives_what_was_read_before_it(clock: Clock) -> None:
    """A thread that slept for minutes between its read and its keep brings nothing old back, however long the TTL."""
    memory = ReplayMemory(entries=3, size=10_000, longest_ttl=300, monotonic=clock)
    read_at = clock.now
    memory.raise_floor(b"key", 5)
    clock.now += 250

    memory.keep(b"key", settled(5), until=read_at + 300)

    assert memory.look(b"key") is None


def test_floors_are_bounded_in_number(memory: ReplayMemory, clock: Clock) -> None:
    """P4: a floor that there is no room for becomes one for all keys, since generations rise over all of them."""
    for generation in range(1, 6):
        memory.raise_floor(b"%d" % generation, generation)

    memory.keep(b"1", settled(1), until=clock.now + 10)
    memory.keep(b"another", settled(2), until=clock.now + 10)
    memory.keep(b"newer", settled(6), until=clock.now + 10)

    assert len(memory._floors) == 3
    assert (generation_of(memory, b"1"), generation_of(memory, b"another")) == (None, None)
    assert generation_of(memory, b"newer") == 6


def test_threads_do_not_lose_count(clock: Clock) -> None:
    """Many threads keep, look and forget; what is left adds up."""
    memory = ReplayMemory(entries=20, size=10_000, monotonic=clock)
    barrier = threading.Barrier(8)

    def work(seed: int) -> None:
        barrier.wait(20)
        for number in range(500):
            digest = b"%d" % ((number * 7 + seed) % 40)
            memory.keep(digest, settled(number + 1, number % 100), until=clock.now + 10)
            memory.look(digest)
            if number % 5 == 0:
                memory.raise_floor(digest, number)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)

    assert memory._size == sum(entry.size for entry in memory._entries.values())
    assert len(memory._entries) <= 20
