"""/metrics of real servers after real calls: what it says is what the model server counted."""

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from interview_demo.demo.modelling import Model
from interview_demo.flights import SCORE_STAGE
from tests.held import begin, results
from tests.programs.asking import askers, let_go
from tests.scraping import Scrape
from tests.serving import Web, metered
from tests.waiting import until

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("empty_tables"),
    pytest.mark.prometheus,
]

KEYS, CROWD, LATER = 3, 6, 2  #: keys; who asks at each node for one while it is called, and afterwards


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[Model]:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    server = Model(pace=0)
    yield server
    server.stop()


@pytest.fixture
def webs(model: Model, tmp_path: Path) -> Iterator[list[Web]]:
    """Two nodes of two workers each, every node with its own folder of counts."""
    with ExitStack() as stack:
        found = []
        for name in ("one", "other"):
            counts = tmp_path / f"{name}-counts"
            counts.mkdir()
            there = tmp_path / name
            there.mkdir()
            environment = {
                **model.environment(),
                "PROMETHEUS_MULTIPROC_DIR": str(counts),
                "TEST_FOLDER": str(tmp_path),
            }
            found.append(stack.enter_context(metered(there, workers=2, **environment)))
        yield found


def scrape(*webs: Web) -> Scrape:
    return Scrape(*(web.answer("metrics").text for web in webs))


def work(webs: list[Web], model: Model, folder: Path, key: str) -> int:
    """Let crowds at both nodes share one call, ask again later, and return the tokens of that call."""
    before = model.counts().get(SCORE_STAGE)
    crowd = [begin(web.get, f"ask/{key}") for _ in range(CROWD) for web in webs]
    until(lambda: len(askers(folder, key)) == len(crowd), "everybody to ask")
    during = scrape(webs[0]), scrape(webs[1])
    let_go(folder, key)
    roles = [answer["role"] for answer in results(crowd)]
    roles += [web.get(f"ask/{key}")["role"] for _ in range(LATER) for web in webs]

    assert roles.count("owner") == 1
    # The database tells each node of the one call, whichever makes it.
    assert [page.all("active_flights", stage="metered") for page in during] == [[1], [1]]
    assert [page.sum("active_flights_up") for page in during] == [1, 1]
    return model.counts()[SCORE_STAGE].tokens - (before.tokens if before else 0)


def test_the_metrics_of_two_nodes_agree_with_the_model(webs: list[Web], model: Model, tmp_path: Path) -> None:
    """Calls, requests and saved tokens, summed over nodes and workers."""
    tokens = [work(webs, model, tmp_path, f"key-{number}") for number in range(KEYS)]

    found = scrape(*webs)

    requests = KEYS * 2 * (CROWD + LATER)
    assert found.sum("miss_total", stage="metered") == model.begun(SCORE_STAGE) == KEYS
    assert found.sum("request_total", stage="metered") == requests
    by_role = {name: found.sum(f"{name}_total", stage="metered") for name in ("owner", "follower", "hit")}
    assert by_role["owner"] == KEYS
    assert by_role["follower"] > 0
    assert by_role["hit"] >= KEYS * 2 * LATER
    assert sum(by_role.values()) == requests
    assert found.sum("tokens_spent_total", stage="metered") == sum(tokens) > 0
    assert found.sum("tokens_saved_total", stage="metered") == sum(tokens) * (requests / KEYS - 1)
    assert found.sum("wait_duration_seconds_count", stage="metered") == requests
    assert found.sum("execution_duration_seconds_count", stage="metered") == KEYS


def test_a_worker_that_died_takes_no_count_with_it(webs: list[Web], model: Model, tmp_path: Path) -> None:
    """Its file stays when `mark_process_dead` is told, and the worker in its place counts on."""
    work(webs, model, tmp_path, "before")
    before = scrape(webs[0])
    old = webs[0].workers()
    os.kill(old[0], signal.SIGKILL)
    until(lambda: f"Gone: worker {old[0]}\n" in webs[0].log(), "the master to miss its worker")
    until(lambda: old[0] not in webs[0].workers(), "another in its place")

    after = scrape(webs[0])

    for name in ("request_total", "miss_total", "hit_total", "follower_total", "tokens_saved_total"):
        assert after.sum(name) == before.sum(name), name
    webs[0].get("ask/before")
    assert scrape(webs[0]).sum("request_total") == before.sum("request_total") + 1


def test_a_single_process_tells_the_same_without_a_folder(model: Model, tmp_path: Path) -> None:
    """The collector of the database is there in either mode."""
    with metered(tmp_path, workers=1, **model.environment()) as web:
        caller = begin(web.get, "ask/key")
        model.wait_begun(SCORE_STAGE, 1, timeout=20)
        during = scrape(web)
        let_go(tmp_path, "key")
        caller.result(20)

        assert during.all("active_flights", stage="metered") == [1]
        assert 0 <= during.sum("oldest_lease_seconds", stage="metered") < 60
        assert scrape(web).sum("miss_total", stage="metered") == 1
