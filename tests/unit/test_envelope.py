"""Stored bytes: whatever is damaged is noticed, and what others wrote is told apart (R13, C35)."""

import base64
import gzip
import hashlib
import json
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from singleflight_app import ResultUnreadable
from singleflight_app.domain.exceptions import UnknownEnvelope
from singleflight_app.domain.flight import StoredResult
from singleflight_app.domain.policy import StagePolicy
from singleflight_app.outcomes.codec import JsonCodec, for_policy
from singleflight_app.outcomes.encryption import KeyRing
from singleflight_app.outcomes.envelope import GZIPPED, PLAIN, Envelope
from tests.searching import searching

KEY, OTHER_KEY = b"k" * 32, b"o" * 32


def new_key() -> str:
    return base64.b64encode(secrets.token_bytes(32)).decode()


OLD, NEW = new_key(), new_key()
ENVELOPES = [Envelope(), Envelope(0), Envelope(None, KeyRing([NEW, OLD])), Envelope(0, KeyRing([NEW]))]


@searching
@given(st.binary(), st.sampled_from(ENVELOPES))
def test_any_bytes_come_back_as_they_were(raw: bytes, envelope: Envelope) -> None:
    """Compressed or not, sealed or not, and their size is that of the raw bytes."""
    stored = envelope.wrap(raw, KEY)

    assert envelope.unwrap(stored, KEY) == raw
    assert stored.size == len(raw)


@searching
@given(st.binary(min_size=1), st.sampled_from(ENVELOPES), st.data())
def test_a_damaged_byte_is_noticed_or_harmless(raw: bytes, envelope: Envelope, data: st.DataObject) -> None:
    """Never another value; a gzip frame has bits that mean nothing, and under a seal not even these may differ."""
    stored = envelope.wrap(raw, KEY)
    where = data.draw(st.integers(0, len(stored.payload) - 1))
    byte = data.draw(st.integers(0, 255).filter(lambda byte: byte != stored.payload[where]))
    payload = stored.payload[:where] + bytes([byte]) + stored.payload[where + 1 :]

    try:
        found = envelope.unwrap(stored._replace(payload=payload), KEY)
    except ResultUnreadable:
        return

    assert stored.encoding == GZIPPED
    assert found == raw


@pytest.mark.parametrize("envelope", ENVELOPES)
@pytest.mark.parametrize(
    "damage",
    [
        lambda stored: stored._replace(payload=b""),
        lambda stored: stored._replace(payload=stored.payload[:5]),
        lambda stored: stored._replace(payload=stored.payload[:-1]),
        lambda stored: stored._replace(payload=stored.payload * 2),
        lambda stored: stored._replace(checksum=b""),
        lambda stored: stored._replace(size=stored.size - 1),
        lambda stored: stored._replace(size=0),
        lambda stored: stored._replace(size=-5),
        lambda stored: stored._replace(size=2**63 - 1),
        lambda stored: stored._replace(encoding=PLAIN),
        lambda stored: stored._replace(encoding=GZIPPED),
    ],
)
def test_a_damaged_envelope_never_brings_another_value(
    envelope: Envelope, damage: Callable[[StoredResult], StoredResult]
) -> None:
    """Cut, doubled, of another form: it is unreadable, unless what was damaged means nothing."""
    raw = b'["some", "value"]' * 50
    damaged = damage(envelope.wrap(raw, KEY))

    try:
        found = envelope.unwrap(damaged, KEY)
    except ResultUnreadable:
        return

    assert found == raw
    assert "aesgcm" not in damaged.encoding


@pytest.mark.parametrize(
    "encoding", ["2/json", "", "1/pickle", "1/json/zstd", "1/json/", "1/json/gzip/aesgcm", "1/json\n"]
)
def test_an_unknown_encoding_is_told_apart_by_name(encoding: str) -> None:
    """Written by a newer release, or by nobody: nothing in it is tried."""
    with pytest.raises(UnknownEnvelope, match="unknown encoding"):
        Envelope().unwrap(StoredResult(b"1", encoding, hashlib.sha256(b"1").digest(), 1), KEY)


@pytest.mark.parametrize("seal", [lambda bomb: bomb, lambda bomb: KeyRing([NEW]).seal(bomb, b"")])
def test_decompression_stops_at_the_stored_size(seal: Callable[[bytes], bytes]) -> None:
    """A few bytes that would become a gigabyte are not let loose."""
    raw = b"0" * 50_000_000
    payload = seal(gzip.compress(raw))
    damaged = StoredResult(payload, GZIPPED, hashlib.sha256(raw).digest(), 10)

    with pytest.raises(ResultUnreadable, match="damaged"):
        Envelope(0, KeyRing([NEW])).unwrap(damaged, KEY)


