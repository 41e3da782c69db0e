"""The candidate's browser: sends requests to a node, and notes how each of them came by its answer."""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Self
from uuid import uuid4

import httpx

from interview_demo.demo.nodes import Node
from interview_demo.flights import EXTRACTION_STAGE, REPORT_STAGE, SCORE_STAGE

LOST = "lost"
_TIMEOUT = 240.0
_PARALLEL = 16


@dataclass(frozen=True)
class Asked:
    """One caller of one flight: who it was, and what it got. A lost caller's node died under it."""

    stage: str
    subject: str  #: what it asked about; with the stage, one key
    node: str
    role: str
    layer: str = ""
    generation: int | None = None
    digest: str = ""
    waited: float = 0.0


class RefusedByNode(Exception):
    """A node answered with an error where the interview expects an answer."""

    def __init__(self, node: str, status: int, sentence: str) -> None:
        super().__init__(f"node {node} answered {status}: {sentence}")
        self.node, self.status = node, status


Reply = Mapping[str, Any]


class Candidate:
    """One interview's candidate. Requests run side by side; `told` hears of each as it ends."""

    def __init__(self, told: Callable[[Asked], None]) -> None:
        self.session = str(uuid4())
        self.asked: list[Asked] = []
        self.advances: dict[str, int] = {}
        self._told = told
        self._noting = threading.Lock()
        self._client = httpx.Client(timeout=_TIMEOUT)
        self._pool = ThreadPoolExecutor(_PARALLEL, thread_name_prefix="candidate")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    def start(self, node: Node) -> Future[Reply | None]:
        """Upload the sample resume, without a file: the shipped one."""
        return self._send(node, "/interviews/", EXTRACTION_STAGE, "resume", data={"session": self.session})

    def answer(self, node: Node, number: int, text: str) -> Future[Reply | None]:
        """Answer a question; None in the end if the node died under the request."""
        path = f"/interviews/{self.session}/answers/"
        return self._send(node, path, SCORE_STAGE, f"question {number}", json={"number": number, "answer": text})

    def report(self, node: Node) -> Future[Reply | None]:
        """Ask for the report."""
        return self._send(node, f"/interviews/{self.session}/report/", REPORT_STAGE, "report", json={})

    def _send(
        self, node: Node, path: str, stage: str, subject: str, **body: Mapping[str, object]
    ) -> Future[Reply | None]:
        return self._pool.submit(self._ask, node, path, stage, subject, body)

    def _ask(self, node: Node, path: str, stage: str, subject: str, body: Mapping[str, Any]) -> Reply | None:
        try:
            response = self._client.post(node.url + path, headers=self._token(node), **body)
        except httpx.TransportError:
            self._note([Asked(stage, subject, node.name, LOST)], subject, advanced=False)
            return None
        if response.status_code != httpx.codes.OK:
            raise RefusedByNode(node.name, response.status_code, _sentence(response))
        reply: Reply = response.json()
        self._note([_asked(subject, reply, flight) for flight in reply["flights"]], subject, reply["advanced"])
        return reply

    def _token(self, node: Node) -> dict[str, str]:
        """Return the header that proves that a request came from the page; the first one fetches the page."""
        if "csrftoken" not in self._client.cookies:
            with self._noting:
                if "csrftoken" not in self._client.cookies:
                    self._client.get(node.url).raise_for_status()
        return {"X-CSRFToken": self._client.cookies["csrftoken"]}

    def _note(self, asked: list[Asked], subject: str, advanced: bool) -> None:  # noqa: FBT001
        with self._noting:
            self.asked += asked
            self.advances[subject] = self.advances.get(subject, 0) + advanced
            for one in asked:
                self._told(one)


def _asked(subject: str, reply: Reply, flight: Mapping[str, Any]) -> Asked:
    return Asked(
        stage=flight["stage"],
        subject=subject,
        node=reply["node"],
        role=flight["role"],
        layer=flight["layer"],
        generation=flight["generation"],
        digest=flight["digest"],
        waited=flight["waited"],
    )


def _sentence(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"])
    except (ValueError, KeyError, TypeError):
        return response.reason_phrase
