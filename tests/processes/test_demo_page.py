"""The page and its requests on two real nodes: what an ordinary browser sends, and what a hostile one."""

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from http import HTTPStatus
from typing import Any
from uuid import uuid4

import httpx
import pytest
from fpdf import FPDF

from interview_demo.demo.nodes import Node
from interview_demo.demo.processes import CHECKOUT
from interview_demo.demo.running import Cluster, running_cluster
from interview_demo.demo.script import ANSWERS
from interview_demo.flights import EXTRACTION_STAGE, SCORE_STAGE

Reply = Mapping[str, Any]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two nodes and a fast model, on the database that every process of the checkout uses."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("DJANGO_SETTINGS_MODULE", "config.settings")
        environment.delenv("OPENAI_BASE_URL", raising=False)
        subprocess.run([sys.executable, "manage.py", "migrate", "--verbosity", "0"], cwd=CHECKOUT, check=True)
        with running_cluster(pace=0.2) as running:
            yield running


@pytest.fixture
def browser() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=60) as client:
        yield client


def send(browser: httpx.Client, node: Node, path: str, **body: Any) -> httpx.Response:  # noqa: ANN401
    if "csrftoken" not in browser.cookies:
        browser.get(node.url).raise_for_status()
    return browser.post(node.url + path, headers={"X-CSRFToken": browser.cookies["csrftoken"]}, **body)


def started(browser: httpx.Client, node: Node, **body: Any) -> Reply:  # noqa: ANN401
    response = send(browser, node, "/interviews/", data={"session": str(uuid4())}, **body)
    assert response.status_code == HTTPStatus.OK, response.text
    reply: Reply = response.json()
    return reply


def answered(browser: httpx.Client, node: Node, begun: Reply, number: int, text: str) -> httpx.Response:
    return send(browser, node, f"{begun['page']}answers/", json={"number": number, "answer": text})


def pdf_of(text: str) -> bytes:
    pdf = FPDF()
    pdf.set_font("Helvetica")
    pdf.add_page()
    pdf.multi_cell(0, 8, text)
    return bytes(pdf.output())


def the_flight(reply: Reply, stage: str) -> Mapping[str, Any]:
    (flight,) = [flight for flight in reply["flights"] if flight["stage"] == stage]
    assert isinstance(flight, dict)
    return flight


def test_the_page_offers_an_interview_of_its_own(cluster: Cluster, browser: httpx.Client) -> None:
    """Each load carries a new session, so that the form sent twice is one interview and two loads are two."""
    sessions = [
        re.findall(r'name="session" value="([0-9a-f-]{36})"', browser.get(cluster.first.url).text) for _ in range(2)
    ]

    assert sessions[0] != sessions[1]
    page = browser.get(cluster.first.url).text
    assert "node A" in page
    assert cluster.second.url in page
    for asset in re.findall(r'(?:href|src)="(/static/[^"]+)"', page):
        assert browser.get(cluster.first.url + asset).status_code == HTTPStatus.OK


def test_an_interview_is_played_to_its_report(cluster: Cluster, browser: httpx.Client) -> None:
    """Start, answer, be asked deeper, read the report; the page shows it all."""
    begun = started(browser, cluster.first)
    assert begun["next"]["number"] == 1

    short = answered(browser, cluster.first, begun, 1, ANSWERS[0]).json()
    assert short["advanced"]
    assert short["next"]["is_follow_up"]
    thorough = answered(browser, cluster.first, begun, 2, ANSWERS[1]).json()
    assert not thorough["next"]["is_follow_up"]
    report = send(browser, cluster.first, f"{begun['page']}report/", json={}).json()
    page = unescape(browser.get(cluster.first.url + begun["page"]).text)

    assert report["totals"]["total"] == short["score"]["score"]  # follow-ups don't count
    for shown in (short["score"]["feedback"], thorough["question"], report["report"]["overall_comment"]):
        assert shown in page


