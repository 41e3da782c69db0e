"""Callers of one process in line for a key: one leads, and nobody's trouble is another's (P4, P5)."""

from contextlib import suppress

import pytest

from singleflight_app import Overloaded
from singleflight_app.domain.flight import Settled
from singleflight_app.domain.states import Layer, Role, Status
from singleflight_app.engine.local import LocalFlight, LocalFlights, Shared, Turn
from singleflight_app.engine.rim import ThreadBell, finish
from tests.held import begin, results
from tests.waiting import until

END = Shared(Settled(1, 5, Status.SUCCEEDED), Role.OWNER, Layer.CALL)


def waiting(flight: LocalFlight, count: int) -> None:
    """Return once so many stand in line."""
    until(lambda: len(flight._line) >= count, f"{count} in line")


def join(flights: LocalFlights, *, max_waiters: int = 1000) -> LocalFlight:
    return flights.join(b"key", is_fresh=False, max_waiters=max_waiters, retry_after=5)


def wait_turn(flight: LocalFlight, timeout: float) -> Turn:
    """Stand in line as a caller in a thread does."""
    return finish(flight.wait_turn(ThreadBell(), timeout))


def led() -> LocalFlight:
    """Return a flight that somebody leads."""
    flight = LocalFlight()
    assert wait_turn(flight, 0) is Turn.LEAD
    return flight


def test_the_first_leads_and_those_who_asked_in_time_share_its_end() -> None:
    """P1, P2: in time is before the statement was sent that brought the end."""
    flight = led()
    in_time = [begin(wait_turn, flight, 20) for _ in range(5)]
    waiting(flight, 5)
    flight.mark()
    too_late = [begin(wait_turn, flight, 20) for _ in range(2)]
    waiting(flight, 7)

    flight.publish(END)
    flight.hand_over()

    assert results(in_time) == [Turn.SHARE] * 5
    assert results(too_late) == [Turn.AGAIN] * 2
    assert wait_turn(flight, 0) is Turn.AGAIN
    assert flight.shared is END


def test_an_end_that_was_forgotten_is_nobodys() -> None:
    """R15: whoever stood in line asks again, and gets nothing older."""
    flight = led()
    line = [begin(wait_turn, flight, 20) for _ in range(3)]
    waiting(flight, 3)
    flight.mark()

    flight.publish(END, to_nobody=True)

    assert results(line) == [Turn.AGAIN] * 3


def test_the_first_end_stands() -> None:
    """P2: a late owner's end is not that of those who were told otherwise."""
    flight = led()

    flight.publish(END)
    flight.publish(Shared(Settled(1, 6, Status.FAILED), Role.OWNER, Layer.CALL))

    assert flight.shared is END


def test_a_leader_without_an_end_hands_the_lead_to_one() -> None:
    """P5: interrupted or out of patience; the next in line leads, the others go on waiting."""
    flight = led()
    first = begin(wait_turn, flight, 20)
    waiting(flight, 1)
    second = begin(wait_turn, flight, 20)
    waiting(flight, 2)
    flight.mark()

    flight.hand_over()

    assert first.result(20) is Turn.LEAD
    assert not second.done()
    flight.publish(END)
    assert second.result(20) is Turn.SHARE


def test_with_nobody_in_line_the_lead_is_free() -> None:
    """Whoever comes next takes it at once."""
    flight = led()

    flight.hand_over()

    assert wait_turn(flight, 0) is Turn.LEAD


def test_a_follower_whose_time_is_over_leaves_the_line() -> None:
    """P4: it gets no lead that nobody would take up."""
    flight = led()
    staying = begin(wait_turn, flight, 20)
    waiting(flight, 1)

    with pytest.raises(TimeoutError):
        wait_turn(flight, 0.01)
    flight.hand_over()

    assert staying.result(20) is Turn.LEAD
    assert not flight._line


def test_leads_that_are_handed_over_while_times_run_out_are_never_lost() -> None:
    """P4: many leave just as they are called; whoever stays leads in the end."""
    for _ in range(30):
        flight = led()

        def impatient(flight: LocalFlight) -> None:
            with suppress(TimeoutError):
                if wait_turn(flight, 0.001) is Turn.LEAD:
                    flight.hand_over()

        leaving = [begin(impatient, flight) for _ in range(5)]
        staying = begin(wait_turn, flight, 20)

        flight.hand_over()

        results(leaving)
        assert staying.result(20) is Turn.LEAD


def test_a_key_is_forgotten_when_the_last_caller_leaves() -> None:
    """P4: the map holds what somebody asks for just now."""
    flights = LocalFlights()
    one, other = join(flights), join(flights)

    flights.leave(b"key", one, is_fresh=False)
    still = join(flights)
    for flight in (other, still):
        flights.leave(b"key", flight, is_fresh=False)

    assert one is other is still
    assert not flights._flights


def test_who_comes_after_the_end_begins_anew() -> None:
    """The end may be a failure that a later caller may try again."""
    flights = LocalFlights()
    ended = join(flights)
    ended.publish(END)

    newer = join(flights)
    flights.leave(b"key", ended, is_fresh=False)

    assert newer is not ended
    assert join(flights) is newer


def test_a_full_line_turns_callers_away_and_counts_none_of_them() -> None:
    """C7: `max_waiters` behind the one that leads."""
    flights = LocalFlights()
    flight = join(flights, max_waiters=2)
    for _ in range(2):
        join(flights, max_waiters=2)

    for _ in range(5):
        with pytest.raises(Overloaded, match="2 callers of this process already wait"):
            join(flights, max_waiters=2)
    flights.leave(b"key", flight, is_fresh=False)

    assert join(flights, max_waiters=2) is flight
    assert flight.callers == 3


def test_no_waiters_at_all_is_a_limit() -> None:
    """Whoever is not first is turned away."""
    flights = LocalFlights()
    join(flights, max_waiters=0)

    with pytest.raises(Overloaded):
        join(flights, max_waiters=0)


class _InterruptedBell(ThreadBell):
    """Its caller is interrupted at the moment that it is called."""

    async def wait(self, timeout: float) -> bool:
        await super().wait(timeout)
        raise KeyboardInterrupt


def test_an_interrupted_follower_passes_on_a_lead_that_it_just_got() -> None:
    """P5: Ctrl-C between being called and taking the lead."""
    flight = led()
    interrupted = begin(lambda: finish(flight.wait_turn(_InterruptedBell(), 20)))
    waiting(flight, 1)
    behind = begin(wait_turn, flight, 20)
    waiting(flight, 2)

    flight.hand_over()

    assert isinstance(interrupted.exception(20), KeyboardInterrupt)
    assert behind.result(20) is Turn.LEAD
