"""The detached process that owns one server: starts or adopts it, restarts it, stops it after its last user.

Run as `python -m config.servers.keeper NAME KEEPER_LOCK REPORT`; the two are open file descriptors.
"""

import os
import signal
import sys
import time

from config.servers import locks, places, running
from config.servers.errors import ServerCannotStart
from config.servers.postgres import Postgres
from config.servers.report import Reporting
from config.servers.server import Server
from config.servers.valkey import Valkey

POLL_INTERVAL = 0.2
#: Looks in a row that find no user before the server stops: commands in a row share one server.
IDLE_LOOKS = 5


def main(server: Server, keeper_lock: int, reporting: Reporting) -> None:
    os.set_inheritable(keeper_lock, False)  # noqa: FBT003 (its signature)
    # Whoever ends the keeper in order ends its server as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    users = locks.open_lock(places.servers_folder() / f"{server.name}.users")
    try:
        keep(server, users, keeper_lock, reporting)
    except ServerCannotStart as problem:
        reporting.failed(problem.why, problem.repair)
        sys.exit(str(problem))
    except OSError as problem:
        reporting.failed(str(problem), "")
        raise
    finally:
        # In this order: who gets the users' lock next must not take this process for a living keeper.
        os.close(keeper_lock)
        os.close(users)


def keep(server: Server, users: int, keeper_lock: int, reporting: Reporting) -> None:
    process = running.start(server, reporting.say)
    try:
        reporting.ready()
        while is_wanted(server, users, keeper_lock):
            if not running.is_alive(process):
                process = running.start(server, reporting.say)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        running.end(process, server.stop_signal)
        # If the folder was made anew, the sockets may be those of its next server already.
        if is_in_charge(server, keeper_lock):
            server.clear()


def is_wanted(server: Server, users: int, keeper_lock: int) -> bool:
    """Wait a moment, then say whether to go on; False for want of users comes with their lock held alone."""
    for _ in range(IDLE_LOOKS):
        time.sleep(POLL_INTERVAL)
        if not is_in_charge(server, keeper_lock):
            return False
        if not locks.try_alone(users):
            return True
        locks.let_go(users)
    return not locks.try_alone(users)


def is_in_charge(server: Server, keeper_lock: int) -> bool:
    """False once the folder was removed, and the data with it."""
    return locks.is_file_of(places.servers_folder() / f"{server.name}.keeper", keeper_lock)


if __name__ == "__main__":
    # The starter waits for this process alone; the one that stays reports through the pipe.
    if os.fork():
        os._exit(0)
    main(
        Postgres() if sys.argv[1] == "postgres" else Valkey(),
        int(sys.argv[2]),
        Reporting(int(sys.argv[3])),
    )
