"""What gunicorn's master does when it has lost a worker: a call of its own, to show that its connections work."""

import json
import os
from pathlib import Path


def child_exit(server: object, worker: object) -> None:
    """Write down what came of the master's call; gunicorn calls this by its name."""
    from singleflight_app.wiring import runtime  # noqa: PLC0415  (the master has it from --preload)
    from tests.programs.asking import quick  # noqa: PLC0415

    fact = {"quick": quick("in the master"), "owner": runtime().identity.name, "pid": os.getpid()}
    Path(os.environ["TEST_FOLDER"], "child_exit").write_text(json.dumps(fact))
