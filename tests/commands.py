"""The project's commands as processes of their own, on the test's database."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from django.db import connection

from config.servers.places import CHECKOUT


class StartCommand(Protocol):
    """Starts a command of `manage.py`; its environment is this process's, and what is given by name."""

    def __call__(
        self, name: str, *arguments: str, stdout: int = subprocess.PIPE, **environment: str
    ) -> "subprocess.Popen[str]": ...


@contextmanager
def commands() -> Iterator[StartCommand]:
    """Give what starts commands; those that still run in the end are killed."""
    started: list[subprocess.Popen[str]] = []

    def start(name: str, *arguments: str, stdout: int = subprocess.PIPE, **environment: str) -> "subprocess.Popen[str]":
        started.append(_start(name, arguments, stdout, environment))
        return started[-1]

    try:
        yield start
    finally:
        for process in started:
            process.kill()
            process.wait()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()


def _start(name: str, arguments: tuple[str, ...], stdout: int, environment: dict[str, str]) -> "subprocess.Popen[str]":
    # The project's URLs ask for apps that a program of a test does not have; the doctor makes no checks of others.
    without = [] if name == "singleflight_doctor" else ["--skip-checks"]
    # Tests in the background of a shell ignore Ctrl-C, and what they start would as well.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return subprocess.Popen(
            [sys.executable, "manage.py", name, *without, *arguments],
            cwd=CHECKOUT,
            env={**os.environ, "TEST_DATABASE_NAME": str(connection.settings_dict["NAME"]), **environment},
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
        )
    finally:
        signal.signal(signal.SIGINT, before)
