"""The interview of the demo, with the duplicates that users, front ends and crashes make."""

import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import Protocol

from interview_demo.demo.asking import Candidate, Reply
from interview_demo.demo.dashboard import LookedAt
from interview_demo.demo.nodes import Node
from interview_demo.demo.running import Cluster
from interview_demo.demo.script import ANSWERS
from interview_demo.demo.tally import Takeover, Tally, tally
from interview_demo.demo.waiting import NeverCame, wait_until
from interview_demo.flights import REPORT_STAGE, SCORE_STAGE

RETRIES = 10
_BEGIN_TIMEOUT = 60.0
_REQUEST_TIMEOUT = 300.0
_LEDGER_TIMEOUT = 20.0  #: seconds until what was counted is in the database, at most
_HELD = 45.0  #: how long the call to be interrupted would take, in seconds


class Narrator(Protocol):
    """Says what happens while it happens."""

    def scene(self, title: str) -> None: ...
    def happened(self, text: str) -> None: ...


class InterviewStuck(Exception):
    """The interview can't go on: nobody answered, or no question is left."""


class Interview:
    """One interview on a running cluster, scene by scene."""

    def __init__(self, cluster: Cluster, candidate: Candidate, dashboard: LookedAt, narrator: Narrator) -> None:
        self._cluster, self._candidate, self._narrator = cluster, candidate, narrator
        self._dashboard = dashboard
        self._number = 1
        self._takeovers: list[Takeover] = []

    def play(self) -> Tally:
        """Play all scenes and return the numbers."""
        self._uploads_twice()
        self._double_clicks()
        self._refreshes_elsewhere()
        self._retries_ten_times()
        self._loses_a_node()
        self._asks_for_the_report()
        calls = self._looks_at_the_dashboard()
        return tally(
            self._candidate.asked,
            self._cluster.model.counts(),
            advances=self._candidate.advances,
            takeovers=self._takeovers,
            kills=1,
            dashboard_calls=calls,
        )

    def _uploads_twice(self) -> None:
        self._narrator.scene("The resume is uploaded with a double click, and once more on node B")
        first, second = self._cluster.first, self._cluster.second
        reply = _first_reply([self._candidate.start(node) for node in (first, first, second)])
        self._narrator.happened(f"{len(reply['extraction']['questions'])} questions for {reply['resume']['name']}")

    def _double_clicks(self) -> None:
        self._narrator.scene(f"Question {self._number}: a double click on node A")
        text = ANSWERS[0]
        self._go_on(_first_reply([self._answer(self._cluster.first, text) for _ in range(2)]))

    def _refreshes_elsewhere(self) -> None:
        self._narrator.scene(f"Question {self._number}: answered on node A, refreshed on node B, then once more")
        begun = self._cluster.model.begun(SCORE_STAGE)
        asked = [self._answer(self._cluster.first, ANSWERS[1])]
        self._cluster.model.wait_begun(SCORE_STAGE, begun + 1, timeout=_BEGIN_TIMEOUT)
        asked.append(self._answer(self._cluster.second, ANSWERS[1]))
        reply = _first_reply(asked)
        _first_reply([self._answer(self._cluster.second, ANSWERS[1])])
        self._go_on(reply)

    def _retries_ten_times(self) -> None:
        self._narrator.scene(f"Question {self._number}: {RETRIES} parallel retries over both nodes")
        nodes = [self._cluster.first, self._cluster.second] * (RETRIES // 2)
        self._go_on(_first_reply([self._answer(node, ANSWERS[2]) for node in nodes]))

    def _loses_a_node(self) -> None:
        self._narrator.scene(f"Question {self._number}: node A is killed (SIGKILL) in the middle of the model call")
        model, number = self._cluster.model, self._number
        # What it counted in its last seconds would be lost with it: only what it does now is to be in doubt.
        self._dashboard_says(model.answered())
        begun = model.begun(SCORE_STAGE)
        model.slow_next(SCORE_STAGE, _HELD)
        asked_at = time.monotonic()
        lost = self._answer(self._cluster.first, ANSWERS[3])
        model.wait_begun(SCORE_STAGE, begun + 1, timeout=_BEGIN_TIMEOUT)
        refreshed = self._answer(self._cluster.second, ANSWERS[3])
        killed_at = time.monotonic()
        self._cluster.first.kill()
        self._narrator.happened("node A is gone; its lease runs out, nobody else may call before")
        self._cluster.restart(self._cluster.first)
        resent = self._answer(self._cluster.second, ANSWERS[3])
        model.wait_begun(SCORE_STAGE, begun + 2, timeout=_BEGIN_TIMEOUT)
        now = time.monotonic()
        takeover = Takeover(SCORE_STAGE, f"question {number}", round(now - killed_at, 2), now - asked_at)
        self._takeovers.append(takeover)
        self._narrator.happened(f"node B took over {takeover.seconds:.2f} s after the kill: one call more")
        self._go_on(_first_reply([lost, refreshed, resent]))
        self._cluster.first.wait_ready()
        self._narrator.happened("node A is back")

    def _asks_for_the_report(self) -> None:
        self._narrator.scene("The report: a double click on node A, one request on node B, and a reload on each")
        first, second = self._cluster.first, self._cluster.second
        begun = self._cluster.model.begun(REPORT_STAGE)
        asked = [self._candidate.report(first), self._candidate.report(first)]
        self._cluster.model.wait_begun(REPORT_STAGE, begun + 1, timeout=_BEGIN_TIMEOUT)
        reply = _first_reply([*asked, self._candidate.report(second)])
        _first_reply([self._candidate.report(first), self._candidate.report(second)])
        self._narrator.happened(reply["report"]["overall_comment"])

    def _looks_at_the_dashboard(self) -> int:
        self._narrator.scene("The admin's dashboard, beside the model server")
        begun = sum(count.begun for count in self._cluster.model.counts().values())
        calls = self._dashboard_says(begun)
        self._narrator.happened(f"the dashboard says {calls} calls, and the model server counted {begun}")
        return calls

    def _dashboard_says(self, calls: int) -> int:
        """Return what the dashboard says, once it says so much; each process tells it every few seconds."""
        with suppress(NeverCame):
            wait_until(lambda: self._dashboard.calls() >= calls or None, timeout=_LEDGER_TIMEOUT, what="the ledger")
        return self._dashboard.calls()

    def _answer(self, node: Node, text: str) -> Future[Reply | None]:
        return self._candidate.answer(node, self._number, text)

    def _go_on(self, reply: Reply) -> None:
        self._narrator.happened(f"{reply['score']['score']} points: {reply['score']['feedback']}")
        if reply["next"] is None:
            raise InterviewStuck("no question is left for the next scene; the resume brought too few")
        if reply["next"]["is_follow_up"]:
            self._narrator.happened(f"a follow-up: {reply['next']['question']}")
        self._number = reply["next"]["number"]


def _first_reply(asked: Sequence[Future[Reply | None]]) -> Reply:
    """Wait for all requests; return the first reply. Lost requests have none, a refused one raises."""
    replies = [request.result(_REQUEST_TIMEOUT) for request in asked]
    for reply in replies:
        if reply is not None:
            return reply
    raise InterviewStuck("no request of this scene was answered")
