"""What gunicorn tells: a worker, that it hears signals; the master, by a call of its own, that it has lost a worker.

gunicorn calls these by their names.
"""

import json
import os
from pathlib import Path


def post_worker_init(worker: object) -> None:
    """Say that a worker answers; a SIGTERM sooner than this is lost, for until then its handler is the master's."""
    print(f"Ready: worker {os.getpid()}", flush=True)  # the server's output is its log


def child_exit(server: object, worker: object) -> None:
    """Write down what came of the master's call: its connections work."""
    from singleflight_app.wiring import runtime  # noqa: PLC0415  (the master has it from --preload)
    from tests.programs.asking import quick  # noqa: PLC0415

    fact = {"quick": quick("in the master"), "owner": runtime().identity.name, "pid": os.getpid()}
    Path(os.environ["TEST_FOLDER"], "child_exit").write_text(json.dumps(fact))
