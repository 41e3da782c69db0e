"""Starts the few threads of a process. One that can't start is tried again by the next who needs it."""

import logging
import threading
from collections.abc import Callable

logger = logging.getLogger("singleflight_app")

#: Starts a thread of the engine; test mode has none, and does what is due when its clock is moved.
Start = Callable[[Callable[[], None], str], bool]


def start(target: Callable[[], None], name: str) -> bool:
    """Start a daemon thread; False when the system or a closing interpreter gives none.

    No caller may lose its answer over that: without the thread there is no beat, no poll or no hint until the
    next try.
    """
    try:
        threading.Thread(target=target, name=f"singleflight-{name}", daemon=True).start()
    except RuntimeError:
        logger.error("the thread singleflight-%s could not be started; it is tried again", name)  # noqa: TRY400  (known)
        return False
    return True
