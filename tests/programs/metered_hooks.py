"""What gunicorn does beside serving: the hook that docs/howto/monitoring.md asks for, and a word to the test."""

import os

from tests.programs.web_hooks import post_worker_init

__all__ = ["child_exit", "post_worker_init"]


def child_exit(server: object, worker: object) -> None:
    """Let the metrics of a dead worker go that only a living one has; its counts stay."""
    if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
        from prometheus_client import multiprocess  # noqa: PLC0415  (an extra)

        pid = getattr(worker, "pid", 0)
        multiprocess.mark_process_dead(pid)  # type: ignore[no-untyped-call]
        print(f"Gone: worker {pid}", flush=True)
