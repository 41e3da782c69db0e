"""One call to the model: a checked answer, or an exception. Never an answer that is not one.

The model is whatever answers at OPENAI_BASE_URL. Without it no call is made, so that an API key that happens
to lie in the environment pays for nothing.
"""

import os
from collections.abc import Mapping
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, TypeVar

from pydantic import ValidationError

from interview_demo.answers import Answer
from interview_demo.model_server import SIMULATED_MODEL, STAGE_HEADER
from interview_demo.prompts import Prompt, as_data
from singleflight_app import current_flight
from singleflight_app.contrib.openai import Price, usage_of

if TYPE_CHECKING:
    from openai import OpenAI
    from openai.types.chat import ChatCompletion

DEFAULT_MODEL = "gpt-4o-mini"
CALL_TIMEOUT = 180.0
#: In dollars: the provider's list price of its small model in 2026; for the simulated one, made up to be seen.
PRICES = {
    DEFAULT_MODEL: Price(input=Decimal("0.15"), output=Decimal("0.60"), cached=Decimal("0.075")),
    SIMULATED_MODEL: Price(input=Decimal(25), output=Decimal(100)),
}

A = TypeVar("A", bound=Answer)


class ModelMissing(Exception):
    """No model is configured; no call was made."""

    def __init__(self) -> None:
        super().__init__(
            "there is no model to ask: start the demo with `manage.py serve`, or set OPENAI_BASE_URL and OPENAI_API_KEY"
        )


class UnusableReply(Exception):
    """The model replied, but not with an answer; the flight fails and the reply is not stored."""

    def __init__(self, stage: str, reason: str) -> None:
        super().__init__(f"the model's reply for {stage} is no answer: {reason}")
        self.stage, self.reason = stage, reason


def model_name() -> str:
    """Return the model that new interviews use; an interview keeps the one it began with."""
    return os.environ.get("OPENAI_MODEL", DEFAULT_MODEL)


def ask(stage: str, prompt: Prompt, request: Mapping[str, object], answer_type: type[A], *, model: str) -> A:
    """Ask the model once and return its checked answer; only to be called inside a flight."""
    flight = current_flight()
    reply = _client().chat.completions.create(
        model=model,
        messages=[
            {"role": "system", "content": prompt.system()},
            {"role": "user", "content": as_data(request)},
        ],
        response_format={
            "type": "json_schema",
            "json_schema": {
                "name": answer_type.__name__,
                "schema": answer_type.model_json_schema(),
                "strict": True,
            },
        },
        extra_headers={STAGE_HEADER: stage, "Idempotency-Key": flight.idempotency_key},
    )
    flight.record_usage(usage_of(reply, prices=PRICES))
    return checked(stage, reply, answer_type)


def checked(stage: str, reply: "ChatCompletion", answer_type: type[A]) -> A:
    """Return the answer in a reply. An error body, a cut, a refusal, a wrong shape are no answers."""
    # A gateway's error body comes with status 200 and without choices, whatever the annotation promises.
    if not getattr(reply, "choices", None):
        raise UnusableReply(stage, "it has no choices")
    choice = reply.choices[0]
    if choice.message.refusal:
        raise UnusableReply(stage, f"the model refused: {choice.message.refusal}")
    if choice.finish_reason != "stop":
        raise UnusableReply(stage, f"it ended early ({choice.finish_reason})")
    try:
        return answer_type.model_validate_json(choice.message.content or "")
    except ValidationError as exc:
        first = exc.errors()[0]
        raise UnusableReply(stage, f"{first['msg']} at {list(first['loc'])}") from exc


def _client() -> "OpenAI":
    base_url, api_key = os.environ.get("OPENAI_BASE_URL"), os.environ.get("OPENAI_API_KEY")
    if not base_url or not api_key:
        raise ModelMissing
    return _client_of(base_url, api_key)


@cache
def _client_of(base_url: str, api_key: str) -> "OpenAI":
    # It takes a second to import, which every process that only knows the flights would pay.
    from openai import OpenAI  # noqa: PLC0415

    # No retries of its own: each one would be a call that the flight does not see.
    return OpenAI(base_url=base_url, api_key=api_key, max_retries=0, timeout=CALL_TIMEOUT)