@pytest.mark.parametrize(
    ("policy", "size", "encoding"),
    [
        (StagePolicy(compress_over=100), 98, PLAIN),
        (StagePolicy(compress_over=100), 99, GZIPPED),
        (StagePolicy(compress_over=0), 1, GZIPPED),
        (StagePolicy(compress=False, compress_over=0), 5000, PLAIN),
    ],
)
def test_the_policy_says_what_is_compressed(policy: StagePolicy, size: int, encoding: str) -> None:
    """Above a size, by its raw bytes (two of them quotation marks here)."""
    assert for_policy(str, policy).encode("x" * size, KEY).encoding == encoding


def test_equal_values_are_equal_bytes_unless_they_are_sealed() -> None:
    """No time of day in a gzip header; a seal never repeats."""
    assert Envelope(0).wrap(b"x" * 100, KEY) == Envelope(0).wrap(b"x" * 100, KEY)
    sealed = Envelope(0, KeyRing([NEW]))
    assert sealed.wrap(b"x" * 100, KEY).payload != sealed.wrap(b"x" * 100, KEY).payload


def test_a_sealed_result_gives_nothing_away() -> None:
    """Neither its text nor a checksum by which a short answer could be guessed."""
    stored = Envelope(None, KeyRing([NEW])).wrap(b'"yes"', KEY)

    assert b"yes" not in stored.payload
    assert stored.checksum != hashlib.sha256(b'"yes"').digest()


def test_the_newest_key_seals_and_every_key_opens() -> None:
    """Rotation: what the old key sealed stays readable as long as the ring has it."""
    before = Envelope(None, KeyRing([OLD])).wrap(b"1", KEY)
    rotated = Envelope(None, KeyRing([NEW, OLD]))

    after = rotated.wrap(b"2", KEY)

    assert rotated.unwrap(before, KEY) == b"1"
    assert rotated.unwrap(after, KEY) == b"2"
    assert Envelope(None, KeyRing([NEW])).unwrap(after, KEY) == b"2"
    assert before.encoding != after.encoding


@pytest.mark.parametrize("ring", [KeyRing(), KeyRing([NEW])])
def test_a_key_that_is_not_in_the_ring_is_told_apart_from_damage(ring: KeyRing) -> None:
    """Another node may have it: the result is not dropped."""
    stored = Envelope(None, KeyRing([OLD])).wrap(b"1", KEY)

    with pytest.raises(UnknownEnvelope, match="not in ENCRYPTION_KEYS"):
        Envelope(None, ring).unwrap(stored, KEY)


def test_a_sealed_result_does_not_open_in_another_row() -> None:
    """P9: whoever can write rows can't hand one tenant's answer to another."""
    envelope = Envelope(None, KeyRing([NEW]))

    with pytest.raises(ResultUnreadable, match="does not open with its key"):
        envelope.unwrap(envelope.wrap(b"1", KEY), OTHER_KEY)


def test_results_of_before_there_were_keys_are_readable() -> None:
    """Keys may be added to a system that runs."""
    assert Envelope(None, KeyRing([NEW])).unwrap(Envelope().wrap(b"1", KEY), KEY) == b"1"


@pytest.mark.parametrize("alphabet", [base64.b64encode, base64.urlsafe_b64encode])
def test_a_key_may_be_in_either_alphabet(alphabet: Callable[[bytes], bytes]) -> None:
    """`openssl rand -base64 32` and Python's `secrets` write it differently."""
    key = bytes(range(224, 256))

    assert KeyRing([alphabet(key).decode()]).newest == KeyRing([base64.b64encode(key).decode()]).newest


SAMPLES = json.loads(Path(__file__).parent.parent.joinpath("golden", "results.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("sample", SAMPLES["results"], ids=lambda sample: sample["encoding"])
def test_results_of_earlier_releases_are_readable(sample: dict[str, Any]) -> None:
    """A rolling deploy, or an answer stored last year: no sample is ever changed or taken away, only added."""
    stored = StoredResult(
        base64.b64decode(sample["payload"]), sample["encoding"], bytes.fromhex(sample["checksum"]), sample["size"]
    )
    codec: JsonCodec[Any] = JsonCodec(envelope=Envelope(None, KeyRing(SAMPLES["keys"])))

    assert codec.decode(stored, bytes.fromhex(SAMPLES["digest"])) == sample["value"]


def test_there_is_a_sample_of_each_form_that_is_written() -> None:
    """A new form comes with its sample."""
    forms = {sample["encoding"].partition("/aesgcm")[0:2] for sample in SAMPLES["results"]}
    written = [envelope.wrap(b"1", KEY).encoding.partition("/aesgcm")[0:2] for envelope in ENVELOPES]

    assert forms == set(written)