def test_a_double_click_advances_once(cluster: Cluster, browser: httpx.Client) -> None:
    """Two equal requests at once: one call, one answer, one next question."""
    begun = started(browser, cluster.first)
    calls = cluster.model.begun(SCORE_STAGE)
    with ThreadPoolExecutor(4) as pool:
        nodes = [cluster.first, cluster.first, cluster.second, cluster.second]
        clicks = pool.map(lambda node: answered(browser, node, begun, 1, ANSWERS[1]).json(), nodes)
        replies = list(clicks)

    flights = [the_flight(reply, SCORE_STAGE) for reply in replies]
    assert cluster.model.begun(SCORE_STAGE) == calls + 1
    assert len({flight["digest"] for flight in flights}) == 1
    assert len({flight["generation"] for flight in flights}) == 1
    assert sum(reply["advanced"] for reply in replies) == 1
    assert {reply["next"]["number"] for reply in replies} == {2}


def test_a_reload_on_the_other_node_needs_no_text(cluster: Cluster, browser: httpx.Client) -> None:
    """The answer is stored with its turn, so the other node's page asks for its score without knowing it."""
    begun = started(browser, cluster.first)
    first = answered(browser, cluster.first, begun, 1, ANSWERS[1]).json()

    again = send(browser, cluster.second, f"{begun['page']}answers/", json={"number": 1}).json()

    assert again["node"] == "B"
    assert the_flight(again, SCORE_STAGE)["role"] == "replay"
    assert the_flight(again, SCORE_STAGE)["digest"] == the_flight(first, SCORE_STAGE)["digest"]
    assert not again["advanced"]


def test_the_same_file_under_another_name_is_the_same_resume(cluster: Cluster, browser: httpx.Client) -> None:
    """The key of the extraction is what the file holds."""
    session, content = str(uuid4()), pdf_of("Ada Marsh\nCompiler engineer\n- Wrote the linker of Tarn")
    calls = cluster.model.begun(EXTRACTION_STAGE)

    replies = [
        send(browser, node, "/interviews/", data={"session": session}, files={"resume": (name, content)}).json()
        for node, name in ((cluster.first, "cv.pdf"), (cluster.second, "cv final.pdf"))
    ]

    assert cluster.model.begun(EXTRACTION_STAGE) == calls + 1
    assert replies[0]["extraction"] == replies[1]["extraction"]
    assert "linker of Tarn" in replies[0]["next"]["question"]


def test_two_interviews_never_share_an_answer(cluster: Cluster, browser: httpx.Client) -> None:
    """The scope is the interview: the same resume and the same answer are scored for each of them."""
    calls = cluster.model.begun(EXTRACTION_STAGE)

    first, second = started(browser, cluster.first), started(browser, cluster.first)

    assert cluster.model.begun(EXTRACTION_STAGE) == calls + 2
    assert first["extraction"] != second["extraction"]


def test_a_resume_is_text_wherever_it_is_shown(cluster: Cluster, browser: httpx.Client) -> None:
    """Markup in a resume, a file name or an answer arrives in the page as text."""
    attack = "<script>alert(1)</script>"
    content = pdf_of(f"Ada Marsh\n{attack}\n- Wrote {attack} in 3 weeks")
    begun = started(browser, cluster.first, files={"resume": (f"{attack}.pdf", content)})
    answered(browser, cluster.first, begun, 1, f"{attack} because {attack}")

    page = browser.get(cluster.first.url + begun["page"]).text

    assert attack not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_the_first_answer_stays(cluster: Cluster, browser: httpx.Client) -> None:
    """A second, different answer to a question is a conflict, and costs nothing."""
    begun = started(browser, cluster.first)
    answered(browser, cluster.first, begun, 1, ANSWERS[1])
    calls = cluster.model.begun(SCORE_STAGE)

    refused = answered(browser, cluster.second, begun, 1, "something else")

    assert refused.status_code == HTTPStatus.CONFLICT
    assert "the first answer stays" in refused.json()["error"]
    assert cluster.model.begun(SCORE_STAGE) == calls


def test_another_resume_for_a_begun_interview_is_a_conflict(cluster: Cluster, browser: httpx.Client) -> None:
    """A session belongs to the resume that it was started with."""
    begun = started(browser, cluster.first)

    refused = send(
        browser,
        cluster.first,
        "/interviews/",
        data={"session": begun["session"]},
        files={"resume": ("cv.pdf", pdf_of("Ada Marsh"))},
    )

    assert refused.status_code == HTTPStatus.CONFLICT
    assert "another resume" in refused.json()["error"]


