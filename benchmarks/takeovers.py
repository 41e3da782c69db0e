"""What a waiting caller feels when the owner's process is killed: seconds until the next call begins elsewhere."""

import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from statistics import median

from benchmarks.flights import flight
from benchmarks.partners import Pipe, partner

HEARTBEAT = 0.5  #: seconds, as in the settings of the stage
_STAGE = "bench-takeovers"


def takeover_s(rounds: int) -> float:
    """Return seconds from SIGKILL to the waiter's call; over the rounds the kill comes anywhere between two beats."""
    return median(_taken_over(HEARTBEAT * turn / rounds) for turn in range(rounds))


def _taken_over(since_beat: float) -> float:
    called_at: list[float] = []
    called, number = flight(_STAGE, lambda _: called_at.append(time.monotonic())), uuid.uuid4().hex
    with partner(_own) as owner, ThreadPoolExecutor(1) as caller:
        owner.pipe.send(number)
        owner.pipe.recv()
        answer = caller.submit(called, number)
        time.sleep(2 * HEARTBEAT + since_beat)
        killed_at = time.monotonic()
        owner.kill()
        answer.result()
    return called_at[0] - killed_at


def _own(pipe: Pipe) -> None:
    """Own a flight until the end of the process."""

    def during(_: str) -> None:
        pipe.send("begun")
        pipe.recv()

    flight(_STAGE, during)(pipe.recv())


BENCHMARKS = (("takeover_s", takeover_s, "seconds from an owner's SIGKILL to the waiter's call; lease 1.5 s"),)
