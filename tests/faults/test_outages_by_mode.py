"""Each mode with PostgreSQL out of reach: before the claim, during the call, at the settle, and back again.

A fallback is for coordination errors before the call, and nothing is called twice because of one (R17, P8).
"""

from collections.abc import Iterator

import pytest
from django.db import connection
from pytest_django.fixtures import Settings

from singleflight_app import CoordinationUnavailable, FlightFailed, Role
from singleflight_app.domain.flight import Outcome
from tests.held import Counted, Held, begin
from tests.nodes import Node, nodes
from tests.proxy import Proxy, proxy
from tests.waiting import until

pytestmark = pytest.mark.django_db

#: Nothing expires, and what could not be written is tried again soon.
_SWIFT = {
    "lease_timeout": 60,
    "heartbeat_interval": 0.4,
    "wait_timeout": 60,
    "failure_ttl": 60,
    "replay_memory": False,
    "replay_cache": False,
    "reraise": ["builtins.LookupError"],
    "retry_on": [],
}


@pytest.fixture(params=["local", "distributed", "hybrid"])
def mode(request: pytest.FixtureRequest, settings: Settings) -> str:
    """The mode of all nodes."""
    settings.SINGLEFLIGHT = {**settings.SINGLEFLIGHT, "MODE": request.param, "STAGES": {"swift": _SWIFT}}
    return str(request.param)


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A proxy that all nodes reach the database through."""
    with proxy() as there:
        monkeypatch.setitem(connection.settings_dict, "HOST", there.folder)
        yield there


def _ask(node: Node, key: str, call: Counted[str]) -> Outcome[str] | CoordinationUnavailable:
    try:
        return node.run("swift", {"key": key}, call)
    except CoordinationUnavailable as exc:
        return exc


def _is_told_as(mode: str, told: Outcome[str] | CoordinationUnavailable) -> bool:
    """Tell whether an answer without the database is the mode's own."""
    if mode == "distributed":
        return isinstance(told, CoordinationUnavailable) and told.is_outage
    return isinstance(told, Outcome) and told.degraded == (mode == "hybrid")


@pytest.mark.parametrize("is_warm", [False, True])
def test_down_before_the_claim_and_back(unique: str, mode: str, network: Proxy, *, is_warm: bool) -> None:
    """From the start, or with connections that were good a moment ago; once it is back, flights have a row again."""
    call = Counted("value")
    with nodes(1) as (node,):
        if is_warm:
            node.run("swift", {"key": f"{unique}-before"}, Counted("before"))
        network.cut()
        told = _ask(node, unique, call)
        assert _is_told_as(mode, told)
        assert call.count == (0 if mode == "distributed" else 1)

        network.mend()
        back = Counted("back")

        def again() -> Outcome[str] | None:
            answer = _ask(node, f"{unique}-{back.count}", back)
            return answer if isinstance(answer, Outcome) and not answer.degraded else None

        found = until(again, "the database")
        assert found is not None
        assert (found.value, found.role) == ("back", Role.OWNER)


def test_down_during_the_call_and_at_its_settle(unique: str, mode: str, network: Proxy) -> None:
    """The caller has its answer, is not called again, and the row has it once the database is back."""
    paid, again = Held("paid"), Counted("paid again")
    with nodes(2) as (one, other):
        owner = begin(one.run, "swift", {"key": unique}, paid)
        paid.wait_until_begun()
        in_line = begin(one.run, "swift", {"key": unique}, again)
        one.wait_for_callers(one.key("swift", {"key": unique}), 2)
        network.cut()

        paid.let_go()

        assert (owner.result(20).value, in_line.result(20).value) == ("paid", "paid")
        assert not owner.result(20).degraded
        network.mend()
        until(lambda: not one.runtime.coordinator.running(), "the late settle", timeout=30)
        if mode != "local":  # which shares nothing among processes
            assert other.run("swift", {"key": unique}, again).value == "paid"
        assert (paid.count, again.count) == (1, 0)


def test_a_call_that_fails_in_an_outage_is_a_failed_call(unique: str, mode: str, network: Proxy) -> None:
    """No mode calls it again on its own, be its error one of a network itself; and its failure is what is stored."""
    failing, again = Held("never", error=LookupError("no such answer")), Counted("called again")
    with nodes(2) as (one, other):
        owner = begin(one.run, "swift", {"key": unique}, failing)
        failing.wait_until_begun()
        network.cut()
        failing.let_go()
        assert isinstance(owner.exception(20), LookupError)
        network.mend()
        until(lambda: not one.runtime.coordinator.running(), "the late settle", timeout=30)

        for node in (one,) if mode == "local" else (one, other):
            with pytest.raises(LookupError, match="no such answer"):
                node.run("swift", {"key": unique}, again)
        assert (failing.count, again.count) == (1, 0)


@pytest.mark.parametrize("mode", ["distributed", "hybrid"], indirect=True)
def test_fifty_callers_of_an_outage_cost_one_probe(unique: str, mode: str, network: Proxy) -> None:
    """Who asks while the database is known to be down is told at once, and opens no connection."""
    with nodes(1) as (node,):
        network.cut()
        assert _is_told_as(mode, _ask(node, f"{unique}-first", Counted("first")))
        before = network.refused

        asked = [begin(_ask, node, f"{unique}-{n}", Counted("alone")) for n in range(50)]

        assert all(_is_told_as(mode, future.result(20)) for future in asked)
        assert network.refused - before < 10
        network.mend()


@pytest.mark.parametrize("mode", ["distributed", "hybrid"], indirect=True)
def test_a_replayed_failure_is_an_answer(unique: str, mode: str, network: Proxy) -> None:
    """The fallback is for coordination errors alone; a stored failure comes over a new connection."""
    again = Counted("called again")
    with nodes(2) as (one, other):
        other.run("swift", {"key": f"{unique}-warm"}, Counted("warm"))
        with pytest.raises(ValueError, match="refused"):
            one.run("swift", {"key": unique}, _refuse)
        network.cut()
        network.mend()

        with pytest.raises(FlightFailed, match="refused"):
            other.run("swift", {"key": unique}, again)
        assert again.count == 0


def _refuse() -> str:
    raise ValueError("refused")
