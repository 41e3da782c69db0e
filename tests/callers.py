"""Real processes that call flights: started, told what to do, paused, killed, and listened to."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from django.db import connection

from tests.waiting import until

Fact = dict[str, Any]


class Program:
    """One process of `tests.programs`: it takes orders by lines, and tells facts by lines of JSON."""

    def __init__(self, name: str, *arguments: str, **environment: str) -> None:
        database = str(connection.settings_dict["NAME"])
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"tests.programs.{name}", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TEST_DATABASE_NAME": database, **environment},
        )
        self.facts: list[Fact] = []
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def kill(self) -> None:
        """End the process at once, with no chance to say goodbye."""
        self._process.kill()
        self._process.wait()

    def terminate(self) -> int:
        """Ask the process to end its input loop, and return its exit code."""
        self.tell("exit")
        return self._process.wait(20)

    def all(self, event: str) -> list[Fact]:
        """Return what the process said of one kind so far."""
        return [fact for fact in self.facts if fact["event"] == event]

    def wait_for(self, event: str, count: int = 1) -> list[Fact]:
        """Return the facts of one kind once there are `count` of them."""

        def found() -> list[Fact] | None:
            facts = self.all(event)
            assert facts or self._process.poll() is None, f"process {self._process.pid} ended; it said {self.facts}"
            return facts if len(facts) >= count else None

        facts = until(found, f"{count} x {event!r} of process {self._process.pid}; it said {self.facts}")
        assert facts is not None
        return facts

    def close(self) -> None:
        """Leave nothing behind, whatever state the process is in."""
        self._process.send_signal(signal.SIGCONT)
        self._process.kill()
        self._process.wait()
        self._listener.join()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def tell(self, order: str) -> None:
        """Give an order."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{order}\n")
        self._process.stdin.flush()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.facts.append(json.loads(line))


class Caller(Program):
    """One process of `tests.programs.caller`."""

    def __init__(self, stage: str, key: str, *, threads: int = 1, **environment: str) -> None:
        super().__init__("caller", stage, key, str(threads), **environment)

    def warm_up(self) -> None:
        """Make a call of another key, so that the process is connected."""
        self.tell("warm")
        self.wait_for("warm")

    def call(self) -> None:
        """Let every thread of the process ask."""
        self.tell("call")

    def done(self, text: str) -> None:
        """Let the running call return `text`."""
        self.tell(f"done {text}")

    def interrupt_call(self) -> None:
        """Let the running call end with a KeyboardInterrupt, as on Ctrl-C."""
        self.tell("interrupt")

    def pause(self) -> None:
        """Stop the process where it is."""
        self._process.send_signal(signal.SIGSTOP)

    def pause_past_lease(self) -> None:
        """Stop the process, and return once the database says that its lease is over."""
        self.pause()
        until(self._lease_is_over, "the lease of a paused process to end")

    def _lease_is_over(self) -> bool:
        owner = self.all("ready")[0]["owner"]
        with connection.cursor() as cursor:
            cursor.execute(
                "select lease_expires_at < clock_timestamp() from singleflight_flight where owner = %s", [owner]
            )
            return bool(cursor.fetchall() == [(True,)])

    def resume(self) -> None:
        """Let a paused process go on."""
        self._process.send_signal(signal.SIGCONT)


@contextmanager
def callers(stage: str, key: str, count: int, *, threads: int = 1, **environment: str) -> Iterator[list[Caller]]:
    """Have `count` processes that are ready to call one key."""
    with ExitStack() as stack:
        found = []
        for _ in range(count):
            caller = Caller(stage, key, threads=threads, **environment)
            stack.callback(caller.close)
            found.append(caller)
        for caller in found:
            caller.wait_for("ready")
        yield found


def events_of(key_stage: str, generation: int) -> list[str]:
    """Return the kinds of audit rows of one generation, oldest first."""
    with connection.cursor() as cursor:
        cursor.execute(
            "select kind from singleflight_flightevent where stage = %s and generation = %s order by id",
            [key_stage, generation],
        )
        return [row[0] for row in cursor.fetchall()]
