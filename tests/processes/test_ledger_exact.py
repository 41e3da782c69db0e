"""The ledger against what the functions counted themselves: many processes at once, and processes that are killed."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from decimal import Decimal
from pathlib import Path

import pytest
from django.db.models import Sum

from singleflight_app.models import Flight, StageStat
from tests.callers import Program, callers
from tests.waiting import until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("empty_tables")]

KEYS, THREADS = 20, 4
COST = Decimal("0.000000001")


@contextmanager
def _hammering(count: int, file: Path, stage: str, unique: str) -> Iterator[list[Program]]:
    with ExitStack() as stack:
        found = []
        for _ in range(count):
            found.append(Program("hammering", str(file), stage, unique, str(THREADS), str(KEYS)))
            stack.callback(found[-1].close)
        for program in found:
            program.wait_for("ready")
        yield found


def _sums(stage: str) -> dict[str, int | Decimal]:
    """Return the sums of a stage over all hours, those of the durations too."""
    rows = StageStat.objects.filter(stage=stage)
    names = ["requests", "calls", "followers", "replays", "fenced", "takeovers", "failures"]
    names += ["tokens_spent", "tokens_saved", "cost_spent", "cost_saved", "tokens_wasted"]
    sums = rows.aggregate(**{name: Sum(name) for name in names})
    for name in ("waits", "runs"):
        sums[name] = sum(sum(counts) for counts in rows.values_list(name, flat=True))
    return sums


@pytest.mark.parametrize(("stage", "order"), [("calm", "go"), ("calm-row", "forget 7")])
def test_eight_processes_agree_with_what_their_calls_counted(
    tmp_path: Path, unique: str, stage: str, order: str
) -> None:
    """Every call, request, token and fraction of a cent, under contention for the same rows of flights and sums."""
    file = tmp_path / "calls"
    with _hammering(8, file, stage, unique) as programs:
        for program in programs:
            program.tell(order)
        requests = sum(program.wait_for("done")[0]["requests"] for program in programs)
        assert [program.terminate() for program in programs] == [0] * 8

    calls, sums = file.stat().st_size, _sums(stage)
    shared = requests - calls
    assert (sums["requests"], sums["calls"], sums["runs"], sums["waits"]) == (requests, calls, calls, requests)
    assert sums["followers"] + sums["replays"] == shared
    assert (sums["tokens_spent"], sums["tokens_saved"]) == (120 * calls, 120 * shared)
    assert (sums["cost_spent"], sums["cost_saved"]) == (COST * calls, COST * shared)
    assert (sums["fenced"], sums["takeovers"], sums["failures"], sums["tokens_wasted"]) == (0, 0, 0, 0)
    if order == "go":
        assert calls == KEYS
        flights = Flight.objects.filter(stage=stage).aggregate(joins=Sum("joins"), replays=Sum("replays"))
        assert flights["joins"] + flights["replays"] == shared


def test_the_call_of_a_killed_owner_is_counted_by_its_heir(unique: str) -> None:
    """As many calls as functions that began, although one of their processes can tell nobody."""
    with callers("fast", unique, 1) as (owner,), callers("fast", unique, 1) as (heir,):
        owner.call()
        owner.wait_for("called")
        heir.call()
        owner.kill()
        heir.wait_for("called")
        heir.done("second answer")
        heir.wait_for("outcome")
        heir.terminate()

        begun = len(owner.all("called")) + len(heir.all("called"))

    sums = _sums("fast")
    assert (sums["calls"], sums["takeovers"], sums["requests"]) == (begun, 1, 1)
    assert begun == 2


def test_a_kill_loses_nothing_that_was_flushed(tmp_path: Path, unique: str) -> None:
    """A crash takes along what was counted since the last flush, and no more."""
    file = tmp_path / "calls"
    with _hammering(1, file, "calm", unique) as (program,):
        program.tell("go")
        program.wait_for("done")
        program.tell("flush")
        program.wait_for("flushed")
        program.kill()

    sums = _sums("calm")
    assert (sums["requests"], sums["calls"]) == (THREADS * KEYS, file.stat().st_size)


def test_a_process_flushes_while_it_lives(tmp_path: Path, unique: str) -> None:
    """Nobody waits for its end: what it counted is in the database soon after the first count, and a kill keeps it."""
    file = tmp_path / "calls"
    with _hammering(1, file, "calm", unique) as (program,):
        program.tell("go")
        program.wait_for("done")
        until(lambda: _sums("calm")["requests"] == THREADS * KEYS, "a flush by the process itself", timeout=60)
        program.kill()

    assert _sums("calm")["calls"] == file.stat().st_size
