"""A flight is cancelled by hand: in whatever order it meets callers, workers, takeovers and ends, it stays cancelled.

Who waited for it is told and begins nothing. Whoever asks afterwards gets a call of their own.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from django.db import connection

from singleflight_app import FlightCancelled, Outcome, Role, current_flight
from singleflight_app.api import cancel_flight
from singleflight_app.domain.exceptions import CoordinationUnavailable
from singleflight_app.domain.flight import Usage
from singleflight_app.engine.call import Call
from singleflight_app.models import Flight, FlightEvent
from singleflight_app.outcomes.codec import for_policy
from singleflight_app.telemetry.signals import flight_fenced, flight_lost, flight_settled
from singleflight_app.wiring import close, runtime
from tests.held import Counted, Held, begin
from tests.looped import AsyncHeld, loops
from tests.nodes import Node, nodes
from tests.outages import Outage
from tests.past import end_lease
from tests.proxy import Proxy, proxy
from tests.rows import row_in
from tests.waiting import until

if TYPE_CHECKING:
    from concurrent.futures import Future

pytestmark = pytest.mark.django_db

WAIT = 20.0
#: No beat comes in a test's time, no lease ends; Redis tells, and outcomes are read from the row.
STAGE = "calm-row"
FAST_LEASE = 2.0  #: seconds, of the stage `fast`


def _flight(node: Node, unique: str, stage: str = STAGE) -> Flight:
    return Flight.objects.get(digest=node.key(stage, {"key": unique}).digest)


@pytest.fixture
def _old_server(django_db_setup: None) -> None:
    """R18: a server that began less than a lease ago has nothing taken over."""

    def age() -> float:
        with _elsewhere() as other:
            rows = other.execute("select extract(epoch from clock_timestamp() - pg_postmaster_start_time())::float8")
            return float(rows.fetchall()[0][0])

    until(lambda: age() > FAST_LEASE, "the server to be older than a lease")


def _let_lease_end(node: Node) -> None:
    """Let the node's one lease be over, and no beat come any more."""
    (lease,) = node.runtime.coordinator._settling.heartbeat.held()
    lease.beat_at = float("inf")
    end_lease(lease.generation)


def _events(flight: Flight) -> list[tuple[str, str]]:
    events = FlightEvent.objects.filter(flight_id=flight.pk).order_by("pk")
    return [(event.kind, event.actor) for event in events]


def _is_cancelled(caller: "Future[Outcome[str]]") -> bool:
    error = caller.exception(WAIT)
    assert isinstance(error, FlightCancelled), error
    return "by hand" in str(error)


