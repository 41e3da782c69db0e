"""Which commands of manage.py get servers."""

import pytest

from manage import needs_servers


@pytest.mark.parametrize(
    "words",
    [
        "",
        "help",
        "version",
        "--version",
        "--help",
        "check",
        "check --deploy",
        "makemigrations",
        "migrate --help",
        "migrate -h",
    ],
)
def test_command_that_reads_code_gets_no_server(words: str) -> None:
    """It works where none can start, and at once."""
    assert not needs_servers(words.split())


@pytest.mark.parametrize(
    "words", ["migrate", "runserver", "shell", "demo", "check --database default", "purge_flights --dry-run"]
)
def test_command_that_reads_rows_gets_servers(words: str) -> None:
    """One that is not known to do without, too."""
    assert needs_servers(words.split())
