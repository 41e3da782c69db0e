"""The embedded servers in the ordinary run of things: shared by their users, and gone after the last."""

from pathlib import Path

import psycopg
import pytest

from tests.embedded import POSTGRES_ALONE, USING, Folder, folder, leave
from tests.waiting import until


def test_first_start_makes_the_database_and_says_so_once(tmp_path: Path) -> None:
    """An empty folder needs nothing else; the second start is silent."""
    with folder(tmp_path / "servers") as empty:
        first = empty.user()
        with empty.session() as session:
            session.execute("create database test_singleflight")
            durable = session.execute("select current_setting('fsync'), current_setting('max_connections')").fetchone()
        _, said = first.communicate("\n")
        empty.wait_for_the_end()
        second = empty.user()
        _, silence = second.communicate("\n")

    assert durable == ("on", "200")
    assert said.startswith(f"creating the development database in {empty.path / 'postgres'} ...\n")
    assert silence == ""


def test_two_users_share_one_server_until_the_second_leaves(here: Folder) -> None:
    """The first user's end concerns nobody; the last one's stops both servers and removes their sockets."""
    first, second = here.user(), here.user()
    shared = here.servers()

    leave(first)
    with here.session() as session:
        answer = session.execute("select 1").fetchone()
    still = here.servers()
    leave(second)

    here.wait_for_the_end()
    assert answer == (1,)
    assert len(shared) == 2
    assert still == shared


def test_ten_users_at_once_start_one_server_of_each(here: Folder) -> None:
    """Whoever comes first starts it, the others wait for it."""
    users = [here.begin() for _ in range(10)]
    for user in users:
        assert user.stdout is not None
        assert user.stdout.readline() == "ready\n"

    started = sorted(process.name() for process in here.servers())
    kept = len(here.keepers())
    for user in users:
        leave(user)

    here.wait_for_the_end()
    assert (started, kept) == (["postgres", "valkey-server"], 2)


def test_database_is_kept_between_runs(here: Folder) -> None:
    """What was committed in one run is there in the next."""
    first = here.user(**POSTGRES_ALONE)
    with here.session() as session:
        session.execute("create table kept as select 7 as number")
    leave(first)
    here.wait_for_the_end()

    second = here.user(**POSTGRES_ALONE)
    with here.session() as session:
        kept = session.execute("select number from kept").fetchone()
    leave(second)

    assert kept == (7,)


def test_dropped_database_is_made_again(here: Folder) -> None:
    """Who drops the database to begin anew gets an empty one at the next start, other users or not."""
    first = here.user(**POSTGRES_ALONE)
    with here.session("postgres") as session:
        session.execute("drop database singleflight")

    leave(here.user(**POSTGRES_ALONE))

    with here.session() as session:
        assert session.execute("select 1").fetchone() == (1,)
    leave(first)


def test_two_checkouts_run_side_by_side(here: Folder, tmp_path: Path, template: Path) -> None:
    """Each has servers of its own, and the end of one is not the other's."""
    with folder(tmp_path / "other", template) as other:
        one, two = here.user(), other.user()
        with here.session() as session:
            session.execute("create table mine()")
        with other.session() as session, pytest.raises(psycopg.errors.UndefinedTable):
            session.execute("select from mine")

        leave(one)

        here.wait_for_the_end()
        with other.session() as session:
            assert session.execute("select 1").fetchone() == (1,)
        leave(two)
        other.wait_for_the_end()


@pytest.mark.parametrize(
    ("given", "started"),
    [
        ({"DATABASE_URL": "postgresql://u:p@db.invalid/name"}, ["valkey-server"]),
        ({"REDIS_URL": "redis://cache.invalid/0"}, ["postgres"]),
        ({"DATABASE_URL": "postgresql://u:p@db.invalid/name", "REDIS_URL": "redis://cache.invalid/0"}, []),
    ],
)
def test_server_that_is_given_is_not_started(here: Folder, given: dict[str, str], started: list[str]) -> None:
    """Each of the two variables alone is enough for its server."""
    user = here.user(**given)

    assert [process.name() for process in here.servers()] == started
    leave(user)


def test_forked_child_is_a_user(here: Folder) -> None:
    """A worker that was forked, as gunicorn's after a preload, keeps the servers when its parent is gone."""
    fork = "import os, sys; os.fork() and os._exit(0); sys.stdin.readline()"
    parent = here.user(USING + fork, **POSTGRES_ALONE)
    parent.wait()

    with here.session() as session:
        answer = session.execute("select 1").fetchone()
    parent.communicate("\n")

    here.wait_for_the_end()
    assert answer == (1,)


