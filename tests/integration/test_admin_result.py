"""The page of a result: who may read it, how it is shown, and what is said when it can't be read."""

import json
from pathlib import Path

import pytest
from django.conf import settings
from django.test import override_settings
from django.urls import reverse

from singleflight_app.domain.states import Status
from singleflight_app.outcomes.encryption import KeyRing
from singleflight_app.outcomes.envelope import Envelope
from tests.rows import flight_row, result_columns
from tests.staff import RESULT, page, staff
from tests.storages import Folder

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("empty_tables")]

READER = ("view_flight", "view_result_flight")
KEY = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="


@pytest.mark.parametrize("permissions", [(), ("view_flight",), ("view_result_flight",)])
@pytest.mark.parametrize("query", [{}, {"download": "1"}])
def test_reading_a_result_is_a_right_of_its_own(permissions: tuple[str, ...], query: dict[str, str]) -> None:
    """Beside that of seeing flights at all."""
    flight = flight_row(**result_columns('"secret"'))

    response = staff(*permissions).get(reverse(RESULT, args=[flight.pk]), query)

    assert response.status_code == 403
    assert b"secret" not in response.content


def test_a_result_and_arguments_are_shown_laid_out_and_escaped() -> None:
    """What a model or a user wrote is never markup."""
    flight = flight_row(
        **result_columns('{"text":"<script>alert(1)</script>","größe":[1,2.50]}'), arguments={"answer": '"<b>mine</b>"'}
    )

    shown = page(staff(*READER), RESULT, flight.pk)

    assert "{\n  &quot;text&quot;: &quot;&lt;script&gt;alert(1)&lt;/script&gt;&quot;,\n  &quot;größe&quot;: [" in shown
    assert "2.50" in shown
    assert "{\n  &quot;answer&quot;: &quot;&lt;b&gt;mine&lt;/b&gt;&quot;\n}" in shown
    assert "<script>alert(1)" not in shown


def test_a_download_has_the_bytes_as_they_were_stored() -> None:
    """As a file that no browser shows and no cache keeps."""
    text = '{"b":1.10,"a":"<script>"}'
    flight = flight_row(**result_columns(text), generation=41)

    response = staff(*READER).get(reverse(RESULT, args=[flight.pk]), {"download": "1"})

    assert response.content.decode() == text
    assert response["Content-Type"] == "application/json"
    assert response["Content-Disposition"] == f'attachment; filename="flight-{flight.pk}-41.json"'
    assert response["X-Content-Type-Options"] == "nosniff"
    assert "no-store" in response["Cache-Control"]


def test_a_long_result_is_cut_and_its_size_is_said() -> None:
    """The download has all of it."""
    text = json.dumps(["x" * 1000] * 300)
    flight = flight_row(**result_columns(text))
    client = staff(*READER)

    shown = page(client, RESULT, flight.pk)

    assert f"{len(text)} bytes" in shown
    assert "Only the beginning is shown; the download has all of it." in shown
    assert 90_000 < shown.count("x") < 101_000
    assert client.get(reverse(RESULT, args=[flight.pk]), {"download": "1"}).content.decode() == text


def test_a_result_in_a_file_is_read_from_there(tmp_path: Path) -> None:
    """Sealed, under its name; the row has none of it."""
    folder = Folder(tmp_path)
    flight = flight_row(result_location="singleflight/ab/x")
    sealed = Envelope(keys=KeyRing((KEY,))).wrap(b'{"far": "away"}', bytes(flight.digest))
    folder.write("singleflight/ab/x", sealed.payload)
    flight.encoding, flight.checksum, flight.size = sealed.encoding, sealed.checksum, sealed.size
    flight.save()

    with _storage(folder):
        response = staff(*READER).get(reverse(RESULT, args=[flight.pk]), {"download": "1"})

    assert response.content == b'{"far": "away"}'


def test_a_file_that_is_gone_is_said_not_raised(tmp_path: Path) -> None:
    """With its name, so that it can be looked for; asked for as a download, it is a page as well."""
    flight = flight_row(result_location="singleflight/ab/gone", encoding="1/json", checksum=b"c" * 32, size=3)

    with _storage(Folder(tmp_path)):
        shown = page(staff(*READER), RESULT, flight.pk, download="1")

    assert "unreadable: the file &#x27;singleflight/ab/gone&#x27; of the stored result is gone" in shown


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"checksum": b"0" * 32}, "unreadable: the stored result is damaged"),
        ({"result": b"no gzip"}, "unreadable: the stored result is damaged"),
        ({"encoding": "9/odd"}, "unreadable: the stored result has the unknown encoding"),
        ({"encoding": "1/json/aesgcm/1f2e3d4c"}, "unreadable: the stored result is damaged"),
        ({"result": None, "result_location": "somewhere"}, "this process has no BLOB_STORAGE"),
        ({"status": Status.FAILED}, "There is no result: the flight has not succeeded."),
    ],
)
def test_an_unreadable_result_is_said_not_raised(columns: dict[str, object], said: str) -> None:
    """The page is there to find out what happened."""
    flight = flight_row(**{**result_columns('"x"'), **columns})

    assert said in page(staff(*READER), RESULT, flight.pk)


def test_a_flight_that_was_purged_is_not_found() -> None:
    """Neither is what is no id."""
    client = staff(*READER)

    assert client.get(reverse(RESULT, args=[1])).status_code == 404
    assert client.get(reverse(RESULT, args=["none"])).status_code == 404


def _storage(folder: Folder) -> override_settings:
    return override_settings(
        STORAGES={**settings.STORAGES, "here": folder.options},
        SINGLEFLIGHT={**settings.SINGLEFLIGHT, "BLOB_STORAGE": "here", "ENCRYPTION_KEYS": [KEY]},
    )
