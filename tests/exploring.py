"""Every order in which the steps of a few actors can happen, each played from the beginning on the real thing.

An actor is a generator: between two yields nobody comes in between. It has so many slots at most; one that has not
ended by then is a process that stopped there. Orders that have come to the same state go on together, so the count of
orders is exact while only as many are played as there are states.
"""

from collections.abc import Callable, Generator, Hashable, Sequence
from math import comb, factorial, prod
from typing import Any, NamedTuple, Protocol

Steps = Generator[None, None, None]


class Cast(NamedTuple):
    """An actor and how many slots it has."""

    actor: Callable[[Any], Steps]
    slots: int


class Stage(Protocol):
    """Where actors meet. All that they learn from it, it notes as theirs."""

    acting: int  #: who acts just now

    def check(self) -> None:
        """Raise AssertionError if something holds that must not."""

    def state(self) -> Hashable:
        """Return all that later steps can depend on, but for what actors know."""

    def known_to(self, actor: int) -> Hashable:
        """Return all that an actor has learnt."""


class Counterexample(AssertionError):
    """An order of steps after which something holds that must not."""


class Explored(NamedTuple):
    """How many orders there were, how many states they went through, and in which of these all had ended."""

    orders: int
    states: int
    ends: set[Hashable]


def orders(cast: Sequence[Cast]) -> int:
    """Return in how many orders the slots can be taken."""
    return factorial(sum(one.slots for one in cast)) // prod(factorial(one.slots) for one in cast)


def explore(begin: Callable[[], Stage], cast: Sequence[Cast], *, merged: bool = True) -> Explored:
    """Go through every order of steps, and check what holds after each step."""
    known: dict[Hashable, int] = {}
    ends = set[Hashable]()

    def beyond(play: _Play) -> int:
        """Return how many orders begin as this one did."""
        state, prefix, weight, able = play.state(), play.prefix, play.weight, play.able
        state = state if merged else prefix
        if state in known:
            return known[state]
        if not able:
            ends.add(play.stage.state())
        known[state] = 0 if able else weight
        for number in able:
            # The first goes on where this play is; of the others each is played up to here.
            then = play if number == able[0] else _Play(begin(), cast, prefix)
            then.step(number)
            known[state] += weight * beyond(then)
        return known[state]

    return Explored(beyond(_Play(begin(), cast, ())), len(known), ends)


class _Play:
    """One order, played up to somewhere."""

    def __init__(self, stage: Stage, cast: Sequence[Cast], prefix: Sequence[int]) -> None:
        self.stage = stage
        self.prefix: tuple[int, ...] = ()
        #: Slots of an actor that has just ended change nothing: so many orders are this one.
        self.weight = 1
        self._cast, self._left = cast, [one.slots for one in cast]
        self._acting = [one.actor(stage) for one in cast]
        for number in prefix:
            self.step(number)

    @property
    def able(self) -> list[int]:
        """Who can go on."""
        return [number for number, slots in enumerate(self._left) if slots]

    def step(self, number: int) -> None:
        """Let one of those who can go on do so."""
        self.prefix = (*self.prefix, number)
        self.stage.acting = number
        self._left[number] -= 1
        try:
            has_ended = next(self._acting[number], StopIteration) is StopIteration
            self.stage.check()
        except AssertionError as exc:
            names = " ".join(f"{self._cast[number].actor.__name__}-{number}" for number in self.prefix)
            raise Counterexample(f"{exc}, after {names}") from exc
        self.weight = comb(sum(self._left), self._left[number]) if has_ended else 1
        if has_ended:
            self._left[number] = 0

    def state(self) -> Hashable:
        """Return all that the rest of the order can depend on."""
        minds = (self.stage.known_to(number) if slots else None for number, slots in enumerate(self._left))
        return self.stage.state(), self.weight, tuple(self._left), tuple(minds)
