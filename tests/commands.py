"""The project's commands as processes of their own, on the test's database."""

import os
import subprocess
import sys

from django.db import connection

from config.servers.places import CHECKOUT


def command(name: str, *arguments: str, stdout: int = subprocess.PIPE, **environment: str) -> "subprocess.Popen[str]":
    """Start a command of `manage.py`; it is the caller's to end."""
    # The project's URLs ask for apps that a program of a test does not have; the doctor makes no checks of others.
    without = [] if name == "singleflight_doctor" else ["--skip-checks"]
    return subprocess.Popen(
        [sys.executable, "manage.py", name, *without, *arguments],
        cwd=CHECKOUT,
        env={**os.environ, "TEST_DATABASE_NAME": str(connection.settings_dict["NAME"]), **environment},
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
    )
