"""A process that forks in the middle of its call; the child asks for keys of its own, and `returns` or `leaves`.

A child that returns ends the call too; one that leaves closes what it has and exits in the midst of it. The parent
waits for it, and then makes another call. Run as `python -m tests.programs.forking KEY returns`.

Lines out, JSON: identity of parent and child, what the child got, what the parent got.
"""

import json
import os
import sys

import django

django.setup()

from singleflight_app import current_flight, run, wiring  # noqa: E402
from singleflight_app.wiring import runtime  # noqa: E402

_parent = os.getpid()


def say(event: str, **facts: object) -> None:
    """Print one fact."""
    os.write(1, json.dumps({"event": event, "is_child": os.getpid() != _parent, **facts}).encode() + b"\n")


def answer(text: str) -> str:
    """An expensive call of the child's own."""
    return text


def forking() -> str:
    """The call: half-way through it the process becomes two, and both come back from it."""
    generation = current_flight().generation
    child = os.fork()
    if child == 0:
        outcome = run("calm", {"key": f"{key}-child"}, lambda: answer("child's own"), scope="test", result_type=str)
        say("own", value=outcome.value, role=outcome.role, owner=runtime().identity.name)
        if sys.argv[2] == "leaves":
            wiring.close()
            sys.exit()
        return "from the child"
    os.waitpid(child, 0)
    say("held", generation=generation, held=sorted(runtime().coordinator.running()))
    another = run("calm", {"key": f"{key}-after"}, lambda: answer("after the child"), scope="test", result_type=str)
    say("after", value=another.value, degraded=another.degraded)
    return "from the parent"


key = sys.argv[1]
say("ready", owner=runtime().identity.name)
outcome = run("calm", {"key": key}, forking, scope="test", result_type=str)
say("outcome", value=outcome.value, generation=outcome.generation, role=outcome.role, superseded=outcome.superseded)
sys.stdout.flush()
if os.getpid() != _parent:
    os._exit(0)
