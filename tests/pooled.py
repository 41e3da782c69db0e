"""A pgbouncer of a test's own before the tests' database, in transaction mode."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from django.db import connection

from tests.waiting import until

BINARY = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
_SETTINGS = """
[databases]
* = host={host} port={port} user={user}
[pgbouncer]
unix_socket_dir = {folder}
listen_port = 5432
auth_type = any
pool_mode = transaction
ignore_startup_parameters = extra_float_digits
logfile = {folder}/log
"""


@contextmanager
def pooler() -> Iterator[str]:
    """Have a pgbouncer; gives the folder of its socket, which stands in for the database's host."""
    assert BINARY is not None
    here = connection.settings_dict
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="sf") as folder:
        written = Path(folder, "pgbouncer.ini")
        facts = {"host": here["HOST"], "port": here["PORT"] or 5432, "user": here["USER"]}
        written.write_text(_SETTINGS.format(folder=folder, **facts))
        # It refuses to be root; in a namespace of its own it is somebody else, and reaches what is root's.
        apart = ["unshare", "--user", "--map-user=1000", "--map-group=1000"] if os.geteuid() == 0 else []
        process = subprocess.Popen([*apart, BINARY, "--quiet", str(written)])
        try:
            until(lambda: _answers(folder), "an answer of pgbouncer")
            yield folder
        finally:
            process.kill()
            process.wait()


def _answers(folder: str) -> bool:
    parameters = {"host": folder, "port": 5432, "user": connection.settings_dict["USER"]}
    try:
        with psycopg.connect(**parameters, dbname=connection.settings_dict["NAME"], autocommit=True) as there:
            return bool(there.execute("select 1").fetchall())
    except psycopg.OperationalError:
        return False
