"""The call that programs of every shape make: it says by a file that it began, and ends when the test says so.

As a program, `python -m tests.programs.asking FOLDER KEY`, it is a plain script whose main thread makes the call.
"""

import json
import os
import sys
import threading
import uuid
from functools import partial
from pathlib import Path

import django

from tests.waiting import until


def ask(folder: str, key: str) -> str:
    """Ask for a key of the stage `calm`, as tests.programs.caller does: an owner of one, a follower of the other."""
    from singleflight_app import run  # noqa: PLC0415  (the program decides when Django is set up)

    write_asked(folder, key)
    return run("calm", {"key": key}, partial(_held, folder, key), scope="test", result_type=str).value


def quick(text: str) -> str:
    """Make a call of a key that nobody else has, and return its value."""
    from singleflight_app import run  # noqa: PLC0415

    return run("calm", {"key": uuid.uuid4()}, lambda: text, scope="test", result_type=str).value


def ask_beside(folder: str, key: str) -> None:
    """Ask in a thread that nobody waits for, and return once its call began."""
    threading.Thread(target=ask, args=(folder, key), daemon=True).start()
    until(lambda: begun(folder, key), "the call to begin")


def askers(folder: str | Path, key: str) -> list[int]:
    """Return the processes that have asked for a key."""
    path = Path(folder, f"{key}.asked")
    return [int(line) for line in path.read_text().splitlines()] if path.exists() else []


def begun(folder: str | Path, key: str) -> list[dict[str, int | str]]:
    """Return what each call of a key wrote when it began, oldest first."""
    path = Path(folder, f"{key}.begun")
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def let_go(folder: str | Path, key: str) -> None:
    """Let the running call of a key end, and each later one."""
    Path(folder, f"{key}.go").touch()


def write_asked(folder: str, key: str) -> None:
    """Say that this process asks for a key."""
    with Path(folder, f"{key}.asked").open("a") as file:
        file.write(f"{os.getpid()}\n")


def write_begun(folder: str, key: str) -> None:
    """Say, from within the call, that it began."""
    from singleflight_app import current_flight  # noqa: PLC0415

    flight = current_flight()
    fact = {"pid": os.getpid(), "generation": flight.generation, "owner": flight.owner}
    with Path(folder, f"{key}.begun").open("a") as file:
        file.write(json.dumps(fact) + "\n")


def may_end(folder: str, key: str) -> bool:
    """Tell whether the test has let the call go."""
    return Path(folder, f"{key}.go").exists()


def _held(folder: str, key: str) -> str:
    write_begun(folder, key)
    until(partial(may_end, folder, key), "leave to go on", timeout=60)
    return f"by {os.getpid()}"


if __name__ == "__main__":
    django.setup()
    ask(*sys.argv[1:])