class Gate:
    """Holds up one method of a store before or after it is called, until the test opens."""

    def __init__(self, method: Callable[..., Any], *, is_after: bool = False) -> None:
        self._method, self._is_after = method, is_after
        self.reached, self._open = threading.Event(), threading.Event()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  (whatever the store's method takes and gives)
        answer = self._method(*args, **kwargs) if self._is_after else None
        self.reached.set()
        assert self._open.wait(WAIT), "the test never opened"
        return answer if self._is_after else self._method(*args, **kwargs)

    def wait(self) -> None:
        """Return once somebody stands before it."""
        assert self.reached.wait(WAIT), "nobody came"

    def open(self) -> None:
        """Let everybody through from now on."""
        self._open.set()


def _gate(monkeypatch: pytest.MonkeyPatch, node: Node, method: str, *, is_after: bool = False) -> Gate:
    gate = Gate(getattr(node.runtime.store, method), is_after=is_after)
    monkeypatch.setattr(node.runtime.store, method, gate)
    return gate


@contextmanager
def _fenced() -> Iterator[list[Usage]]:
    """Collect what refused ends cost."""
    seen: list[Usage] = []

    def remember(*, usage: Usage, **_: object) -> None:
        seen.append(usage)

    flight_fenced.connect(remember)
    yield seen
    flight_fenced.disconnect(remember)


@contextmanager
def _lost() -> Iterator[list[str]]:
    """Collect why runs ended without an end of their own."""
    seen: list[str] = []

    def remember(*, reason: str, **_: object) -> None:
        seen.append(reason)

    flight_lost.connect(remember)
    yield seen
    flight_lost.disconnect(remember)


@contextmanager
def _losing_the_reply(monkeypatch: pytest.MonkeyPatch, cut: Proxy, move: str) -> Iterator[Node]:
    """Have an operator whose next such move is committed, and whose connection is cut in place of the reply."""
    with monkeypatch.context() as patch:
        patch.setitem(connection.settings_dict, "HOST", cut.folder)
        with nodes(1) as (operator,):
            make = getattr(operator.runtime.queue, move)

            def lose_the_reply(*args: Any, **kwargs: Any) -> object:  # noqa: ANN401  (the store's own)
                cut.lose_next_reply()
                return make(*args, **kwargs)

            patch.setattr(operator.runtime.queue, move, lose_the_reply)
            yield operator


@contextmanager
def _elsewhere() -> Iterator[psycopg.Connection]:
    parameters = connection.get_connection_params()
    for name in ("context", "cursor_factory"):
        parameters.pop(name, None)
    with psycopg.connect(**parameters, autocommit=True) as other:
        yield other


def _pending(node: Node, unique: str) -> tuple[int, Call[str], Counted[str]]:
    """Return a submitted flight, and the call of a worker that comes for it, with its function."""
    function = Counted("worked")
    key, policy = node.key(STAGE, {"key": unique}), node.runtime.settings.policy(STAGE)
    row = row_in(node.runtime.queue.submit(key, label="", arguments={"x": "1"}))
    return row.flight_id, Call(key, policy, function, for_policy(str, policy), WAIT, "", row.flight_id), function


def test_who_waits_is_told_and_who_asks_later_calls_anew(unique: str) -> None:
    """R8: followers elsewhere get FlightCancelled and begin nothing; the late value is refused."""
    late, second = Held("late"), Counted("not called")
    with nodes(3) as (one, other, third):
        owner = begin(one.run, STAGE, {"key": unique}, late)
        late.wait_until_begun()
        follower = begin(other.run, STAGE, {"key": unique}, second)
        other.wait_for_follower(STAGE)
        flight = _flight(one, unique)

        assert cancel_flight(flight.pk, actor="mira") is True

        assert _is_cancelled(follower)
        newer = third.run(STAGE, {"key": unique}, Counted("newer"))
        late.let_go()
        assert owner.result(WAIT).value == "newer"  # R3: it follows the newer generation
        assert (newer.value, newer.role, second.count) == ("newer", Role.OWNER, 0)
        assert (newer.generation or 0) > flight.generation
        assert third.run(STAGE, {"key": unique}, Counted("not called")).value == "newer"


def test_the_row_says_what_happened_and_the_audit_who_did_it(unique: str) -> None:
    """R16: one commit; no result, no lease, no arguments; the name stands in the audit alone."""
    held = Held("late")
    with nodes(1) as (one,):
        owner = begin(one.run, STAGE, {"key": unique}, held)
        held.wait_until_begun()
        flight = _flight(one, unique)

        cancel_flight(flight.pk, actor="mira")

        flight.refresh_from_db()
        assert (flight.status, flight.retryable, flight.lease_expires_at, flight.arguments) == (
            "cancelled",
            False,
            None,
            None,
        )
        assert flight.settled_at is not None
        assert flight.expires_at is not None
        assert (flight.error_type, "mira" in flight.error_message) == ("singleflight_app.FlightCancelled", False)
        assert _events(flight) == [("granted", ""), ("cancelled", "mira")]
        held.let_go()
        assert _is_cancelled(owner)
        assert _events(flight)[2:] == [("fenced", "")]
        assert FlightEvent.objects.get(flight_id=flight.pk, kind="fenced").detail == "the flight was cancelled"


def test_what_the_call_cost_is_wasted(unique: str) -> None:
    """Its end is refused, so it counts as waste and not as spent."""
    held, usage = Held("late"), Usage("small-1", 100, 20)
    settled: list[object] = []
    flight_settled.connect(lambda **facts: settled.append(facts), weak=False, dispatch_uid=unique)

    def call() -> str:
        current_flight().record_usage(model="small-1", input_tokens=100, output_tokens=20)
        return held()

    with nodes(1) as (one,), _fenced() as fenced:
        owner = begin(one.run, STAGE, {"key": unique}, call)
        held.wait_until_begun()
        cancel_flight(_flight(one, unique).pk, actor="mira")
        held.let_go()

        assert _is_cancelled(owner)
        assert (fenced, settled) == ([usage], [])
    flight_settled.disconnect(dispatch_uid=unique)


def test_the_line_behind_the_owner_is_told_by_its_beat(unique: str) -> None:
    """The call hangs on; nobody of its process begins it anew, and all are told without waiting for it."""
    hung, second = Held("late"), Counted("not called")
    with nodes(1) as (one,):
        key = one.key("calm-beating", {"key": unique})
        owner = begin(one.run, "calm-beating", {"key": unique}, hung)
        hung.wait_until_begun()
        in_line = [begin(one.run, "calm-beating", {"key": unique}, second) for _ in range(3)]
        one.wait_for_callers(key, 4)

        cancel_flight(_flight(one, unique, "calm-beating").pk, actor="mira")

        assert all(_is_cancelled(caller) for caller in in_line)
        assert not owner.done()
        assert one.run("calm-beating", {"key": unique}, Counted("newer")).value == "newer"
        hung.let_go()
        assert owner.result(WAIT).value == "newer"
        assert second.count == 0


def test_the_line_behind_the_owner_is_told_by_its_settle(unique: str) -> None:
    """No beat came between: the refused settle tells."""
    held, second = Held("late"), Counted("not called")
    with nodes(1) as (one,):
        owner = begin(one.run, STAGE, {"key": unique}, held)
        held.wait_until_begun()
        in_line = begin(one.run, STAGE, {"key": unique}, second)
        one.wait_for_callers(one.key(STAGE, {"key": unique}), 2)
        cancel_flight(_flight(one, unique).pk, actor="mira")

        held.let_go()

        assert _is_cancelled(owner)
        assert _is_cancelled(in_line)
        assert second.count == 0


def test_the_process_that_cancels_its_own_call_knows_at_once(unique: str) -> None:
    """Who stood in line is told, and who asks next gets a new call, though the old one hangs and no beat came."""
    hung, second = Held("late"), Counted("not called")
    close()
    here = Node.__new__(Node)
    here.runtime = runtime()
    owner = begin(here.run, STAGE, {"key": unique}, hung)
    hung.wait_until_begun()
    in_line = begin(here.run, STAGE, {"key": unique}, second)
    here.wait_for_callers(here.key(STAGE, {"key": unique}), 2)

    cancel_flight(_flight(here, unique).pk, actor="mira")

    assert here.run(STAGE, {"key": unique}, Counted("newer")).value == "newer"
    assert _is_cancelled(in_line)
    hung.let_go()
    assert owner.result(WAIT).value == "newer"
    assert second.count == 0


def test_an_async_call_is_cancelled(unique: str) -> None:
    """R3: it stops costing money; all its callers get FlightCancelled."""
    call = AsyncHeld("late")
    with nodes(1) as (one,), loops(1) as (loop,):
        owner = loop.begin(one.arun("calm-beating", {"key": unique}, call))
        call.wait_until_begun()
        in_line = loop.begin(one.arun("calm-beating", {"key": unique}, call))
        one.wait_for_callers(one.key("calm-beating", {"key": unique}), 2)

        cancel_flight(_flight(one, unique, "calm-beating").pk, actor="mira")

        assert call.cancelled.wait(WAIT)
        assert _is_cancelled(owner)
        assert _is_cancelled(in_line)
        assert call.count == 1


def test_a_handle_brings_the_cancel(unique: str) -> None:
    """Whoever submitted the flight is told like any other who waits for it."""
    with nodes(1) as (one,):
        flight_id, *_ = _pending(one, unique)
        follower = begin(one.run, STAGE, {"key": unique}, Counted("not called"))
        one.wait_for_follower(STAGE)

        assert cancel_flight(flight_id, actor="mira")

        assert _is_cancelled(follower)


def test_what_has_ended_can_not_be_cancelled(unique: str) -> None:
    """A cancel after the settle changes nothing: the answer is paid for, and replayed."""
    with nodes(1) as (one,):
        outcome = one.run(STAGE, {"key": unique}, Counted("paid"))
        assert outcome.flight_id is not None

        assert cancel_flight(outcome.flight_id, actor="mira") is False

        assert one.run(STAGE, {"key": unique}, Counted("not called")).value == "paid"
        assert [kind for kind, _ in _events(_flight(one, unique))] == ["granted", "settled"]
        assert cancel_flight(2**40, actor="mira") is False


def test_a_second_cancel_finds_nothing(unique: str) -> None:
    """One audit row; the second operator is told that it had ended."""
    held = Held("late")
    with nodes(1) as (one,):
        owner = begin(one.run, STAGE, {"key": unique}, held)
        held.wait_until_begun()
        flight = _flight(one, unique)

        assert [cancel_flight(flight.pk, actor=name) for name in ("mira", "noor")] == [True, False]

        held.let_go()
        assert _is_cancelled(owner)
        assert [actor for kind, actor in _events(flight) if kind == "cancelled"] == ["mira"]


def test_a_cancel_that_overtakes_a_settle_refuses_it(unique: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner has its value and is about to write it; the cancel is committed first."""
    with nodes(2) as (one, other):
        gate = _gate(monkeypatch, one, "settle")
        owner = begin(one.run, STAGE, {"key": unique}, Counted("paid"))
        gate.wait()
        follower = begin(other.run, STAGE, {"key": unique}, Counted("not called"))
        other.wait_for_follower(STAGE)

        assert cancel_flight(_flight(one, unique).pk, actor="mira")
        gate.open()

        assert _is_cancelled(owner)
        assert _is_cancelled(follower)


def test_a_cancel_in_the_middle_of_a_settle_waits_for_it(unique: str) -> None:
    """The row is locked by the settle's own commit: the cancel sees the end, and leaves it alone."""
    held = Held("late")
    with nodes(1) as (one,), _elsewhere() as settling:
        owner = begin(one.run, STAGE, {"key": unique}, held)
        held.wait_until_begun()
        flight = _flight(one, unique)
        with settling.transaction():
            settling.execute(
                "update singleflight_flight set status = 'failed', error_type = 'app.Trouble', "
                "lease_expires_at = null, settled_at = now(), expires_at = now() + interval '1 hour' where id = %s",
                [flight.pk],
            )
            cancelling = begin(cancel_flight, flight.pk, actor="mira")
            until(_somebody_waits_for_a_lock, "the cancel to wait for the settle")

        assert cancelling.result(WAIT) is False
        flight.refresh_from_db()
        assert (flight.status, flight.error_type) == ("failed", "app.Trouble")
        held.let_go()
        owner.result(WAIT)


def _somebody_waits_for_a_lock() -> bool:
    with _elsewhere() as other:
        waiting = other.execute(
            "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock' "
            "and query like '%%already%%'"
        )
        return bool(waiting.fetchall())


@pytest.mark.usefixtures("_old_server")
def test_a_cancel_before_a_takeover_stops_it(unique: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A waiter has seen the expired lease and is about to take it: its grant meets the cancel, and it is told."""
    held, second = Held("late"), Counted("not called")
    with nodes(2) as (one, other):
        owner = begin(one.run, "fast", {"key": unique}, held)
        held.wait_until_begun()
        gate = _gate(monkeypatch, other, "grant")
        follower = begin(other.run, "fast", {"key": unique}, second)
        other.wait_for_follower("fast")
        flight = _flight(one, unique, "fast")
        _let_lease_end(one)
        other.runtime.coordinator._following.wake(bytes(flight.digest))
        gate.wait()

        assert cancel_flight(flight.pk, actor="mira")
        gate.open()

        assert _is_cancelled(follower)
        assert second.count == 0
        held.let_go()
        assert _is_cancelled(owner)


@pytest.mark.usefixtures("_old_server")
def test_a_cancel_after_a_takeover_ends_the_newer_generation_or_nothing(unique: str) -> None:
    """Named by the generation that the operator saw, it leaves the newer one alone; by the flight alone, it ends it."""
    late, taken = Held("late"), Held("taken")
    with nodes(2) as (one, other):
        owner = begin(one.run, "fast", {"key": unique}, late)
        late.wait_until_begun()
        seen = _flight(one, unique, "fast")
        _let_lease_end(one)
        second = begin(other.run, "fast", {"key": unique}, taken)
        taken.wait_until_begun()

        assert cancel_flight(seen.pk, generation=seen.generation, actor="mira") is False
        assert _flight(one, unique, "fast").status == "running"
        assert cancel_flight(seen.pk, actor="mira") is True

        taken.let_go()
        late.let_go()
        assert _is_cancelled(second)
        own = owner.result(WAIT)  # R3: no newer value came
        assert (own.value, own.superseded) == ("late", True)
        cancelled = FlightEvent.objects.get(flight_id=seen.pk, kind="cancelled")
        assert cancelled.generation > seen.generation


@pytest.mark.usefixtures("_old_server")
def test_a_takeover_between_read_and_cancel_is_what_is_cancelled(unique: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cancel meets a generation that it did not see, reads again, and ends that one."""
    late, taken = Held("late"), Held("taken")
    with nodes(3) as (one, other, third):
        begin(one.run, "fast", {"key": unique}, late)
        late.wait_until_begun()
        flight = _flight(one, unique, "fast")
        gate = Gate(third.runtime.queue.cancel)
        monkeypatch.setattr(third.runtime.queue, "cancel", gate)
        cancelling = begin(third.runtime.cancel, flight.pk, actor="mira")
        gate.wait()
        _let_lease_end(one)
        second = begin(other.run, "fast", {"key": unique}, taken)
        taken.wait_until_begun()

        gate.open()

        assert cancelling.result(WAIT) is True
        taken.let_go()
        late.let_go()
        assert _is_cancelled(second)


def test_a_follower_that_looks_too_late_follows_the_new_flight(unique: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """R8: the row has a higher generation by then; it becomes a caller of that one, and begins nothing."""
    late, newer, second = Held("late"), Held("newer"), Counted("not called")
    with nodes(3) as (one, other, third):
        owner = begin(one.run, STAGE, {"key": unique}, late)
        late.wait_until_begun()
        follower = begin(other.run, STAGE, {"key": unique}, second)
        other.wait_for_follower(STAGE)
        gate = _gate(monkeypatch, other, "read")
        cancel_flight(_flight(one, unique).pk, actor="mira")
        gate.wait()
        begin(third.run, STAGE, {"key": unique}, newer)
        newer.wait_until_begun()

        gate.open()
        newer.let_go()

        assert follower.result(WAIT).value == "newer"
        assert second.count == 0
        late.let_go()
        assert owner.result(WAIT).value == "newer"


def test_a_fresh_caller_that_waits_the_flight_out_makes_its_own_call(unique: str) -> None:
    """The cancelled call was never its answer."""
    held = Held("late")
    with nodes(2) as (one, other):
        owner = begin(one.run, STAGE, {"key": unique}, held)
        held.wait_until_begun()
        fresh = begin(other.run, STAGE, {"key": unique}, Counted("fresh"), is_fresh=True)
        other.wait_for_follower(STAGE)

        cancel_flight(_flight(one, unique).pk, actor="mira")

        assert fresh.result(WAIT).value == "fresh"
        held.let_go()
        assert owner.result(WAIT).value == "fresh"


def test_a_worker_that_is_about_to_claim_finds_it_cancelled(unique: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has read the arguments, and stands before its grant."""
    with nodes(1) as (one,):
        flight_id, work, function = _pending(one, unique)
        gate = _gate(monkeypatch, one, "grant")
        worker = begin(one.runtime.coordinator.run, work)
        gate.wait()

        assert cancel_flight(flight_id, actor="mira")
        gate.open()

        assert _is_cancelled(worker)
        assert function.count == 0
        flight = Flight.objects.get(pk=flight_id)
        assert (flight.status, flight.arguments) == ("cancelled", None)
        assert [kind for kind, _ in _events(flight)] == ["submitted", "cancelled"]


def test_a_worker_that_comes_later_has_nothing_to_do(unique: str) -> None:
    """A message that comes twice, or late: the row is cancelled, and only who asks anew begins a call."""
    with nodes(1) as (one,):
        flight_id, work, function = _pending(one, unique)
        cancel_flight(flight_id, actor="mira")

        assert one.runtime.queue.arguments(flight_id) is None
        with pytest.raises(FlightCancelled):
            one.runtime.coordinator.run(work)

        assert function.count == 0
        again = row_in(one.runtime.queue.submit(work.key, label="", arguments={"x": "1"}))
        assert again.status == "cancelled"
        assert one.run(STAGE, {"key": unique}, Counted("anew")).value == "anew"


def test_a_released_flight_is_still_taken_at_once(unique: str) -> None:
    """R11: the owner was interrupted; cancelled, but not by hand, and the waiter calls."""
    interrupted = Held("never", error=KeyboardInterrupt())
    with nodes(2) as (one, other):
        owner = begin(one.run, STAGE, {"key": unique}, interrupted)
        interrupted.wait_until_begun()
        follower = begin(other.run, STAGE, {"key": unique}, Counted("second call"))
        other.wait_for_follower(STAGE)

        interrupted.let_go()

        assert isinstance(owner.exception(WAIT), KeyboardInterrupt)
        assert follower.result(WAIT).value == "second call"


def test_an_owner_that_leaves_a_cancelled_flight_releases_nothing(unique: str) -> None:
    """Both write `cancelled`: the release is refused all the same, and what the call cost is wasted."""
    interrupted, second = Held("never", error=KeyboardInterrupt()), Counted("not called")
    with nodes(2) as (one, other), _fenced() as fenced:
        owner = begin(one.run, STAGE, {"key": unique}, interrupted)
        interrupted.wait_until_begun()
        follower = begin(other.run, STAGE, {"key": unique}, second)
        other.wait_for_follower(STAGE)
        flight = _flight(one, unique)
        cancel_flight(flight.pk, actor="mira")

        interrupted.let_go()

        assert isinstance(owner.exception(WAIT), KeyboardInterrupt)
        assert _is_cancelled(follower)
        assert (second.count, len(fenced)) == (0, 1)
        flight.refresh_from_db()
        assert (flight.status, flight.retryable) == ("cancelled", False)


def test_a_hung_call_that_was_cancelled_frees_its_line_without_a_second_call(unique: str) -> None:
    """Its time is over before a beat has told: the refused settle says that it was cancelled, and not by time."""
    hung, second = Held("late"), Counted("not called")
    with nodes(1) as (one,):
        key = one.key("hung", {"key": unique})
        owner = begin(one.run, "hung", {"key": unique}, hung)
        hung.wait_until_begun()
        (lease,) = one.runtime.coordinator._settling.heartbeat.held()
        lease.run_until = lease.beat_at = float("inf")
        in_line = begin(one.run, "hung", {"key": unique}, second, wait_timeout=WAIT)
        one.wait_for_callers(key, 2)
        cancel_flight(_flight(one, unique, "hung").pk, actor="mira")

        lease.run_until = 0.0
        one.runtime.coordinator._settling.heartbeat.beat()

        assert _is_cancelled(in_line)
        assert second.count == 0
        hung.let_go()
        owner.exception(WAIT)


def test_a_cancel_whose_reply_was_lost_counts_once(unique: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """R6: sent again, it finds its own work; one audit row, and those who wait are woken."""
    held = Held("late")
    with nodes(2) as (one, other), proxy() as cut:
        owner = begin(one.run, STAGE, {"key": unique}, held)
        held.wait_until_begun()
        follower = begin(other.run, STAGE, {"key": unique}, Counted("not called"))
        other.wait_for_follower(STAGE)
        flight = _flight(one, unique)
        with _losing_the_reply(monkeypatch, cut, "cancel") as operator:
            assert operator.runtime.cancel(flight.pk, actor="mira") is True

        assert cut.lost_replies == 1
        assert _is_cancelled(follower)
        assert [kind for kind, _ in _events(flight)] == ["granted", "cancelled"]
        held.let_go()
        assert _is_cancelled(owner)


def test_an_end_of_a_lease_whose_reply_was_lost_counts_once(unique: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """R6: sent again, it finds its own work; one audit row."""
    held = Held("late")
    with nodes(1) as (one,), proxy() as cut:
        owner = begin(one.run, STAGE, {"key": unique}, held)
        held.wait_until_begun()
        flight = _flight(one, unique)
        with _losing_the_reply(monkeypatch, cut, "expire_lease") as operator:
            assert operator.runtime.expire_lease(flight.pk, actor="mira") is True

        assert cut.lost_replies == 1
        assert [kind for kind, _ in _events(flight)] == ["granted", "expired"]
        held.let_go()
        assert owner.result(WAIT).value == "late"


def test_an_end_of_a_lease_spares_who_takes_over_meanwhile(unique: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """R8: the operator has read the row of one owner, and sends when another has it; nobody meant that one."""
    held, newer, successors = Held("late"), Held("newer"), []
    with nodes(3) as (one, other, operator):
        key = one.key("fast", {"key": unique})
        owner = begin(one.run, "fast", {"key": unique}, held)
        held.wait_until_begun()
        read = operator.runtime.queue.read

        def read_and_be_overtaken(flight_id: int) -> object:
            row = read(flight_id)
            one.expire(key)
            successors.append(begin(other.run, "fast", {"key": unique}, newer))
            newer.wait_until_begun()
            return row

        monkeypatch.setattr(operator.runtime.queue, "read", read_and_be_overtaken)

        assert operator.runtime.expire_lease(_flight(one, unique, "fast").pk, actor="mira") is False

        newer.let_go()
        held.let_go()
        assert [caller.result(WAIT).value for caller in (*successors, owner)] == ["newer", "newer"]
        flight = _flight(one, unique, "fast")
        assert (flight.takeovers, [kind for kind, _ in _events(flight)].count("expired")) == (1, 1)


def test_a_cancelled_flight_that_is_purged_while_its_call_goes_on_stays_cancelled(unique: str) -> None:
    """R3, R4: its caller is told so, and what the call cost is wasted and not lost from sight."""
    held = Held("late")
    with nodes(1) as (one,), _fenced() as fenced, _lost() as lost:
        owner = begin(one.run, STAGE, {"key": unique}, held)
        held.wait_until_begun()
        flight = _flight(one, unique)
        cancel_flight(flight.pk, actor="mira")
        (lease,) = one.runtime.coordinator._settling.heartbeat.held()
        lease.beat_at = 0.0
        one.runtime.coordinator._settling.heartbeat.beat()
        until(lambda: lease.is_lost, "a beat that was told")
        with _elsewhere() as purge:
            purge.execute("delete from singleflight_flight where id = %s", [flight.pk])

        held.let_go()

        assert _is_cancelled(owner)
        assert (len(fenced), lost) == (1, ["cancelled"])


def test_a_cancel_in_the_owners_process_records_an_end_that_waits_to_be_written(unique: str, outage: Outage) -> None:
    """R16: the database was away when the call ended; it is back, and the flight is cancelled first."""
    held = Held("late")
    with nodes(1) as (one,), _fenced() as fenced:
        owner = begin(one.run, STAGE, {"key": unique}, held)
        held.wait_until_begun()
        flight = _flight(one, unique)
        (lease,) = one.runtime.coordinator._settling.heartbeat.held()
        outage.begin()
        held.let_go()
        until(lambda: lease.late is not None, "an end that could not be written")
        lease.beat_at = float("inf")
        outage.end()

        def is_cancelled() -> bool:
            try:
                return one.runtime.cancel(flight.pk, actor="mira")
            except CoordinationUnavailable:
                return False

        until(is_cancelled, "the next probe of the database")

        until(lambda: fenced, "the refusal of the late end")
        until(lambda: "fenced" in [kind for kind, _ in _events(flight)], "the audit row")
        owner.exception(WAIT)


def test_a_flight_that_never_stands_still_is_said_so(unique: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """P4: bounded tries, then a sentence."""
    held = Held("late")
    with nodes(1) as (one,):
        owner = begin(one.run, STAGE, {"key": unique}, held)
        held.wait_until_begun()
        monkeypatch.setattr(one.runtime.queue, "cancel", lambda *_args, **_kwargs: None)

        with pytest.raises(CoordinationUnavailable, match="moved 3 times while it was cancelled; cancel it again"):
            one.runtime.cancel(_flight(one, unique).pk, actor="mira")

        held.let_go()
        assert owner.result(WAIT).value == "late"


def test_a_cancelled_call_takes_no_room_any_more(unique: str) -> None:
    """`max_concurrency`: who waits for room gets it at once, though the cancelled call hangs."""
    hung = Held("late")
    with nodes(2) as (one, other):
        owner = begin(one.run, "one-anywhere", {"key": unique}, hung)
        hung.wait_until_begun()
        waiting = begin(other.run, "one-anywhere", {"key": f"{unique}-other"}, Counted("in"))
        other.wait_for_follower("one-anywhere")

        cancel_flight(_flight(one, unique, "one-anywhere").pk, actor="mira")

        assert waiting.result(WAIT).value == "in"
        hung.let_go()
        assert _is_cancelled(owner)
