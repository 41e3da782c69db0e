"""The dashboard as an operator's browser sees it: signs in, and reads the ledger's table of the last days."""

import csv
from typing import Self

import httpx

from interview_demo.demo.operator import Operator
from interview_demo.flights import STAGES

_SIGN_IN = "/admin/login/"
_EXPORT = "/admin/singleflight/dashboard/export/?window=7d"
_TIMEOUT = 30.0


class LookedAt:
    """Counts the calls of the interview's stages from now on, as the export of the dashboard says."""

    def __init__(self, node_url: str, operator: Operator) -> None:
        self._client = httpx.Client(base_url=node_url, timeout=_TIMEOUT, follow_redirects=True)
        self._operator, self._before = operator, 0

    def __enter__(self) -> Self:
        self._client.get(_SIGN_IN).raise_for_status()
        form = {
            "username": self._operator.name,
            "password": self._operator.password,
            "next": "/admin/",
            "csrfmiddlewaretoken": self._client.cookies["csrftoken"],
        }
        self._client.post(_SIGN_IN, data=form).raise_for_status()
        self._before = self._exported()
        return self

    def __exit__(self, *exc: object) -> None:
        self._client.close()

    def calls(self) -> int:
        """Return how many calls the dashboard counts since this was entered."""
        return self._exported() - self._before

    def _exported(self) -> int:
        page = self._client.get(_EXPORT).raise_for_status()
        rows = csv.DictReader(page.text.splitlines())
        return sum(int(row["calls"]) for row in rows if row["stage"] in STAGES)
