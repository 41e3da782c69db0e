"""`key().canonical` explains a key: the text in docs/calling.md is what the call beside it has."""

import re
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from pytest_django.fixtures import Settings

from singleflight_app import folded, single_flight

PAGE = (Path(__file__).parents[2] / "docs" / "calling.md").read_text("utf-8")


@pytest.fixture(autouse=True)
def _as_on_the_page(settings: Settings) -> Iterator[None]:
    settings.SINGLEFLIGHT = {"MODE": "local", "CACHE": None, "NAMESPACE": "prod"}
    known = dict(folded.registry)
    yield
    folded.registry.clear()
    folded.registry.update(known)


def test_the_page_shows_what_key_shows() -> None:
    """The example is run, and its text compared."""
    folded.registry.pop("interview-score", None)

    @single_flight("interview-score", scope=lambda interview_id: f"interview:{interview_id}", version="prompt-3")
    def score_answer(*, interview_id: int, question_id: int, answer: str, asked: date) -> int:
        raise NotImplementedError

    shown = re.search(r"^print\((score_answer\.key\(.*\)\.canonical)\)$\n```\n\n```json\n(.*)$", PAGE, re.MULTILINE)
    assert shown is not None
    names: dict[str, Any] = {"score_answer": score_answer, "date": date}
    found = eval(shown[1], names)  # noqa: S307  (a line of the docs)

    assert found == shown[2]
