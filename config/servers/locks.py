"""Locks that outlive no process: the kernel lets go when the last holder is gone, SIGKILL included.

They belong to the open file, so a forked child holds its parent's; the files close on exec.
"""

import fcntl
import os
from pathlib import Path


def open_lock(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def share(lock: int) -> None:
    """Wait until nobody has the lock alone (a keeper does only while it stops its server), then share it."""
    fcntl.flock(lock, fcntl.LOCK_SH)


def try_alone(lock: int) -> bool:
    """Take the lock if nobody else holds it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def let_go(lock: int) -> None:
    fcntl.flock(lock, fcntl.LOCK_UN)


def is_file_of(path: Path, lock: int) -> bool:
    """Whether `path` is still the file that was opened; not if the folder was removed or moved meanwhile."""
    try:
        return os.path.samestat(path.stat(), os.fstat(lock))
    except FileNotFoundError:
        return False
