#!/usr/bin/env python
"""Django's commands, with the embedded servers running for those that need one.

What is wrong with the environment is told in one sentence, exit code 1.
"""

import os
import sys
import warnings

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management import execute_from_command_line

from config.servers import ServerCannotStart, start_servers

#: Commands that read code and write files; starting a database for them would only cost time.
SERVERLESS = {
    "check",
    "collectstatic",
    "compilemessages",
    "diffsettings",
    "findstatic",
    "help",
    "makemessages",
    "makemigrations",
    "startapp",
    "version",
}


def main(arguments: list[str]) -> int:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    try:
        settings.configured or settings.INSTALLED_APPS  # noqa: B018 (reading it loads them)
        if needs_servers(arguments[1:]):
            start_servers()
    except (ImproperlyConfigured, ServerCannotStart) as problem:
        print(problem, file=sys.stderr)  # noqa: T201 (the command's output)
        return 1
    # makemigrations compares its files with the database if there is one, and warns if there is none.
    warnings.filterwarnings("ignore", "Got an error checking a consistent migration history", RuntimeWarning)
    execute_from_command_line(arguments)
    return 0


def needs_servers(arguments: list[str]) -> bool:
    """Whether this command line goes to the database or to Redis; `check --database` does."""
    if not arguments or {"-h", "--help", "--version"} & set(arguments):
        return False
    return arguments[0] not in SERVERLESS or any(word.startswith("--database") for word in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
