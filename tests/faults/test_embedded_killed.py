"""The embedded servers when processes are killed, in any combination: the next start works."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.embedded import POSTGRES_ALONE, Folder, folder, kill, leave
from tests.waiting import until


def answer(here: Folder) -> tuple[object, ...] | None:
    with here.session() as session:
        return session.execute("select 1").fetchone()


def test_killed_user_is_a_user_that_left(here: Folder) -> None:
    """The kernel lets go of its lock: both servers stop as after an orderly end."""
    user = here.user()

    user.kill()

    here.wait_for_the_end()
    assert "database system is shut down" in (here.path / "postgres.log").read_text()


def test_killed_user_leaves_the_servers_to_the_others(here: Folder) -> None:
    """A node killed in the middle of a request takes nobody's database away."""
    first, second = here.user(), here.user()
    before = here.servers()

    first.kill()
    first.wait()

    leave(here.user())  # whatever the keepers made of the death, they have made it by now
    assert here.servers() == before
    leave(second)
    here.wait_for_the_end()


def test_kill_of_everything_loses_nothing_that_was_committed(here: Folder) -> None:
    """Users, keepers, postmaster, its children, Valkey: SIGKILL to all, as from an impatient person."""
    here.user()
    with here.session() as session:
        session.execute("create table paid as select 7 as answer")
    sessions = [child for server in here.servers("postgres") for child in server.children()]
    here.kill_everything()
    kill(*sessions)
    assert here.socket_files()  # stale sockets, and postmaster.pid of the dead

    second = here.user()

    with here.session() as session:
        assert session.execute("select answer from paid").fetchone() == (7,)
    leave(second)


def test_kill_of_keepers_and_postmaster_alone_waits_for_its_orphans(here: Folder) -> None:
    """Sessions of a killed postmaster live on for a moment; no second server touches the files meanwhile."""
    user = here.user(**POSTGRES_ALONE)
    with here.session() as session:
        session.execute("create table busy as select 1 as number")
        kill(*here.keepers("postgres"), *here.servers("postgres"))

        second = here.user(**POSTGRES_ALONE)

    assert answer(here) == (1,)
    leave(user)
    leave(second)


def test_killed_keeper_is_replaced_and_its_server_adopted(here: Folder) -> None:
    """Who works with the server notices nothing, and it still stops after the last user."""
    user = here.user()
    before = here.servers()
    kill(*here.keepers())

    second = here.user()

    assert here.servers() == before
    assert len(here.keepers()) == 2
    leave(user)
    leave(second)
    here.wait_for_the_end()


@pytest.mark.parametrize("program", ["postgres", "valkey-server"])
def test_killed_server_is_started_again_by_its_keeper(here: Folder, program: str) -> None:
    """A web node that runs on gets its server back without a restart of its own."""
    user = here.user()
    before = here.servers(program)

    kill(*before)

    after = until(lambda: here.servers(program), "a new server")
    leave(here.user())
    assert after != before
    assert answer(here) == (1,)
    leave(user)


def test_kill_in_the_middle_of_initdb_leaves_no_half_database(tmp_path: Path) -> None:
    """A folder with PG_VERSION looks complete long before it is; only a rename makes it one."""
    with folder(tmp_path / "servers") as empty:
        user = empty.begin(**POSTGRES_ALONE)
        until(lambda: list(empty.path.glob("postgres.new-*/PG_VERSION")), "initdb to be in the middle")
        here = psutil.Process(empty.keepers("postgres")[0].pid)
        kill(here, *reversed(here.children(recursive=True)), psutil.Process(user.pid))
        assert not (empty.path / "postgres").exists()

        second = empty.user(**POSTGRES_ALONE)

        assert answer(empty) == (1,)
        assert not list(empty.path.glob("postgres.new-*"))
        leave(second)


@pytest.mark.parametrize("pid_of", ["a living process", "a zombie", "nobody"])
def test_stale_pid_file_and_sockets_stop_nobody(here: Folder, pid_of: str) -> None:
    """A pid is reused, or stays as a zombie where process 1 reaps nothing; PostgreSQL alone would refuse."""
    sleeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    if pid_of != "a living process":
        sleeper.kill()
    if pid_of == "a zombie":
        until(lambda: psutil.Process(sleeper.pid).status() == psutil.STATUS_ZOMBIE, "a zombie")
    if pid_of == "nobody":
        sleeper.wait()
    leave_stale_files(here, sleeper.pid)

    user = here.user()

    assert answer(here) == (1,)
    leave(user)
    sleeper.communicate()


def leave_stale_files(here: Folder, pid: int) -> None:
    sockets = here.sockets / "postgres"
    sockets.mkdir(mode=0o700, parents=True)
    here.sockets.chmod(0o700)
    lines = [pid, here.path / "postgres", 1, 5432, sockets, "", "  8826964     65536", "ready   ", ""]
    text = "\n".join(map(str, lines))
    (here.path / "postgres" / "postmaster.pid").write_text(text)
    (sockets / ".s.PGSQL.5432.lock").write_text(text)
    (sockets / ".s.PGSQL.5432").touch()
    (here.sockets / "valkey.sock").touch()


def test_folder_removed_under_running_servers_is_begun_anew(here: Folder) -> None:
    """`git clean -xdf` in another window: the old servers end, the next start makes an empty database."""
    user = here.user()
    before = here.servers()
    shutil.rmtree(here.path, ignore_errors=True)

    second = here.user()

    def all_new() -> bool:
        now = here.servers()
        return len(now) == 2 and not set(now) & set(before)

    until(all_new, "two new servers")
    assert answer(here) == (1,)
    user.kill()
    leave(second)
    here.wait_for_the_end()


def test_stopped_orphan_gives_way(here: Folder) -> None:
    """A Valkey that is paused and has lost its keeper answers nobody: it is ended, and a new one started."""
    user = here.user()
    (orphan,) = here.servers("valkey-server")
    kill(*here.keepers("valkey"))
    orphan.send_signal(signal.SIGSTOP)

    leave(here.user())

    assert here.servers("valkey-server") not in ([], [orphan])
    leave(user)
