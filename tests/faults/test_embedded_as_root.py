"""PostgreSQL in a checkout that root uses, where the system allows user namespaces and where it forbids them.

Anybody else finds nothing here to test: the cases exist for root alone.
"""

import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from config.servers import places
from tests.embedded import POSTGRES_ALONE, USING, Folder, folder

#: Becomes root of a user namespace in which no further one may be made, as in many a container.
CONFINE = """
import ctypes, os, sys
if ctypes.CDLL(None).unshare(0x10000000): raise SystemExit('no namespace for the test')
print('apart', flush=True)
sys.stdin.readline()
os.setgid(0); os.setuid(0)
open('/proc/sys/user/max_user_namespaces', 'w').write('0')
"""


@pytest.fixture
def here() -> Iterator[Folder]:
    """An empty folder in a private one; the modes of the folders on the way to the programs are put back."""
    ways = [places.CHECKOUT, *places.CHECKOUT.parents]
    modes = {way: stat.S_IMODE(way.stat().st_mode) for way in ways}
    # Not tmp_path: each session of pytest that begins closes the folder of all of them to others.
    with tempfile.TemporaryDirectory() as private, folder(Path(private, "servers")) as empty:
        yield empty
    for way, mode in modes.items():
        if stat.S_IMODE(way.stat().st_mode) != mode:
            way.chmod(mode)


def postmaster_uid(here: Folder) -> int:
    (postmaster,) = here.servers("postgres")
    return postmaster.uids().real


if os.geteuid() == 0:

    def test_root_keeps_its_files_in_a_user_namespace(here: Folder) -> None:
        """No user is made, no mode changes, and root is told."""
        user = here.user(**POSTGRES_ALONE)
        uid, owner = postmaster_uid(here), (here.path / "postgres").stat().st_uid
        _, said = user.communicate("\n")

        here.wait_for_the_end()
        assert (uid, owner) == (0, 0)
        assert "no user is made and no file mode is changed" in said

    def test_root_without_namespaces_gives_the_data_to_another_user(here: Folder) -> None:
        """And says which user it is, and each folder whose mode it changed for it; the next start follows."""
        user = here.begin(CONFINE + USING + "sys.stdin.readline()", **POSTGRES_ALONE)
        assert user.stdout is not None
        assert user.stdin is not None
        assert user.stdout.readline() == "apart\n"
        for map_ in ("uid_map", "gid_map"):
            Path(f"/proc/{user.pid}/{map_}").write_text("0 0 65536")
        user.stdin.write("\n")
        user.stdin.flush()
        assert user.stdout.readline() == "ready\n", user.communicate()[1]
        uid, owner = postmaster_uid(here), (here.path / "postgres").stat().st_uid
        _, said = user.communicate("\n")
        here.wait_for_the_end()
        second = here.user(**POSTGRES_ALONE)
        later = postmaster_uid(here)
        _, silence = second.communicate("\n")

        here.wait_for_the_end()
        assert uid == owner == later != 0
        assert "PostgreSQL runs as the user 'nobody' and owns its data" in said
        assert f"everybody may now pass through {here.path.parent}" in said
        assert silence == ""
