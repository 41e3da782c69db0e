"""Keys stay what they are: dozens of requests, with the canonical text and the digest that each has for ever (C30).

The vectors in `tests/golden/keys.json` are frozen. A changed digest drops every stored answer of every installation,
and in a deploy the old and the new nodes pay each call twice. New requests may be added, none may go or change.
"""

import hashlib
import json
from pathlib import Path

import pytest

from tests.golden.requests import KEYS

GOLDEN: dict[str, dict[str, str]] = json.loads((Path(__file__).parents[1] / "golden" / "keys.json").read_text("utf-8"))


@pytest.mark.parametrize("name", GOLDEN)
def test_a_golden_request_has_its_golden_key(name: str) -> None:
    """Text and digest, on every Python and Django that is promised."""
    key = KEYS[name]

    assert key.canonical == GOLDEN[name]["canonical"]
    assert key.digest.hex() == GOLDEN[name]["digest"]


def test_every_golden_request_has_a_vector() -> None:
    """None is left out, and the digest is that of the text."""
    digests = {name: hashlib.sha256(vector["canonical"].encode()).hexdigest() for name, vector in GOLDEN.items()}

    assert GOLDEN.keys() == KEYS.keys()
    assert digests == {name: vector["digest"] for name, vector in GOLDEN.items()}