@pytest.mark.parametrize(
    ("content", "status", "sentence"),
    [
        (b"not json", HTTPStatus.BAD_REQUEST, "send JSON"),
        (b"[1]", HTTPStatus.BAD_REQUEST, "send JSON"),
        (b'{"answer": "no number"}', HTTPStatus.BAD_REQUEST, "send JSON"),
        (b'{"number": "1", "answer": "x"}', HTTPStatus.BAD_REQUEST, "whole number"),
        (b'{"number": true, "answer": "x"}', HTTPStatus.BAD_REQUEST, "whole number"),
        (b'{"number": 1, "answer": 5}', HTTPStatus.BAD_REQUEST, "send JSON"),
        (b'{"number": 1, "answer": "\\ud800"}', HTTPStatus.BAD_REQUEST, "send JSON"),
        (b'{"number": 1, "answer": "' + b"x" * 8_001 + b'"}', HTTPStatus.BAD_REQUEST, "8000 are allowed"),
        (b'{"number": 1, "answer": "   "}', HTTPStatus.CONFLICT, "has no answer yet"),
        (b'{"number": 1, "answer": "\\u0000"}', HTTPStatus.CONFLICT, "has no answer yet"),
        (b'{"number": 7, "answer": "x"}', HTTPStatus.CONFLICT, "was not asked yet"),
        (b'{"number": 99999999999999999999, "answer": "x"}', HTTPStatus.CONFLICT, "was not asked yet"),
        (b'{"number": -1, "answer": "x"}', HTTPStatus.CONFLICT, "was not asked yet"),
    ],
)
def test_a_bad_answer_is_one_sentence(
    cluster: Cluster, begun: Reply, browser: httpx.Client, content: bytes, status: HTTPStatus, sentence: str
) -> None:
    """What can't be used is refused before a model call, with what to send instead."""
    refused = send(browser, cluster.first, f"{begun['page']}answers/", content=content)

    assert refused.status_code == status, refused.text
    assert sentence in refused.json()["error"]


@pytest.fixture(scope="module")
def begun(cluster: Cluster) -> Reply:
    """One interview with an unanswered question, for all who only try to break it."""
    with httpx.Client(timeout=60) as client:
        return started(client, cluster.first)


def test_a_report_of_nothing_is_refused(cluster: Cluster, begun: Reply, browser: httpx.Client) -> None:
    """Without a scored answer there is nothing to sum up, and nothing to pay."""
    refused = send(browser, cluster.first, f"{begun['page']}report/", json={})

    assert refused.status_code == HTTPStatus.CONFLICT
    assert "answer a question first" in refused.json()["error"]


@pytest.mark.parametrize("content", [b"", b"hello", b"%PDF-1.7 broken"])
def test_a_file_that_is_no_resume_is_one_sentence(cluster: Cluster, browser: httpx.Client, content: bytes) -> None:
    """An upload that can't be read never reaches the model."""
    refused = send(
        browser,
        cluster.first,
        "/interviews/",
        data={"session": str(uuid4())},
        files={"resume": ("cv.pdf", content)},
    )

    assert refused.status_code == HTTPStatus.BAD_REQUEST
    assert "cv.pdf can't be used as a resume" in refused.json()["error"]


def test_an_interview_that_does_not_exist_is_not_found(cluster: Cluster, browser: httpx.Client) -> None:
    """Page and requests alike."""
    path = f"/interviews/{uuid4()}/"

    assert browser.get(cluster.first.url + path).status_code == HTTPStatus.NOT_FOUND
    refused = send(browser, cluster.first, f"{path}report/", json={})
    assert refused.status_code == HTTPStatus.NOT_FOUND
    assert "no such interview" in refused.json()["error"]


@pytest.mark.parametrize("session", ["", "me", "12345"])
def test_a_session_is_a_uuid(cluster: Cluster, browser: httpx.Client, session: str) -> None:
    """Whoever makes sessions makes them unguessable."""
    refused = send(browser, cluster.first, "/interviews/", data={"session": session})

    assert refused.status_code == HTTPStatus.BAD_REQUEST
    assert "not a UUID" in refused.json()["error"]


def test_a_request_without_the_page_s_token_is_refused(cluster: Cluster) -> None:
    """Another site can't answer in the candidate's name."""
    refused = httpx.post(f"{cluster.first.url}/interviews/", data={"session": str(uuid4())})

    assert refused.status_code == HTTPStatus.FORBIDDEN
