"""Many callers on many nodes, forgetting, failing, leaving and dying at random: what holds in every interleaving.

The operations are counted, not timed; a failure names its seed.
"""

import random
import threading
from collections import Counter, defaultdict
from dataclasses import dataclass, field

import pytest

from singleflight_app import FlightFailed, Layer, OwnerLost, StillRunning, current_flight
from tests.held import begin
from tests.nodes import Node, nodes
from tests.past import end_leases

pytestmark = pytest.mark.django_db

CALLERS, ROUNDS = 12, 25


class Trouble(Exception):
    """What a call raises now and then; the text is the call's number."""


@dataclass
class History:
    """What happened to the keys of one test, as its callers saw it."""

    stage: str
    seed: int
    calls: Counter[tuple[str, int]] = field(default_factory=Counter)  #: by key and generation
    answers: dict[tuple[str, int], set[str]] = field(default_factory=lambda: defaultdict(set))
    floors: dict[str, int] = field(default_factory=lambda: defaultdict(int))  #: what `forget` confirmed, by key
    running: Counter[str] = field(default_factory=Counter)
    most_running: int = 0
    older: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def called(self, key: str, chance: random.Random) -> str:
        """Be the expensive call: it answers with its number, or fails with it."""
        generation = current_flight().generation
        assert generation is not None, "a call was made without the database"
        with self.lock:
            self.calls[key, generation] += 1
            self.running[key] += 1
            self.most_running = max(self.most_running, self.running[key])
            number = str(sum(self.calls.values()))
        threading.Event().wait(chance.random() * 0.01)  # a call takes time; nothing is concluded from how much
        with self.lock:
            self.running[key] -= 1
        if chance.random() < 0.2:
            raise Trouble(number)
        return number

    def ask(self, node: Node, key: str, chance: random.Random) -> None:
        """Be one caller, patient or not, and note what it saw."""
        floor, layer = self.floors[key], None
        patience = chance.choice([0.005, 20.0, 20.0])
        try:
            outcome = node.run(self.stage, {"key": key}, lambda: self.called(key, chance), wait_timeout=patience)
            if outcome.superseded:
                return
            generation, answer, layer = outcome.generation, outcome.value, outcome.layer
        except (OwnerLost, StillRunning, Trouble):
            return
        except FlightFailed as exc:
            generation, answer = exc.generation, exc.message
        assert generation is not None
        with self.lock:
            self.answers[key, generation].add(answer)
            if generation <= floor and layer is not Layer.MEMORY:
                self.older.append(f"generation {generation} of {key} after {floor} was forgotten, from {layer}")

    def forget(self, node: Node, key: str) -> None:
        """Be one who forgets, and note the generation that may not be seen any more."""
        forgotten = node.runtime.store.forget(digest=node.key(self.stage, {"key": key}).digest)
        if forgotten is not None:
            node.runtime.coordinator.replaying.forgotten(forgotten)
            with self.lock:
                self.floors[key] = max(self.floors[key], forgotten.generation)


def play(history: History, members: list[Node], *, may_die: bool) -> None:
    """Let all callers do their rounds."""

    def rounds(seed: int) -> None:
        chance = random.Random(seed)  # noqa: S311  (repeatable on purpose)
        for _ in range(ROUNDS):
            node, key = chance.choice(members), f"{history.seed}-{chance.choice('ab')}"
            what = chance.random()
            if what < 0.1:
                history.forget(node, key)
            elif what < 0.15 and may_die:
                end_leases(node)
            else:
                history.ask(node, key, chance)

    for caller in [begin(rounds, history.seed + number) for number in range(CALLERS)]:
        caller.result(60)


@pytest.mark.parametrize(
    ("stage", "may_die"), [("calm-row", False), ("calm-redis", False), ("calm", False), ("fast", True)]
)
def test_whatever_happens_in_whatever_order(stage: str, *, may_die: bool) -> None:
    """P1, P2, R15: one call per generation, one answer per generation, and nothing older than what was forgotten."""
    history = History(stage, random.SystemRandom().randrange(2**40))
    with nodes(4) as members:
        play(history, members, may_die=may_die)

    assert set(history.calls.values()) == {1}, history.seed
    assert max(map(len, history.answers.values())) == 1, history.seed
    assert not history.older, (history.seed, history.older)
    if not may_die:
        assert history.most_running == 1, history.seed
