"""Every flight store against the reference, over moves that nobody thought of: the same answers, and the same rows.

A move is tried on the row as it is, or as some earlier move showed it: a late writer, a decision made too long ago.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from itertools import starmap
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)

from singleflight_app.domain.decision import Asking, decide
from singleflight_app.domain.flight import TOO_LARGE, Failure, Settled, StoredResult, Usage
from singleflight_app.domain.keys import FlightKey
from singleflight_app.domain.policy import StagePolicy
from singleflight_app.domain.records import Beat, FlightSnapshot, Progress
from singleflight_app.domain.states import Claim, Status
from singleflight_app.storage.flights import PostgresFlights
from singleflight_app.storage.memory import MemoryFlights
from singleflight_app.storage.pool import Database
from tests.compared import STEP, Compared
from tests.past import pass_time, purge_all
from tests.reference import Event, ReferenceFlights
from tests.searching import PATIENT, let_others_draw

POLICY = StagePolicy(lease_timeout=60, heartbeat_interval=20, wait_timeout=60, pending_timeout=100)
USAGE = Usage("small-1", 100, 20, Decimal("0.000000001"))
ENDS = [
    Settled(0, 0, Status.SUCCEEDED, StoredResult(b"\x00\xff payload", "1/json/gzip", b"c" * 32, 99), usage=USAGE),
    Settled(0, 0, Status.SUCCEEDED, StoredResult(b"", "1/json", b"d" * 32, 0), retries=2),
    Settled(0, 0, Status.FAILED, failure=Failure("app.Refused", "refused", retryable=False), usage=USAGE),
    Settled(0, 0, Status.FAILED, failure=Failure("app.Busy", "busy", retryable=True, retry_after=60), retries=1),
    Settled(0, 0, Status.FAILED, failure=Failure("app.Busy", "busy", retryable=True, retry_after=30)),
    Settled(0, 0, Status.FAILED, failure=Failure(TOO_LARGE, "too large", retryable=False, size=10**9)),
    Settled(0, 0, Status.TIMED_OUT, failure=Failure("builtins.TimeoutError", "hung", retryable=True)),
    Settled(0, 0, Status.TIMED_OUT, failure=Failure("builtins.TimeoutError", "hung", retryable=False)),
    Settled(0, 0, Status.CANCELLED, failure=Failure("app.Left", "left", retryable=True)),
    Settled(0, 0, Status.CANCELLED),
    Settled(0, 0, Status.CANCELLED, retries=1),
]
GRANTS = [Claim.OWNER_NEW, Claim.OWNER_TAKEOVER, Claim.OWNER_RETRY]
REFERENCE = "reference"
STAGES = ("first", "first", "second")
KEYS = [FlightKey(stage, "test", f"{stage} {n}".encode().ljust(32)) for n, stage in enumerate(STAGES)]

keys = st.sampled_from([0, 0, 0, 1, 1, 2])
owners = st.sampled_from(["one", "two"])
signed = st.sampled_from([None, None, None, "one", "two"])  #: None: by the owner that the row names
limits = st.sampled_from([None, None, None, 1, 2])
claims = st.sampled_from(GRANTS)
askers = st.builds(
    Asking,
    policy=st.just(POLICY),
    owner=owners,
    above=st.sampled_from([None, None, 2**60]),  # a fresh caller takes no generation for an answer
    starts_pending=st.sampled_from([False, True]),
)
durations = st.sampled_from([30.0, 60.0, 120.0])
graces = st.sampled_from([0.0, 60.0])
seldom = st.sampled_from([False, False, True])

Rows = dict[str, FlightSnapshot]  #: by store


@dataclass(frozen=True)
class Seen:
    """A row as each store showed it once."""

    key: int
    rows: Rows


class Moves(RuleBasedStateMachine):
    """What callers do: the moves of FlightStore, on three keys."""

    seen: Bundle[Seen] = Bundle("seen")

    def __init__(self, stores: list[Compared]) -> None:
        super().__init__()
        self.stores = stores
        self.moved: set[int] = set()
        self.now: dict[int, Rows] = {}
        self.past: list[Seen] = []

    @initialize(target=seen)
    def begin(self) -> MultipleResults[Seen]:
        return multiple(*self._claimed(0, "one", None))

    @rule(target=seen, key=keys, asks=askers, limit=limits, end=st.sampled_from([None, *ENDS]), ttl=durations)
    def ask(self, key: int, asks: Asking, limit: int | None, end: Settled | None, ttl: float) -> MultipleResults[Seen]:
        """Claim, do what the decision says about the row that there is, and make a call, a short one or not."""
        is_granted, seen = key not in self.now, self._claimed(key, asks.owner, limit)
        claim = decide(seen[0].rows[REFERENCE], asks) if seen else None
        if not is_granted and claim in GRANTS:
            options = {"is_fresh": asks.above is not None, "starts_pending": asks.starts_pending}
            seen = self._granted(key, seen[0].rows, claim, asks.owner, limit, **options)
            is_granted = True
        if is_granted and seen and end is not None:
            self._settle(seen[0], end, owner=asks.owner, ttl=ttl)
        return multiple(*seen)

    @rule(target=seen, row=seen)
    def read(self, row: Seen) -> MultipleResults[Seen]:
        return multiple(*self._shown(row.key, lambda s: s.store.read(row.rows[s.name].flight_id)))

    @rule(
        target=seen,
        row=seen,
        is_late=seldom,
        claim=claims,
        owner=owners,
        limit=limits,
        is_fresh=seldom,
        starts_pending=seldom,
    )
    def grant(
        self, row: Seen, claim: Claim, owner: str, limit: int | None, *, is_late: bool, **options: bool
    ) -> MultipleResults[Seen]:
        return multiple(*self._granted(row.key, self._meant(row, is_late=is_late), claim, owner, limit, **options))

    @rule(rows=st.lists(seen, min_size=1, max_size=2), is_late=st.booleans(), owner=owners, lease=durations)
    def renew(self, rows: list[Seen], owner: str, lease: float, *, is_late: bool) -> None:
        meant = [self._meant(row, is_late=is_late) for row in rows]

        def beats(store: Compared) -> list[Beat]:
            return [Beat(*row[store.name][:2], lease, Progress(0.5, "half")) for row in meant]

        self._ask(lambda s: s.store.renew(beats(s), owner=owner), *(row.key for row in rows))

    @rule(row=seen, is_late=seldom, owner=signed, ttl=durations, end=st.sampled_from(ENDS))
    def settle(self, row: Seen, end: Settled, owner: str | None, ttl: float, *, is_late: bool) -> None:
        self._settle(Seen(row.key, self._meant(row, is_late=is_late)), end, owner=owner, ttl=ttl)

    @rule(row=seen, is_late=seldom, ttl=durations, grace=graces)
    def lose(self, row: Seen, ttl: float, grace: float, *, is_late: bool) -> None:
        self._lose(row.key, self._meant(row, is_late=is_late), grace, ttl)

    @rule(row=seen, is_late=st.booleans(), by=st.sampled_from(["digest", "flight", "generation", "generation"]))
    def forget(self, row: Seen, by: str, *, is_late: bool) -> None:
        rows = self._meant(row, is_late=is_late)

        def forget(store: Compared) -> object:
            flight_id, generation, *_ = rows[store.name]
            if by == "digest":
                return store.store.forget(digest=KEYS[row.key].digest, actor="test")
            return store.store.forget(flight_id=flight_id, generation=generation if by == "generation" else None)

        self._ask(forget, row.key)

    @rule(steps=st.sampled_from([1, 3, 6, 10]))
    def let_time_pass(self, steps: int) -> None:
        """Wait, and meanwhile compare the audits of those that keep one."""
        for store in self.stores:
            store.wait(float(steps * STEP))
        self.moved.update(range(len(KEYS)))
        first, *others = [events for store in self.stores if (events := store.events()) is not None]
        assert all(other == first for other in others), others

    @precondition(lambda self: self._settled())
    @rule(data=st.data())
    def purge(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(self._settled()))
        for store in self.stores:
            store.purge(self.now[key][store.name].flight_id)
        self.moved.add(key)

    @invariant()
    def all_flights_are_where_they_should_be(self) -> None:
        self._ask(lambda s: s.store.poll([*s.flights, 2**40]))

    @invariant()
    def all_rows_that_moved_are_the_same(self) -> None:
        for key in self.moved:
            rows = self._ask(lambda s: s.store.find(KEYS[key].digest))  # noqa: B023 (called at once)
            self.now.pop(key, None)
            if rows[REFERENCE] is not None:
                self.now[key] = rows
                self.past.append(Seen(key, rows))
        self.moved.clear()

    def _settle(self, row: Seen, end: Settled, *, owner: str | None, ttl: float) -> None:
        """Settle as an owner does: a refusal is recorded."""
        name = row.rows[REFERENCE].owner if owner is None else owner

        def settle(store: Compared) -> bool | None:
            flight_id, generation, *_ = row.rows[store.name]
            settled = replace(end, flight_id=flight_id, generation=generation)
            return store.store.settle(settled, owner=name, ttl=ttl)

        if self._ask(settle, row.key)[REFERENCE] is None:
            self._ask(lambda s: s.store.record_fence(*row.rows[s.name][:2], owner=name))

    def _lose(self, key: int, rows: Rows, grace: float, ttl: float = 60.0) -> None:
        self._ask(lambda s: s.store.lose(*rows[s.name][:2], ttl=ttl, message="died", grace=grace), key)

    def _settled(self) -> list[int]:
        return [key for key, rows in self.now.items() if rows[REFERENCE].is_settled]

    def _ask(self, move: Callable[[Compared], object], *keys: int) -> dict[str, Any]:
        """Make the move of these keys on every store, and return the answers, which must be the same."""
        self.moved.update(keys)
        answers = {store.name: move(store) for store in self.stores}
        told = {store.name: store.told(answers[store.name]) for store in self.stores}
        for name, words in told.items():
            assert words == told[REFERENCE], f"{name} differs"
        return answers

    def _claimed(self, key: int, owner: str, limit: int | None) -> list[Seen]:
        facts: Any = {"owner": owner, "policy": _limited(limit), "trace_parent": f"claimed by {owner}"}
        return self._shown(key, lambda s: s.store.claim(KEYS[key], label="", **facts))

    def _granted(
        self, key: int, rows: Rows, claim: Claim, owner: str, limit: int | None, **options: bool
    ) -> list[Seen]:
        facts: Any = {"owner": owner, "policy": _limited(limit), "trace_parent": f"granted to {owner}", **options}
        return self._shown(key, lambda s: s.store.grant(rows[s.name], claim, stage=KEYS[key].stage, **facts))

    def _shown(self, key: int, move: Callable[[Compared], object]) -> list[Seen]:
        """Make the move, and return the row that it brought, if any."""
        answers = self._ask(move, key)
        rows = {name: answer[1] if type(answer) is tuple else answer for name, answer in answers.items()}
        return [Seen(key, rows)] if isinstance(rows[REFERENCE], FlightSnapshot) else []

    def _meant(self, row: Seen, *, is_late: bool) -> Rows:
        """Return the flight as it is now, unless it is gone, or as it was: best of all a generation ago, and alike."""
        now = self.now.get(row.key, row.rows)
        if not is_late:
            return now
        here = now[REFERENCE]
        alike = (
            seen.rows
            for seen in reversed(self.past)
            if seen.key == row.key
            and seen.rows[REFERENCE].status == here.status
            and seen.rows[REFERENCE].generation != here.generation
        )
        return next(alike, row.rows)


class QueueMoves(Moves):
    """What submitters, workers, the sweep and an operator do beside them."""

    @rule(target=Moves.seen, key=keys)
    def submit(self, key: int) -> MultipleResults[Seen]:
        return multiple(*self._shown(key, lambda s: s.queue.submit(KEYS[key], label="", arguments={"x": "1"})))

    @rule(
        target=Moves.seen,
        row=Moves.seen,
        is_late=seldom,
        kind=st.sampled_from(["submitted", "requeued"]),
        arguments=st.sampled_from([None, {"x": "2"}]),
        grace=graces,
        is_fresh=seldom,
    )
    def queue(self, row: Seen, *, is_late: bool, **options: Any) -> MultipleResults[Seen]:  # noqa: ANN401
        rows = self._meant(row, is_late=is_late)
        return multiple(*self._shown(row.key, lambda s: s.queue.queue(rows[s.name], policy=POLICY, **options)))

    @rule(spacing=st.sampled_from([30.0, 60.0]), limit=st.sampled_from([1, 100]))
    def send_again(self, spacing: float, limit: int) -> None:
        self._ask(lambda s: set(s.queue.unsent(spacing=spacing, limit=limit)))

    @rule(row=Moves.seen, is_late=seldom)
    def expire_lease(self, row: Seen, *, is_late: bool) -> None:
        rows = self._meant(row, is_late=is_late)

        def expire(store: Compared) -> object:
            flight_id, generation, *_ = rows[store.name]
            return store.queue.expire_lease(flight_id, generation, actor="test")

        self._ask(expire, row.key)

    @rule(row=Moves.seen, is_late=seldom, ttl=durations)
    def cancel(self, row: Seen, ttl: float, *, is_late: bool) -> None:
        rows = self._meant(row, is_late=is_late)
        self._ask(lambda s: s.queue.cancel(*rows[s.name][:2], actor="test", ttl=ttl), row.key)

    @rule(row=Moves.seen, is_late=seldom)
    def retry(self, row: Seen, *, is_late: bool) -> None:
        rows = self._meant(row, is_late=is_late)
        self._ask(lambda s: s.queue.allow_retry(*rows[s.name][:2], actor="test"), row.key)
        self._ask(lambda s: s.queue.send_again(*rows[s.name][:2], actor="test"), row.key)

    @rule(grace=graces, gives_up=st.booleans())
    def sweep(self, grace: float, *, gives_up: bool) -> None:
        """Settle as lost what a sweep sees, or queue it again with the arguments that there are."""
        for over in self._ask(lambda s: s.queue.expired(100))[REFERENCE]:
            key, rows = next(item for item in self.now.items() if item[1][REFERENCE].flight_id == over.flight_id)
            (self._lose if gives_up else self._requeue)(key, rows, grace)

    @rule(row=Moves.seen)
    def arguments(self, row: Seen) -> None:
        self._ask(lambda s: s.queue.arguments(row.rows[s.name].flight_id))

    @invariant()
    def all_that_a_sweep_should_see_is_seen(self) -> None:
        self._ask(lambda s: s.queue.expired(100))

    def _requeue(self, key: int, rows: Rows, grace: float) -> None:
        self._ask(lambda s: s.queue.queue(rows[s.name], kind="requeued", policy=POLICY, grace=grace), key)


def _limited(limit: int | None) -> StagePolicy:
    return replace(POLICY, max_concurrency=limit)


def _reference() -> Compared:
    store = ReferenceFlights()

    def wait(by: float) -> None:
        store.now += by

    return Compared(REFERENCE, store, store, wait=wait, purge=store.purge, events=lambda: store.events)


def _postgresql(database: Database) -> Compared:
    store = PostgresFlights(database)
    purge_all(database)

    def events() -> Iterator[Event]:
        return starmap(
            Event, database.run(b"select flight_id, generation, kind from singleflight_flightevent order by id", {})
        )

    def purge(flight_id: int) -> None:
        database.run(b"delete from singleflight_flight where id = %(id)s returning id", {"id": flight_id})

    return Compared(
        "postgresql", store, store, wait=partial(pass_time, database, stages=STAGES), purge=purge, events=events
    )


def _memory() -> Compared:
    passed = [0.0]
    store = MemoryFlights(entries=1000, monotonic=lambda: passed[0])

    def purge(flight_id: int) -> None:
        store._settled = {flight_id: None, **store._settled}
        store._drop_oldest()

    return Compared("memory", store, store, wait=lambda by: passed.append(passed.pop() + by), purge=purge, events=None)


@let_others_draw
@pytest.mark.timeout(600)  # a difference is made small before it is shown
def test_stores_answer_alike_and_keep_the_same_rows(database: Database) -> None:
    """P1, P3, R1, R16: whatever order callers, workers and operators come in, and however late."""
    search = settings(PATIENT, max_examples=40, stateful_step_count=50)

    def begin() -> QueueMoves:
        return QueueMoves([_reference(), _postgresql(database), _memory()])

    run_state_machine_as_test(begin, settings=search)  # type: ignore[arg-type]  # any factory will do
