"""The model server counts every call, also one whose caller goes away, and tells when one begins."""

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus

import httpx
import openai
import pytest

from interview_demo.answers import Score
from interview_demo.demo.modelling import Model, StageCount
from interview_demo.demo.waiting import NeverCame
from interview_demo.model import checked
from interview_demo.model_server import SIMULATED_MODEL, STAGE_HEADER
from tests.waiting import until

SCORE = "interview-score"
MESSAGES = [{"role": "user", "content": '{"question": "Why?", "answer": "because"}'}]


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[Model]:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    server = Model(pace=0)
    yield server
    server.stop()


def complete(model: Model, stage: str = SCORE) -> httpx.Response:
    return httpx.post(
        f"{model.url}/v1/chat/completions",
        json={"model": "any", "messages": MESSAGES},
        headers={STAGE_HEADER: stage},
        timeout=30,
    )


def test_the_openai_package_gets_an_answer(model: Model) -> None:
    """What a project would use against a real model works against this one."""
    environment = model.environment()
    with openai.OpenAI(
        base_url=environment["OPENAI_BASE_URL"], api_key=environment["OPENAI_API_KEY"], max_retries=0
    ) as client:
        reply = client.chat.completions.create(
            model=environment["OPENAI_MODEL"],
            messages=[{"role": "user", "content": MESSAGES[0]["content"]}],
            extra_headers={STAGE_HEADER: SCORE},
        )

    assert reply.model == SIMULATED_MODEL
    assert "because" in checked(SCORE, reply, Score).feedback
    assert model.counts()[SCORE].tokens == reply.usage.total_tokens  # type: ignore[union-attr]


def test_parallel_calls_are_counted_by_stage(model: Model) -> None:
    """The count is exact, whoever calls at the same time."""
    with ThreadPoolExecutor(8) as pool:
        replies = list(pool.map(lambda stage: complete(model, stage), [SCORE, "interview-report"] * 20))

    assert {reply.status_code for reply in replies} == {HTTPStatus.OK}
    counts = model.counts()
    assert (counts[SCORE].begun, counts["interview-report"].begun) == (20, 20)
    assert counts[SCORE].answered == 20


def test_a_call_is_told_when_it_begins(model: Model) -> None:
    """Whoever waits hears of it long before the answer; then the caller may be killed."""
    model.slow_next(SCORE, 30)
    with ThreadPoolExecutor(1) as pool, socket.create_connection(("127.0.0.1", port_of(model))) as caller:
        waiting = pool.submit(model.wait_begun, SCORE, 1, timeout=20)
        caller.sendall(raw_call())
        waiting.result()
        assert model.counts()[SCORE].answered == 0

    left = until(lambda: left_of(model), "the end of the call that was left")

    assert left == 1
    assert model.counts()[SCORE] == StageCount(begun=1, answered=0, tokens=0)


def test_only_the_next_call_is_slow(model: Model) -> None:
    """The call after an interrupted one, the takeover's, has its normal pace."""
    model.slow_next(SCORE, 30)
    with socket.create_connection(("127.0.0.1", port_of(model))) as caller:
        caller.sendall(raw_call())
        model.wait_begun(SCORE, 1, timeout=20)

        assert complete(model).status_code == HTTPStatus.OK


def test_a_call_that_never_begins_is_not_waited_for_for_ever(model: Model) -> None:
    """The wait has an end, and a sentence."""
    with pytest.raises(NeverCame, match=r"call 1 of interview-score did not come within 0\.1 s"):
        model.wait_begun(SCORE, 1, timeout=0.1)


@pytest.mark.parametrize(
    ("path", "content", "status"),
    [
        ("/v1/chat/completions", b"{not json", HTTPStatus.BAD_REQUEST),
        ("/v1/chat/completions", b"[]", HTTPStatus.BAD_REQUEST),
        ("/v1/chat/completions", b"", HTTPStatus.BAD_REQUEST),
        ("/slow", b'{"stage": 1}', HTTPStatus.BAD_REQUEST),
        ("/v2/whatever", b"{}", HTTPStatus.NOT_FOUND),
    ],
)
def test_bad_requests_are_refused_and_not_counted(model: Model, path: str, content: bytes, status: HTTPStatus) -> None:
    """An error has the shape that OpenAI clients know, and is no call."""
    reply = httpx.post(model.url + path, content=content)

    assert reply.status_code == status
    assert reply.json()["error"]["message"]
    assert model.counts() == {}


def test_an_unknown_stage_is_refused_but_counted(model: Model) -> None:
    """A call that nobody expects shows up in the numbers."""
    assert complete(model, "weather").status_code == HTTPStatus.BAD_REQUEST

    assert model.begun("weather") == 1


def test_a_real_model_is_forwarded_to_and_counted(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """With both variables set, the server stands in front of that model and counts the same."""
    monkeypatch.setenv("OPENAI_BASE_URL", f"{model.url}/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "a-key")
    front = Model()
    try:
        reply = httpx.post(
            f"{front.url}/v1/chat/completions",
            json={
                "model": "any",
                "messages": MESSAGES,
                "response_format": {"type": "json_schema", "json_schema": {"name": "Score"}},
            },
            headers={STAGE_HEADER: SCORE, "Authorization": "Bearer a-key"},
        )

        assert not front.is_simulated
        assert front.environment()["OPENAI_API_KEY"] == "a-key"
        assert reply.status_code == HTTPStatus.OK
        assert front.counts() == model.counts()
        assert front.counts()[SCORE].tokens == reply.json()["usage"]["total_tokens"]
    finally:
        front.stop()


def test_a_model_out_of_reach_is_a_bad_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sentence says so, and the call is counted."""
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("OPENAI_API_KEY", "a-key")
    front = Model()
    try:
        reply = complete(front)

        assert reply.status_code == HTTPStatus.BAD_GATEWAY
        assert "out of reach" in reply.json()["error"]["message"]
        assert front.begun(SCORE) == 1
    finally:
        front.stop()


def test_a_key_alone_does_not_call_a_real_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key lies in many environments; only both variables together spend money."""
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "a-key")
    model = Model()
    model.stop()

    assert model.is_simulated
    assert model.environment()["OPENAI_API_KEY"] == "simulated"


def port_of(model: Model) -> int:
    return httpx.URL(model.url).port or 0


def left_of(model: Model) -> int:
    return int(httpx.get(f"{model.url}/calls").json()["stages"][SCORE]["left"])


def raw_call() -> bytes:
    """Return a call as bytes: a caller that can go away without waiting for its reply."""
    body = b'{"messages": []}'
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: model\r\n{STAGE_HEADER}: {SCORE}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
