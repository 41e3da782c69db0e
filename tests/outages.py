"""A database that is out of reach of this process alone, for as long as a test says."""

import pytest
from django.db import connection


class Outage:
    """Leads new connections of this process into the void while it lasts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch, self._host = monkeypatch, connection.settings_dict["HOST"]

    def begin(self) -> None:
        """Let nobody reach the database any more."""
        self._monkeypatch.setitem(connection.settings_dict, "HOST", "/nonexistent")

    def end(self) -> None:
        """Let it be reached again."""
        self._monkeypatch.setitem(connection.settings_dict, "HOST", self._host)
