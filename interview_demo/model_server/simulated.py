"""The simulated model: answers made from the prompt it was sent, different at every call.

Each answer carries the mark of its call ("simulated reading 3f9a1c"), so that two calls never look like one.
It is no judge of people: it looks at words, length and reasons given.
"""

import json
import random
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any

from interview_demo.model_server import SIMULATED_MODEL
from interview_demo.model_server.interviewer import extract, follow_up, report, score

#: a tenth of what a real model takes, in seconds from - to
THINKING_TIMES = {
    "interview-extraction": (1.5, 2.5),
    "interview-score": (1.0, 1.5),
    "interview-followup": (0.4, 0.9),
    "interview-report": (3.0, 4.0),
}
_CHARACTERS_PER_TOKEN = 4

_ANSWERS: Mapping[str, Callable[[Mapping[str, Any], str], Mapping[str, object]]] = {
    "interview-extraction": extract,
    "interview-score": score,
    "interview-followup": follow_up,
    "interview-report": report,
}


#: where no header names the stage: what the reply is to be, by the name of its schema
_SCHEMAS = {
    "Extraction": "interview-extraction",
    "Score": "interview-score",
    "FollowUp": "interview-followup",
    "Report": "interview-report",
}


class UnknownStage(ValueError):
    """The simulated model knows the interview's stages only; the call was counted."""

    def __init__(self, stage: str) -> None:
        super().__init__(f"the simulated model has no answer for stage {stage!r}; it knows {', '.join(_ANSWERS)}")
        self.stage = stage


def stage_of(request: Mapping[str, Any]) -> str:
    """Return the stage that a call belongs to by the answer it wants; "unnamed" if that says nothing."""
    wanted = request.get("response_format")
    schema = wanted.get("json_schema") if isinstance(wanted, dict) else None
    return _SCHEMAS.get(str(schema.get("name")) if isinstance(schema, dict) else "", "unnamed")


def thinking_time(stage: str) -> float:
    """Return how long this call takes at normal pace, in seconds."""
    shortest, longest = THINKING_TIMES.get(stage, (0.0, 0.0))
    return random.uniform(shortest, longest)


def complete(stage: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return a chat completion that says it is simulated."""
    if stage not in _ANSWERS:
        raise UnknownStage(stage)
    mark = secrets.token_hex(3)
    content = json.dumps(_ANSWERS[stage](_data(request), mark), ensure_ascii=False)
    prompt_tokens = _tokens(json.dumps(request.get("messages", "")))
    completion_tokens = _tokens(content)
    return {
        "id": f"chatcmpl-simulated-{mark}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": SIMULATED_MODEL,
        "system_fingerprint": "simulated: no model was asked",
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": content, "refusal": None},
            }
        ],
        "usage": {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
        },
    }


def _data(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the JSON object in the user message; a prompt without one has nothing to judge."""
    for message in request.get("messages") or []:
        if message.get("role") == "user":
            try:
                data = json.loads(message.get("content") or "")
            except ValueError:
                return {}
            return data if isinstance(data, dict) else {}
    return {}


def _tokens(text: str) -> int:
    return max(1, len(text) // _CHARACTERS_PER_TOKEN)
