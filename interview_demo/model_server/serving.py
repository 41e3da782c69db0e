"""The HTTP side of the model server.

POST /v1/chat/completions   a model call, as the `openai` package sends it
GET  /v1/models             the one model
GET  /calls                 counts by stage; ?stage=S&begun=N&wait=T answers once the N-th call of S has begun
POST /slow                  {"stage": S, "seconds": T}: the stage's next call takes T (simulated model only)
"""

import json
import math
import select
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from interview_demo.model_server import SIMULATED_MODEL, STAGE_HEADER
from interview_demo.model_server.calls import CallBook
from interview_demo.model_server.forwarding import Upstream
from interview_demo.model_server.simulated import UnknownStage, complete, stage_of, thinking_time

MAX_WAIT = 60.0
MAX_BODY = 2_000_000


class ModelServer(ThreadingHTTPServer):
    """Serves a thread per call until it is shut down; port 0 takes a free one."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self, port: int = 0, *, host: str = "127.0.0.1", pace: float = 1.0, upstream: Upstream | None = None
    ) -> None:
        super().__init__((host, port), _Handler)
        self.calls, self.pace, self.upstream = CallBook(), pace, upstream

    @property
    def url(self) -> str:
        """The address, without a trailing slash."""
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: ModelServer
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body leave in one segment

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        if parts.path == "/calls":
            self._calls({name: values[0] for name, values in parse_qs(parts.query).items()})
        elif parts.path == "/v1/models":
            models = [{"id": SIMULATED_MODEL, "object": "model", "created": 0, "owned_by": "interview_demo"}]
            self._send(HTTPStatus.OK, {"object": "list", "data": models})
        else:
            self._refuse(HTTPStatus.NOT_FOUND, f"there is nothing at {parts.path}")

    def do_POST(self) -> None:
        routes = {"/v1/chat/completions": self._complete, "/slow": self._slow}
        route = routes.get(urlsplit(self.path).path)
        length = int(self.headers.get("Content-Length") or 0)
        if route is None or not 0 < length <= MAX_BODY:
            self.close_connection = True  # the body stays unread
            self._refuse(HTTPStatus.NOT_FOUND if route is None else HTTPStatus.BAD_REQUEST, "no such call")
            return
        body = self.rfile.read(length)
        try:
            request = json.loads(body)
        except ValueError:
            self._refuse(HTTPStatus.BAD_REQUEST, "the body is not JSON")
            return
        if isinstance(request, dict):
            route(request, body)
        else:
            self._refuse(HTTPStatus.BAD_REQUEST, "the body is not a JSON object")

    def _calls(self, query: Mapping[str, str]) -> None:
        try:
            count, wait = int(query.get("begun", 0)), min(float(query.get("wait", 0)), MAX_WAIT)
        except ValueError:
            self._refuse(HTTPStatus.BAD_REQUEST, "begun and wait are numbers")
            return
        if "stage" in query:
            self.server.calls.wait_begun(query["stage"], count, wait)
        self._send(
            HTTPStatus.OK,
            {"simulated": self.server.upstream is None, "stages": self.server.calls.as_dict()},
        )

    def _slow(self, request: Mapping[str, Any], body: bytes) -> None:
        stage, seconds = request.get("stage"), request.get("seconds")
        if self.server.upstream is not None:
            self._refuse(HTTPStatus.CONFLICT, "a real model can't be told how long to take")
        elif not isinstance(stage, str) or not isinstance(seconds, int | float) or not math.isfinite(seconds):
            self._refuse(HTTPStatus.BAD_REQUEST, "stage is a name, seconds a number")
        else:
            self.server.calls.slow_next(stage, seconds)
            self._send(HTTPStatus.OK, {"stage": stage, "seconds": seconds})

    def _complete(self, request: Mapping[str, Any], body: bytes) -> None:
        stage = self.headers.get(STAGE_HEADER) or stage_of(request)
        ordered = self.server.calls.begin(stage)
        if self.server.upstream is not None:
            status, reply, tokens = self.server.upstream.complete(body, self.headers.get("Authorization", ""))
            self.server.calls.answer(stage, tokens)
            self._send_bytes(status, reply)
            return
        seconds = thinking_time(stage) * self.server.pace if ordered is None else ordered
        if self._caller_left_within(seconds):
            self.server.calls.leave(stage)
            self.close_connection = True
            return
        self._answer(stage, request)

    def _answer(self, stage: str, request: Mapping[str, Any]) -> None:
        try:
            completion = complete(stage, request)
        except UnknownStage as exc:
            self._refuse(HTTPStatus.BAD_REQUEST, str(exc))
            return
        self.server.calls.answer(stage, completion["usage"]["total_tokens"])
        self._send(HTTPStatus.OK, completion)

    def _caller_left_within(self, seconds: float) -> bool:
        # A caller that waits for its reply sends nothing: readable means that it hung up.
        readable, _, _ = select.select([self.connection], [], [], seconds)
        return bool(readable)

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        self._send(status, {"error": {"message": message, "type": "invalid_request_error"}})

    def _send(self, status: HTTPStatus, content: object) -> None:
        self._send_bytes(status, json.dumps(content).encode())

    def _send_bytes(self, status: int, content: bytes) -> None:
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
            self.wfile.flush()
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # killed while it waited; the count has the call

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (the base class's name)
        """Stay silent: the count is the log."""
