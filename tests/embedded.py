"""The embedded servers under test: a folder of their own, processes that use them, and who runs there now."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import psycopg

from config.servers import places
from tests.waiting import until

USING = "from config.servers import start_servers; start_servers(); print('ready', flush=True); "
#: For a test that has no use for Valkey.
POSTGRES_ALONE = {"REDIS_URL": "redis://cache.invalid/0"}
UNTIL_TOLD = "import sys; sys.stdin.readline()"


class Folder:
    """What stands for a checkout's `.servers`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._begun: list[subprocess.Popen[str]] = []
        with self._named():
            self.sockets = places.sockets_folder()

    @contextmanager
    def _named(self) -> Iterator[None]:
        before = os.environ.get("SINGLEFLIGHT_SERVERS_DIR")
        os.environ["SINGLEFLIGHT_SERVERS_DIR"] = str(self.path)
        yield
        del os.environ["SINGLEFLIGHT_SERVERS_DIR"]
        if before is not None:
            os.environ["SINGLEFLIGHT_SERVERS_DIR"] = before

    def environment(self, **variables: str) -> dict[str, str]:
        """A user's, with no server of its own unless one is given."""
        named = {"DATABASE_URL", "REDIS_URL", "CELERY_BROKER_URL", "DJANGO_SETTINGS_MODULE"}
        rest = {key: value for key, value in os.environ.items() if key not in named}
        return rest | {"SINGLEFLIGHT_SERVERS_DIR": str(self.path)} | variables

    def begin(self, code: str = USING + UNTIL_TOLD, **variables: str) -> "subprocess.Popen[str]":
        """Start a user; it goes on while the test does."""
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=places.CHECKOUT,
            env=self.environment(**variables),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._begun.append(process)
        return process

    def user(self, code: str = USING + UNTIL_TOLD, **variables: str) -> "subprocess.Popen[str]":
        """A user whose servers answer."""
        process = self.begin(code, **variables)
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise AssertionError(process.communicate()[1])
        return process

    def manage(self, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=places.CHECKOUT,
            env=self.environment(**variables),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def servers(self, program: str = "") -> list[psutil.Process]:
        """The postmaster and the Valkey that run here now."""
        here = _processes(str(self.sockets), {program} if program else {"postgres", "valkey-server"})
        pids = {process.pid for process, _ in here}
        # A session that was just forked has the postmaster's command line for a moment.
        return [process for process, parent in here if parent not in pids]

    def keepers(self, server: str = "") -> list[psutil.Process]:
        found = []
        for process, _ in _processes("config.servers.keeper"):
            with suppress(psutil.Error):
                is_here = process.environ().get("SINGLEFLIGHT_SERVERS_DIR") == str(self.path)
                if is_here and (not server or server in process.cmdline()):
                    found.append(process)
        return found

    def nothing_is_left(self) -> bool:
        # Files first: looking at every process of the machine costs more.
        return not (self.socket_files() or self.servers() or self.keepers())

    def socket_files(self) -> list[Path]:
        """The sockets, their locks, and whatever else is in their folder."""
        return [path for path in self.sockets.rglob("*") if not path.is_dir()] if self.sockets.exists() else []

    def wait_for_the_end(self) -> None:
        until(self.nothing_is_left, "both servers to stop and their sockets to go")

    def session(self, database: str = places.DATABASE_NAME) -> "psycopg.Connection[tuple[object, ...]]":
        return psycopg.connect(host=str(self.sockets / "postgres"), user="postgres", dbname=database, autocommit=True)

    def kill_everything(self) -> None:
        """SIGKILL to all users that are left, keepers and servers, in the order that lets nobody clean up."""
        users = [psutil.Process(process.pid) for process in self._begun if process.poll() is None]
        kill(*self.keepers(), *self.servers(), *users)


def kill(*processes: psutil.Process) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)
    for process in processes:
        until(lambda: not _is_alive(process), f"the end of {process}")  # noqa: B023 (called at once)


def leave(process: "subprocess.Popen[str]") -> None:
    """End a user in order; it must have had nothing to complain about."""
    _, errors = process.communicate("\n", timeout=30)
    assert process.returncode == 0, errors


@contextmanager
def folder(path: Path, template: Path | None = None) -> Iterator[Folder]:
    """A folder, empty or with a copy of a database that was made before; nothing of it outlives the block."""
    if template is not None:
        shutil.copytree(template, path, symlinks=True)
    here = Folder(path)
    try:
        yield here
    finally:
        here.kill_everything()
        for process in here._begun:
            process.communicate()
        shutil.rmtree(here.sockets, ignore_errors=True)


def _processes(marker: str, names: Collection[str] = ()) -> list[tuple[psutil.Process, int]]:
    """Living processes with `marker` on their command line, and the pid of each one's parent."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            is_named = not names or process.name() in names
            if is_named and marker in " ".join(process.cmdline()) and _is_alive(process):
                found.append((process, process.ppid()))
    return found


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
