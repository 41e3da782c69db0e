"""Calls to a real model pass through here, so that one count holds for both kinds."""

import json
from http import HTTPStatus

import httpx

_TIMEOUT = 300.0


class Upstream:
    """The model behind an OpenAI-compatible address."""

    def __init__(self, base_url: str) -> None:
        self._client = httpx.Client(base_url=base_url.rstrip("/") + "/", timeout=_TIMEOUT)

    def complete(self, body: bytes, authorization: str) -> tuple[int, bytes, int]:
        """Forward one call; returns status, body and the tokens that the model counted."""
        headers = {"Content-Type": "application/json", "Authorization": authorization}
        try:
            reply = self._client.post("chat/completions", content=body, headers=headers)
        except httpx.HTTPError as exc:
            error = {"message": f"the model is out of reach: {type(exc).__name__}", "type": "upstream_error"}
            return HTTPStatus.BAD_GATEWAY, json.dumps({"error": error}).encode(), 0
        return reply.status_code, reply.content, _tokens(reply.content)


def _tokens(body: bytes) -> int:
    try:
        total = json.loads(body)["usage"]["total_tokens"]
    except (ValueError, KeyError, TypeError):
        return 0  # an error body counts no tokens
    return total if isinstance(total, int) else 0
