"""Background flights for tests, and the real Celery workers that run them. A worker imports this module by name.

What a call does is told by its arguments: it writes a file when it begins, and waits for another one where the
test wants it held.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Self
from uuid import UUID

from celery import Celery
from django.db import connection
from pydantic import BaseModel, Field

from config.celery import app
from singleflight_app import GLOBAL, current_flight, single_flight, wiring
from tests.waiting import until


class Answer(BaseModel):
    """What the calls return; one field has an alias, as models of foreign APIs do."""

    text: str
    given_by: str = Field(alias="givenBy")
    generation: int | None = None


class Question(BaseModel):
    """An argument that is a model."""

    text: str = Field(alias="questionText")
    asked_at: datetime


@single_flight("background-answer", scope=GLOBAL)
def answer(folder: str, name: str, *, is_held: bool = False) -> Answer:
    """Write down that the call began, wait for leave if told so, and answer."""
    begun = Path(folder, f"{name}.begun")
    with begun.open("a") as file:
        file.write(json.dumps({"pid": os.getpid(), "generation": current_flight().generation}) + "\n")
    if is_held:
        until(Path(folder, f"{name}.go").exists, "leave to go on", timeout=60)
    return Answer(text=name, givenBy=str(os.getpid()), generation=current_flight().generation)


@single_flight("background-remembered", scope=GLOBAL)
def remembered(folder: str, name: str) -> int:
    """Return how many calls there were."""
    with Path(folder, f"{name}.count").open("a+") as file:
        file.write("x")
        file.flush()
        return file.tell()


@single_flight("background-failing", scope=GLOBAL)
def failing(name: str) -> str:
    """Come to grief."""
    raise ValueError(f"no {name}")


@single_flight("background-typed", scope=GLOBAL)
def typed(when: datetime, which: UUID, question: Question) -> str:
    """Tell which types arrived."""
    return f"{type(when).__name__} {type(which).__name__} {type(question).__name__} {question.text}"


@single_flight("background-untyped", scope=GLOBAL)
def untyped(value, *, folder=""):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    """Have no annotation for what it takes."""
    return repr(value)


class Workers:
    """Celery workers on the test's database; the log of each tells what went wrong."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._folder, self._options = folder, options
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave no process behind."""
        for process in self._processes:
            process.kill()
            process.wait()

    def have(self, count: int) -> None:
        """Return once at least `count` workers hear messages."""
        while sum(process.poll() is None for process in self._processes) < count:
            self._start()

    def kill(self, pid: int) -> None:
        """End a worker at once, with no chance to say goodbye."""
        (process,) = [process for process in self._processes if process.pid == pid]
        process.kill()
        process.wait()

    def _start(self) -> None:
        log = self._folder / f"{len(self._processes)}.log"
        worker = [
            "-m",
            "celery",
            "--skip-checks",
            "-A",
            "config",
            "worker",
            "--pool",
            "solo",
            "--loglevel",
            "INFO",
            "-I",
            __name__,
        ]
        alone = ["-Q", app.conf.task_default_queue, "--without-gossip", "--without-mingle", "--without-heartbeat"]
        environment = {**os.environ, "TEST_DATABASE_NAME": str(connection.settings_dict["NAME"])}
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, *worker, *alone, *self._options],
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._processes.append(process)
        until(lambda: _is_ready(process, log), f"a worker; see {log}", timeout=60)


@contextmanager
def broker_away() -> Iterator[None]:
    """Let this thread's messages go to a broker that can't take them."""
    nowhere = dict.fromkeys(("data_folder_in", "data_folder_out", "control_folder"), "/dev/null/nowhere")
    away = Celery("away", broker="filesystem://", set_as_current=True)
    away.conf.broker_transport_options = nowhere
    try:
        yield
    finally:
        app.set_current()
        away.close()
        wiring._quiet_until = 0.0  # the pause after a failure, which no test waits for


def begun(folder: Path, name: str) -> list[dict[str, int]]:
    """Return what each call of `answer` wrote when it began, oldest first."""
    path = folder / f"{name}.begun"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def let_go(folder: Path, name: str) -> None:
    """Let held calls of `answer` end."""
    (folder / f"{name}.go").touch()


def _is_ready(process: "subprocess.Popen[bytes]", log: Path) -> bool:
    assert process.poll() is None, log.read_text()
    return " ready." in log.read_text()
