"""A process whose threads ask for many flights at once, and which counts what it did itself.

Run as `python -m tests.programs.hammering FILE STAGE KEY THREADS KEYS`; each call adds a byte to FILE. Lines in: `go`,
`forget N` (ask, and forget each Nth answer), `flush` (the ledger), `exit`. Lines out, JSON: ready, done (with the
number of requests), flushed.
"""

import json
import os
import random
import sys
import threading
from decimal import Decimal
from pathlib import Path

import django

django.setup()

from singleflight_app import GLOBAL, current_flight, single_flight  # noqa: E402
from singleflight_app.domain.flight import Usage  # noqa: E402
from singleflight_app.telemetry import ledger  # noqa: E402
from singleflight_app.wiring import runtime  # noqa: E402

FILE, STAGE, KEY = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
THREADS, KEYS = int(sys.argv[4]), int(sys.argv[5])


@single_flight(STAGE, scope=GLOBAL)
def score(key: str, number: int) -> str:
    """Write down that it was called, and what it used."""
    calls = os.open(FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(calls, b"x")
    os.close(calls)
    current_flight().record_usage(Usage("small-1", 100, 20, Decimal("0.000000001")))
    return f"answer {number}"


def ask(barrier: threading.Barrier, forget: int) -> None:
    """Be one thread: each key once, in an order of its own."""
    numbers = list(range(KEYS))
    random.shuffle(numbers)
    barrier.wait()
    for number in numbers:
        assert score(KEY, number) == f"answer {number}"
        if forget and number % forget == 0:
            score.forget(KEY, number)


def main() -> None:
    """Read orders until told to exit."""
    runtime()
    print(json.dumps({"event": "ready"}), flush=True)
    for line in sys.stdin:
        order, _, number = line.strip().partition(" ")
        if order in {"go", "forget"}:
            barrier = threading.Barrier(THREADS)
            threads = [threading.Thread(target=ask, args=(barrier, int(number or 0))) for _ in range(THREADS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            print(json.dumps({"event": "done", "requests": THREADS * KEYS}), flush=True)
        elif order == "flush":
            ledger.flush()
            print(json.dumps({"event": "flushed"}), flush=True)
        elif order == "exit":
            return


main()
