"""A process that calls one flight when told to, and tells what happens.

Lines in: `warm` (call another key), `call` (begin), `done TEXT` (let a running call return TEXT), `interrupt` (let it
end as on Ctrl-C), `exit`. Lines out, JSON: ready, called (with generation and pid), outcome or error of each caller,
and with TEST_TRACED each span that ended.
Run as `python -m tests.programs.caller STAGE KEY THREADS`; with TEST_CLOCK the wall clock is so many seconds fast.
"""

import json
import os
import queue
import sys
import threading
import time
import uuid

import django

from tests.shifted import shift_clock

shift_clock(float(os.environ.get("TEST_CLOCK", "0")))
django.setup()

from singleflight_app import current_flight, run  # noqa: E402
from singleflight_app.wiring import runtime  # noqa: E402

_answers: "queue.SimpleQueue[str | None]" = queue.SimpleQueue()
_out = threading.Lock()


def say(event: str, **facts: object) -> None:
    """Print one fact."""
    with _out:
        print(json.dumps({"event": event, "pid": os.getpid(), **facts}), flush=True)


def held() -> str:
    """The expensive call: it returns what the test says, when the test says so."""
    flight = current_flight()
    say("called", generation=flight.generation, attempt=flight.attempt)
    answer = _answers.get()
    say("returning", lease_lost=flight.lease_lost)
    if answer is None:
        raise KeyboardInterrupt
    return answer


def call(stage: str, key: str, barrier: threading.Barrier) -> None:
    """Be one caller."""
    barrier.wait()
    try:
        outcome = run(stage, {"key": key}, held, scope="test", result_type=str)
    except BaseException as exc:  # noqa: BLE001  (the test looks at what came)
        say("error", type=type(exc).__name__, message=str(exc))
        return
    say(
        "outcome",
        value=outcome.value,
        role=outcome.role,
        layer=outcome.layer,
        generation=outcome.generation,
        superseded=outcome.superseded,
        degraded=outcome.degraded,
    )


def main(stage: str, key: str, threads: int) -> None:
    """Read orders until told to exit."""
    if os.environ.get("TEST_TRACED"):
        from tests.spans import record  # noqa: PLC0415  (an extra)

        record(lambda span: say("span", **span))
    say("ready", owner=runtime().identity.name, now=time.time())
    for line in sys.stdin:
        order, _, text = line.strip().partition(" ")
        if order == "call":
            barrier = threading.Barrier(threads)
            for _ in range(threads):
                threading.Thread(target=call, args=(stage, key, barrier)).start()
        elif order == "done":
            _answers.put(text)
        elif order == "warm":
            say("warm", value=run(stage, {"warm": uuid.uuid4()}, lambda: "warm", scope="test").value)
        elif order == "interrupt":
            _answers.put(None)
        elif order == "exit":
            return


main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
