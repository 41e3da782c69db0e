"""Addresses and forms that no page of the admin would make: an answer, never an error of the server's own."""

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.urls import reverse

from tests.rows import flight_row

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("empty_tables")]

LIST, PARAMETERS = "/admin/singleflight/flight/", ("stage", "node", "age", "view", "q", "p", "o", "window", "_facets")
WORDS = ("\x00", "a\x00b", "'", "%", "-1", "9" * 40, "💥", "\ud800", "a" * 5000)


@pytest.fixture
def client() -> Client:
    """Return a superuser's client, to whom no page is closed, and which gets errors as answers."""
    client = Client(raise_request_exception=False)
    client.force_login(User.objects.create_superuser("root"))
    return client


@pytest.mark.parametrize("word", WORDS, ids=ascii)
def test_odd_parameters(client: Client, word: str) -> None:
    """Nothing is found by them, or they are refused."""
    flight_row()
    text = word.encode("utf-8", "replace").decode()
    names = ("flight_changelist", "dashboard", "dashboard_export", "stagestat_changelist")
    for address in (reverse(f"admin:singleflight_{name}") for name in names):
        for parameter in PARAMETERS:
            assert client.get(address, {parameter: text}).status_code < 500, (address, parameter)


@pytest.mark.parametrize("word", ["0", "-1", "9" * 40, "abc", "%00", "1%00", "..%2f"])
def test_odd_flights(client: Client, word: str) -> None:
    """There is no such flight, whatever is asked of it."""
    for part in ("change/", "result/", "history/", "delete/", "act/cancel_flights/"):
        assert client.get(f"{LIST}{word}/{part}").status_code < 500, part


@pytest.mark.parametrize(
    "body", ["", "1", "1:1", "x:y", "1:" + "9" * 30, "\x00", "1:1 " * 2000], ids=lambda text: ascii(text[:9])
)
def test_odd_forms(client: Client, body: str) -> None:
    """A move of flights that there are not does nothing."""
    for name in ("cancel_flights", "delete_selected", "%00"):
        form = {"flights": body, "confirmed": "yes", "from": "page", "filters": "stage=%00&\x00"}
        assert client.post(f"{LIST}act/{name}/", form).status_code < 500, name
