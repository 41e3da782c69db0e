"""JSON laid out for a person: nothing but white space is added, and never more than is shown."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from singleflight_app.admin.reading import shown
from tests.searching import searching

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@searching
@given(VALUES)
def test_what_is_shown_is_what_json_would_indent(value: object) -> None:
    """By two blanks, with letters of every language as they are."""
    stored = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")

    text, is_whole = shown(stored, most=100_000)

    assert text == json.dumps(json.loads(stored), ensure_ascii=False, indent=2)
    assert is_whole


def test_numbers_and_doubled_names_stay_as_they_were_stored() -> None:
    """Read and written again they would be others."""
    assert shown(b'{"a":1.10,"a":1e400}', most=100)[0] == '{\n  "a": 1.10,\n  "a": 1e400\n}'


@pytest.mark.parametrize("most", [1, 7, 50])
def test_a_long_text_is_cut(most: int) -> None:
    """In the middle of whatever is there."""
    text, is_whole = shown(b'["' + b"x" * 1000 + b'","y"]', most=most)

    assert len(text) == most
    assert not is_whole


def test_a_million_brackets_are_shown() -> None:
    """No depth is too deep for something that only reads on."""
    text, is_whole = shown(b"[" * 1_000_000, most=1000)

    assert len(text) == 1000
    assert not is_whole


@pytest.mark.parametrize("raw", [b"", b"no json", b"\xff\xfe", b'"cut off', b"}}]]", b'{"a" "b"}'])
def test_what_is_no_json_is_shown_all_the_same(raw: bytes) -> None:
    """A person finds out more from it than from an error."""
    text, is_whole = shown(raw, most=100)

    assert isinstance(text, str)
    assert is_whole
