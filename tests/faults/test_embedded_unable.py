"""Embedded servers that can't start: one sentence says why and what to do, and the exit code is 1."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from config.servers import places
from tests.embedded import Folder, folder


def the_one_sentence(here: Folder, **variables: str) -> str:
    """What manage.py says, after the lines that tell about a first start."""
    done = here.manage("migrate", **variables)
    said = [line for line in done.stderr.splitlines() if not line.startswith(("creating", "running as root"))]

    assert done.returncode == 1
    assert done.stdout == ""
    assert len(said) == 1, done.stderr
    return said[0]


def test_data_of_another_version_is_named_with_its_log(tmp_path: Path) -> None:
    """PostgreSQL's own last words, where its log is, and the variable to use instead."""
    with folder(tmp_path / "servers") as here:
        data = here.path / "postgres"
        data.mkdir(parents=True, mode=0o700)
        (data / "PG_VERSION").write_text("12\n")

        sentence = the_one_sentence(here)

        assert sentence.startswith("The embedded PostgreSQL can't start: ")
        assert str(here.path / "postgres.log") in sentence
        assert "DATABASE_URL" in sentence
        assert here.nothing_is_left()
