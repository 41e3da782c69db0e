"""`fenced_update`: a late owner writes no business row over that of a newer generation (P3)."""

import asyncio
from collections.abc import Iterator
from typing import Any, ClassVar, Self

import pytest
from django.db import connection, connections, models

from singleflight_app import CoordinationUnavailable, LeaseLost, current_flight
from tests.held import Held, begin
from tests.nodes import Node, nodes
from tests.past import end_leases

pytestmark = pytest.mark.django_db(transaction=True)


class Score(models.Model):
    """A row of a project, written by its calls."""

    question = models.CharField(max_length=100)
    text = models.CharField(max_length=100)
    generation = models.BigIntegerField(default=0)
    written_by = models.BigIntegerField(default=0)

    objects: ClassVar[models.Manager[Self]] = models.Manager()

    class Meta:
        app_label = "tests"
        managed = False
        db_table = "test_fenced_score"

    def __str__(self) -> str:
        """Return the text."""
        return self.text


@pytest.fixture(autouse=True)
def _table() -> Iterator[None]:
    with connection.cursor() as cursor:
        cursor.execute(
            "create table test_fenced_score (id bigserial primary key, question varchar(100), text varchar(100), "
            "generation bigint not null default 0, written_by bigint not null default 0)"
        )
    yield
    with connection.cursor() as cursor:
        cursor.execute("drop table test_fenced_score")


class Writing(Held[str]):
    """A held call that writes its answer when it is let go, and notes what came of it."""

    def __init__(self, text: str, question: str) -> None:
        super().__init__(text)
        self.question, self.written = question, list[Any]()

    def __call__(self) -> str:
        answer = super().__call__()
        try:
            self.written.append(
                current_flight().fenced_update(Score.objects.filter(question=self.question), text=answer)
            )
        except LeaseLost as exc:
            self.written.append(exc)
        finally:
            connections.close_all()
        return answer


class WritingAsync(Writing):
    """The same on an event loop."""

    def __call__(self) -> Any:  # noqa: ANN401  (something to await)
        return self._write()

    async def _write(self) -> str:
        answer = await asyncio.to_thread(Held.__call__, self)
        try:
            rows = Score.objects.filter(question=self.question)
            self.written.append(await current_flight().afenced_update(rows, text=answer))
        except LeaseLost as exc:
            self.written.append(exc)
        return answer


def run_in_thread(node: Node, key: dict[str, str], call: Any) -> Any:  # noqa: ANN401
    return node.run("fast", key, call)


def run_on_a_loop(node: Node, key: dict[str, str], call: Any) -> Any:  # noqa: ANN401
    return asyncio.run(node.arun("fast", key, call))


@pytest.mark.parametrize(("ask", "writing"), [(run_in_thread, Writing), (run_on_a_loop, WritingAsync)])
def test_a_late_owner_writes_nothing(unique: str, ask: Any, writing: Any) -> None:  # noqa: ANN401
    """P3: its lease ended, another took over and wrote; it gets LeaseLost, and the newer row stays."""
    Score.objects.create(question=unique, text="none yet")
    late, newer = writing("late", unique), writing("newer", unique)
    with nodes(2) as (one, other):
        owner = begin(ask, one, {"key": unique}, late)
        late.wait_until_begun()
        end_leases(one)
        taking = begin(ask, other, {"key": unique}, newer)
        newer.wait_until_begun()
        newer.let_go()
        generation = taking.result(20).generation

        late.let_go()

        assert owner.result(20).value == "newer"
    (lost,) = late.written
    row = Score.objects.get(question=unique)
    assert newer.written == [1]
    assert isinstance(lost, LeaseLost)
    assert (row.text, row.generation) == ("newer", generation)


@pytest.mark.parametrize(("ask", "writing"), [(run_in_thread, Writing), (run_on_a_loop, WritingAsync)])
def test_rows_that_are_not_there_are_no_loss(unique: str, ask: Any, writing: Any) -> None:  # noqa: ANN401
    """None to write, none written."""
    call = writing("answer", unique)
    call.let_go()
    with nodes(1) as (node,):
        ask(node, {"key": unique}, call)

    assert call.written == [0]


def test_the_newer_owner_writes_over_the_older_ones_row(unique: str) -> None:
    """And each of its own writes finds its own generation there."""
    Score.objects.create(question=unique, text="older", written_by=0)

    def call() -> str:
        flight = current_flight()
        rows = Score.objects.filter(question=unique)
        first = flight.fenced_update(rows, generation_field="written_by", text="draft")
        second = flight.fenced_update(rows, generation_field="written_by", text="final")
        connections.close_all()
        return f"{first} {second}"

    with nodes(1) as (node,):
        outcome = begin(node.run, "fast", {"key": unique}, call).result(20)

    row = Score.objects.get(question=unique)
    assert outcome.value == "1 1"
    assert (row.text, row.written_by, row.generation) == ("final", outcome.generation, 0)


@pytest.mark.parametrize("is_async", [False, True])
def test_without_a_generation_it_refuses(unique: str, monkeypatch: pytest.MonkeyPatch, *, is_async: bool) -> None:
    """A degraded call has no place in the order of writers."""
    Score.objects.create(question=unique, text="none yet")
    rows = Score.objects.filter(question=unique)

    def call() -> None:
        current_flight().fenced_update(rows, text="degraded")

    async def call_async() -> None:
        await current_flight().afenced_update(rows, text="degraded")

    with monkeypatch.context() as away, nodes(1) as (node,):
        away.setitem(connection.settings_dict, "HOST", "/nonexistent")
        ask, writer = (run_on_a_loop, call_async) if is_async else (run_in_thread, call)
        with pytest.raises(CoordinationUnavailable, match="no generation orders its writes"):
            ask(node, {"key": unique}, writer)

    assert Score.objects.get(question=unique).text == "none yet"
