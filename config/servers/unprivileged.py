"""PostgreSQL refuses to run as root; this is how it runs in a checkout that root uses.

In a user namespace, root goes by the name of another account and stays the owner of its files: no user is
made, no mode is changed. Where the system forbids namespaces, PostgreSQL runs as that account for real: it
owns its data, and everybody may pass through (not list) the folders on the way; each change is said.
"""

import ctypes
import os
import pwd
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from config.servers.errors import ServerCannotStart

CLONE_NEWUSER = 0x10000000


@dataclass(frozen=True)
class Account:
    """Another user for a child of root to become."""

    name: str
    uid: int
    gid: int
    in_namespace: bool

    @property
    def introduction(self) -> str:
        """What root should know, once."""
        if self.in_namespace:
            return (
                f"running as root: PostgreSQL runs in a user namespace where root is called {self.name!r}; "
                "no user is made and no file mode is changed"
            )
        return (
            "running as root, and user namespaces are forbidden here: PostgreSQL runs as the user "
            f"{self.name!r} and owns its data"
        )

    def become(self) -> None:
        """Runs in the child, before it becomes the program."""
        if self.in_namespace:
            _enter_namespace(self.uid, self.gid)
        else:
            os.setgroups([])
            os.setgid(self.gid)
            os.setuid(self.uid)

    def take(self, folder: Path) -> None:
        """Own a folder that root made."""
        if not self.in_namespace:
            os.chown(folder, self.uid, self.gid)


def choose(data: Path) -> Account | None:
    """The account for the server of this data; None if the current user will do."""
    if os.geteuid() != 0:
        return None
    entry = _other_account()
    # Data that was made without namespaces belongs to its account from then on.
    is_given = data.exists() and data.stat().st_uid != 0
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid, in_namespace=not is_given and _has_namespaces())


def open_way(binaries: Path, *folders: Path) -> Iterator[str]:
    """Let another account run the binaries and reach the folders; yields a sentence for each mode changed."""
    for folder in (binaries, *folders):
        for parent in reversed(folder.parents):
            if _allow(parent, stat.S_IXOTH):
                yield f"everybody may now pass through {parent}"
    for path in (binaries.parent, *binaries.parent.rglob("*")):
        is_program = path.stat().st_mode & stat.S_IXUSR
        if _allow(path, stat.S_IROTH | (stat.S_IXOTH if is_program else 0)):
            yield f"everybody may now read {path}"
    for folder in folders:
        if folder.stat().st_uid == 0 and _allow(folder, stat.S_IXOTH):
            yield f"everybody may now pass through {folder}"


def make_private(folder: Path, server: str) -> None:
    """Make a folder, in a place that everybody writes to, which nobody else may enter."""
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    owners = {os.geteuid()} | ({_other_account().pw_uid} if os.geteuid() == 0 else set())
    if not stat.S_ISDIR(status.st_mode) or status.st_uid not in owners:
        raise ServerCannotStart(server, f"{folder} belongs to another user", repair="Remove that folder")


def _allow(path: Path, bits: int) -> bool:
    mode = path.stat().st_mode
    if mode & bits == bits:
        return False
    path.chmod(stat.S_IMODE(mode) | bits)
    return True


def _other_account() -> pwd.struct_passwd:
    """One in the list of users, where PostgreSQL looks its own up."""
    others = [entry for entry in pwd.getpwall() if entry.pw_uid]
    return next((entry for entry in others if entry.pw_name == "nobody"), others[0])


@cache
def _has_namespaces() -> bool:
    child = os.fork()
    if child == 0:
        try:
            _enter_namespace(1, 1)
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


def _enter_namespace(uid: int, gid: int) -> None:
    outer_uid, outer_gid = os.geteuid(), os.getegid()
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "unshare") or libc.unshare(CLONE_NEWUSER):
        raise OSError(ctypes.get_errno(), "no user namespace")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {outer_uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {outer_gid} 1")
