"""What a keeper tells the process that started it, one JSON object a line through a pipe.

`{"say": text}` as often as needed, then `{"ready": true}` or `{"failed": why, "repair": sentence}`.
"""

import json
import os
import select
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any


class Reporting:
    """The keeper's end. The reader may be gone: then nobody is told, and the keeper goes on."""

    def __init__(self, pipe: int) -> None:
        os.set_inheritable(pipe, False)  # noqa: FBT003 (its signature)
        self._pipe: int | None = pipe

    def say(self, text: str) -> None:
        self._write({"say": text})

    def ready(self) -> None:
        self._write({"ready": True})
        self._close()

    def failed(self, why: str, repair: str) -> None:
        self._write({"failed": why, "repair": repair})
        self._close()

    def _write(self, fact: dict[str, Any]) -> None:
        if self._pipe is not None:
            with suppress(BrokenPipeError):
                os.write(self._pipe, json.dumps(fact).encode() + b"\n")

    def _close(self) -> None:
        if self._pipe is not None:
            os.close(self._pipe)
        self._pipe = None


def facts(pipe: int, deadline: float) -> Iterator[dict[str, Any]]:
    """What comes through the pipe, until it is closed or `deadline` (monotonic) has passed."""
    text = b""
    while select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
        chunk = os.read(pipe, 4096)
        if not chunk:
            return
        *lines, text = (text + chunk).split(b"\n")
        for line in lines:
            yield json.loads(line)