def test_program_that_a_user_leaves_behind_is_no_user(here: Folder) -> None:
    """The lock closes on exec: an editor or a browser that a command opened does not keep the servers."""
    leave_behind = (
        "import subprocess, sys; "
        "left = subprocess.Popen([sys.executable, '-c', 'import sys; sys.stdin.readline()'], close_fds=False)"
        "; import os; os._exit(0)"
    )
    user = here.user(USING + leave_behind, **POSTGRES_ALONE)
    user.wait()

    here.wait_for_the_end()
    assert user.stdin is not None
    user.stdin.write("\n")  # it was still there to read this


def test_second_call_in_a_process_is_cheap_and_harmless(here: Folder) -> None:
    """manage.py and wsgi both call it under runserver."""
    again = "start_servers(); start_servers(); import sys; sys.stdin.readline()"

    user = here.user(USING + again)

    leave(user)


def test_keeper_that_is_told_to_end_stops_its_server(here: Folder) -> None:
    """As at a shutdown of the machine: in order, with users or without."""
    user = here.user()

    here.keepers("postgres")[0].terminate()

    until(lambda: not here.servers("postgres"), "PostgreSQL to stop")
    assert "database system is shut down" in (here.path / "postgres.log").read_text()
    leave(user)


def test_importing_settings_starts_nothing(tmp_path: Path) -> None:
    """Settings name the sockets of servers that need not run."""
    with folder(tmp_path / "servers") as empty:
        code = "from config import settings; print(settings.DATABASES['default']['HOST'])"
        user = empty.begin(code)
        host, _ = user.communicate(timeout=30)

        assert host.strip() == str(empty.sockets / "postgres")
        assert not empty.path.exists()
        assert empty.nothing_is_left()


@pytest.mark.parametrize(
    "command",
    [["check"], ["makemigrations", "--check", "--dry-run"]],
)
def test_command_that_needs_no_server_starts_none(tmp_path: Path, command: list[str]) -> None:
    """Nor does it try to connect to one."""
    with folder(tmp_path / "servers") as empty:
        done = empty.manage(*command)

        assert (done.returncode, done.stderr) == (0, "")
        assert not empty.path.exists()


def test_command_that_needs_them_starts_them(here: Folder) -> None:
    """`manage.py migrate` on a fresh checkout just works, and leaves nothing running."""
    done = here.manage("migrate", "contenttypes", "--verbosity", "0")

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    here.wait_for_the_end()


@pytest.mark.parametrize(
    ("variables", "sentence"),
    [
        ({"DATABASE_URL": "mysql://u:secret@h/db"}, "DATABASE_URL has the scheme 'mysql'"),
        ({"REDIS_URL": "mysql://u:secret@h/db"}, "REDIS_URL has the scheme 'mysql'"),
        ({"DEBUG": "0", "SECRET_KEY": ""}, "With DEBUG=0 set SECRET_KEY"),
    ],
)
def test_wrong_environment_ends_a_command_with_one_sentence(
    tmp_path: Path, variables: dict[str, str], sentence: str
) -> None:
    """Before anything is started."""
    with folder(tmp_path / "servers") as empty:
        done = empty.manage("migrate", **variables)

        assert done.returncode == 1
        assert done.stderr.startswith(sentence)
        assert done.stderr.count("\n") == 1
        assert "secret" not in done.stderr
        assert not empty.path.exists()


def test_gunicorn_serves_the_admin_with_its_style(here: Folder, tmp_path: Path) -> None:
    """The web node starts the servers by itself and needs no collectstatic; its end is theirs."""
    import httpx  # noqa: PLC0415 (one test's)

    address = tmp_path / "socket"
    node = here.begin(
        f"import sys; from gunicorn.app.wsgiapp import run; sys.argv[1:] = {['config.wsgi']}; run()",
        GUNICORN_CMD_ARGS=f"--bind unix:{address}",
    )
    until(address.exists, "gunicorn's socket")
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(address)), base_url="http://localhost") as client:
        style = client.get("/static/admin/css/base.css", timeout=30)
        page = client.get("/admin/login/", timeout=30)

    running = [process.name() for process in here.servers()]
    node.terminate()
    here.wait_for_the_end()
    assert (style.status_code, page.status_code) == (200, 200)
    assert sorted(running) == ["postgres", "valkey-server"]


def test_celery_worker_starts_the_servers(here: Folder) -> None:
    """Started with nothing else running, as from a second terminal."""
    arguments = ["worker", "--pool", "solo", "--loglevel", "warning"]
    worker = here.begin(f"from config.celery import app; app.worker_main({arguments})")

    until(lambda: len(here.servers()) == 2, "both servers")
    worker.kill()
    here.wait_for_the_end()
