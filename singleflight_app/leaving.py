"""SIGTERM of a plain process (script, command, shell) releases its leases first, so that a deploy waits for none.

gunicorn, Celery and uvicorn turn the signal into an exit in order; where it is answered already, it is left alone.
"""

import _thread
import os
import signal
import threading

from singleflight_app import wiring

FAREWELL = 2.0  #: seconds for the release; a database that is away must not keep a process from leaving


def install() -> None:
    """Answer SIGTERM in this process, unless something else does."""
    if threading.current_thread() is not threading.main_thread():
        return  # only the main thread may
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _leave)


def _leave(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a second one kills at once
    try:
        # Not here: the main thread, interrupted wherever it was, may hold the locks that a release needs, or that
        # threading.Thread needs to start.
        _thread.start_new_thread(_release_and_die, ())
    except RuntimeError:
        _die()


def _release_and_die() -> None:
    try:
        releasing = threading.Thread(target=wiring.leave, name="singleflight-release", daemon=True)
        releasing.start()
        releasing.join(FAREWELL)
    finally:
        _die()


def _die() -> None:
    """Let the exit status be the signal's; process 1 of a container is deaf to it, and takes the shells' number."""
    os.kill(os.getpid(), signal.SIGTERM)
    os._exit(128 + signal.SIGTERM)
