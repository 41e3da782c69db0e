"""The audit: a row in the commit of each transition, or no transition; and nothing in it that is anybody's own."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest
from django.db import connection

from singleflight_app import CoordinationUnavailable, current_flight
from singleflight_app.domain.flight import Failure, Settled
from singleflight_app.domain.states import Claim, Status
from singleflight_app.models import Flight, FlightEvent
from tests.background import broker_away
from tests.nodes import Node, nodes
from tests.past import end_lease
from tests.rows import granted_in, row_in

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("empty_tables")]

ANSWER, PROMPT, SCOPE, MESSAGE = "the-answer-of-the-model", "the-prompt-of-mira", "person:mira", "the-words-of-an-error"
Move = Callable[[Node, int, int], object]


@contextmanager
def audit_refused() -> Iterator[None]:
    """Have the database take no audit row, as a full disk would."""
    refuse = "begin raise exception 'no audit today'; end"
    with connection.cursor() as cursor:
        cursor.execute(f"create function refuse_audit() returns trigger language plpgsql as $$ {refuse} $$")
        cursor.execute(
            "create trigger refuse before insert on singleflight_flightevent for each row "
            "execute function refuse_audit()"
        )
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute("drop function refuse_audit() cascade")


def _settle(node: Node, flight_id: int, generation: int) -> object:
    end = Settled(flight_id, generation, Status.FAILED, failure=Failure("a.Error", "", retryable=False))
    return node.runtime.store.settle(end, owner="first", ttl=60)


def _take_over(node: Node, flight_id: int, generation: int) -> object:
    end_lease(generation)
    row = node.runtime.store.read(flight_id)
    assert row is not None
    policy = node.runtime.settings.policy("calm")
    return node.runtime.store.grant(row, Claim.OWNER_TAKEOVER, owner="second", stage="calm", policy=policy)


def _lose(node: Node, flight_id: int, generation: int) -> object:
    end_lease(generation)
    return node.runtime.store.lose(flight_id, generation, ttl=60, message="")


MOVES: dict[str, Move] = {
    "settle": _settle,
    "take over": _take_over,
    "lose": _lose,
    "forget": lambda node, flight_id, _: node.runtime.forget(flight_id=flight_id, actor="ops"),
    "expire": lambda node, flight_id, _: node.runtime.expire_lease(flight_id, actor="ops"),
    "cancel": lambda node, flight_id, _: node.runtime.cancel(flight_id, actor="ops"),
}


@pytest.mark.parametrize("move", MOVES.values(), ids=MOVES.keys())
def test_without_its_audit_row_a_transition_does_not_happen(unique: str, move: Move) -> None:
    """One commit has both, so neither is ever seen alone."""
    with nodes(1) as (node,):
        policy = node.runtime.settings.policy("calm")
        row = row_in(node.runtime.store.claim(node.key("calm", {"q": unique}), label="", owner="first", policy=policy))
        with audit_refused(), pytest.raises(CoordinationUnavailable, match="no audit today"):
            move(node, row.flight_id, row.generation)

        flight = Flight.objects.get()
        told = list(FlightEvent.objects.values_list("kind", flat=True))

    assert (flight.status, flight.generation, flight.owner) == (Status.RUNNING, row.generation, "first")
    assert not flight.forgotten
    assert told == ["granted"]


@pytest.mark.parametrize("is_background", [False, True], ids=["granted", "queued"])
def test_without_its_audit_row_nothing_begins(unique: str, is_background: bool) -> None:
    """Neither a call nor the wait for a worker."""
    with nodes(1) as (node,), audit_refused():
        key, policy = node.key("calm", {"q": unique}), node.runtime.settings.policy("calm")
        queue = partial(node.runtime.queue.submit, key, label="", arguments={})
        claim = partial(node.runtime.store.claim, key, label="", owner="first", policy=policy)
        begin: Callable[[], object] = queue if is_background else claim
        with pytest.raises(CoordinationUnavailable, match="no audit today"):
            begin()

    assert not Flight.objects.exists()


def test_nothing_in_the_audit_is_anybodys_own(unique: str) -> None:
    """Whatever happens to a flight, no answer, prompt, scope or error message is in its audit rows."""
    with nodes(1) as (node,), broker_away():
        _live_a_life(node, unique)

    rows = list(FlightEvent.objects.values())
    assert {row["kind"] for row in rows} >= {
        "granted",
        "settled",
        "forgotten",
        "submitted",
        "taken_over",
        "expired",
        "fenced",
        "cancelled",
        "retry_allowed",
        "lost",
    }
    text = repr(rows)
    for own in (ANSWER, PROMPT, SCOPE, MESSAGE, unique):
        assert own not in text


def _live_a_life(node: Node, unique: str) -> None:
    """Have flights succeed, fail, be moved by hand, be lost and be refused, with words in them that are private."""
    request, store, queue = {"prompt": PROMPT, "q": unique}, node.runtime.store, node.runtime.queue
    policy = node.runtime.settings.policy("picky")

    def answer() -> str:
        current_flight().progress(0.5, PROMPT)
        return ANSWER

    def fail() -> str:
        raise ValueError(MESSAGE)

    node.run("picky", request, answer, scope=SCOPE)
    assert node.runtime.forget(digest=node.key("picky", request, scope=SCOPE).digest, actor="ops")
    with pytest.raises(ValueError, match=MESSAGE):
        node.run("picky", {**request, "n": 2}, fail, scope=SCOPE)
    failed = Flight.objects.get(status=Status.FAILED)
    assert queue.allow_retry(failed.pk, failed.generation, actor="ops")
    queue.submit(node.key("picky", {**request, "n": 3}, scope=SCOPE), label="", arguments={"prompt": f'"{PROMPT}"'})
    assert node.runtime.cancel(Flight.objects.get(status=Status.PENDING).pk, actor="ops")
    row = row_in(store.claim(node.key("picky", {**request, "n": 4}, scope=SCOPE), label="", owner="a", policy=policy))
    assert node.runtime.expire_lease(row.flight_id, actor="ops")
    expired = store.read(row.flight_id)
    assert expired is not None
    second = granted_in(store.grant(expired, Claim.OWNER_TAKEOVER, owner="b", stage="picky", policy=policy))
    store.record_fence(row.flight_id, row.generation, owner="a")
    end_lease(second.generation)
    assert store.lose(second.flight_id, second.generation, ttl=60, message=MESSAGE)
