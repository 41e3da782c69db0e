"""Whether a failed call may be made again, and when: read from any SDK's exception, which is asked politely."""

from datetime import UTC, datetime, timedelta
from email.message import Message
from email.utils import format_datetime
from types import SimpleNamespace
from typing import Any
from urllib.error import HTTPError

import pytest

from singleflight_app import Rejected
from singleflight_app.domain.retryable import MOST_RETRY_AFTER, is_retryable, retry_after, status_of

LISTED = ("builtins.ConnectionError", f"{__name__}.Refused", f"{__name__}.Provider")


class Refused(Exception):
    """An exception that carries nothing."""


class Subclass(Refused):
    """What an SDK raises in place of the listed class."""


class Provider(Exception):
    """An exception as SDKs have them: what it carries is given."""

    def __init__(self, **carried: Any) -> None:  # noqa: ANN401
        super().__init__("the provider said no")
        self.__dict__.update(carried)


class Sulking(Exception):
    """An exception whose attributes raise, as a response that was never read does."""

    @property
    def status_code(self) -> int:
        raise RuntimeError("not read yet")

    @property
    def retry_after(self) -> float:
        raise RuntimeError("not read yet")

    @property
    def response(self) -> object:
        raise RuntimeError("not read yet")


def with_headers(**headers: str) -> Provider:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Provider(response=SimpleNamespace(status_code=429, headers=named))


def date_in(seconds: float) -> str:
    return format_datetime(datetime.now(UTC) + timedelta(seconds=seconds), usegmt=True)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Refused(), True),
        (Subclass(), True),
        (ConnectionResetError(), True),
        (ValueError(), False),
        (KeyboardInterrupt(), False),
        (Rejected("cut off", retryable=True), True),
        (Rejected("an error body"), False),
        (ExceptionGroup("all", [Refused(), ConnectionError()]), True),
        (ExceptionGroup("one is not", [Refused(), ValueError()]), False),
        (ExceptionGroup("nested", [ExceptionGroup("inner", [Refused()]), Refused()]), True),
        (Sulking(), False),
    ],
)
def test_a_listed_class_and_its_subclasses_are_retryable(error: BaseException, *, expected: bool) -> None:
    """By dotted path; a group when all in it are; Rejected says so itself."""
    assert is_retryable(error, LISTED) is expected


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 422, 451, 499])
def test_a_request_at_fault_is_never_retryable(status: int) -> None:
    """C39: 4xx, though its class is listed and statuses are."""
    assert not is_retryable(Provider(status_code=status), (*LISTED, "http"))


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504, 529])
def test_a_status_that_asks_to_come_again_is_retryable_where_http_is_listed(status: int) -> None:
    """C39: whatever the class, which need not be known."""
    error = Provider(status_code=status)

    assert is_retryable(error, ("http",))
    assert not is_retryable(error, ("builtins.ConnectionError",))
    assert is_retryable(error, LISTED)


@pytest.mark.parametrize("status", [200, 302, 0, 99, 600])
def test_a_status_that_is_no_error_says_nothing(status: int) -> None:
    """Then the class counts."""
    assert not is_retryable(Provider(status_code=status), ("http",))
    assert is_retryable(Provider(status_code=status), LISTED)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Provider(status_code=429), 429),
        (Provider(status=503), 503),
        (Provider(response=SimpleNamespace(status_code=500)), 500),
        (Provider(response=SimpleNamespace(status=502)), 502),
        (Provider(status_code=None, response=SimpleNamespace(status_code=504)), 504),
        (HTTPError("http://model", 429, "slow down", Message(), None), 429),
        (Provider(status="429"), None),
        (Provider(response=None), None),
        (Refused(), None),
        (Sulking(), None),
    ],
)
def test_a_status_is_found_where_sdks_keep_it(error: Exception, status: int | None) -> None:
    """openai, anthropic, httpx, requests, aiohttp and urllib."""
    assert status_of(error) == status


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (Provider(retry_after=2.5), 2.5),
        (Provider(retry_after="3"), 3),
        (Provider(retry_after=timedelta(seconds=4)), 4),
        (Rejected("busy", retryable=True, retry_after=1.5), 1.5),
        (with_headers(retry_after="7"), 7),
        (with_headers(Retry_After="0.2"), 0.2),
        (with_headers(retry_after_ms="1500", retry_after="9"), 1.5),
        (with_headers(retry_after=date_in(-60)), 0),
        (with_headers(retry_after="soon"), 0),
        (with_headers(), 0),
        (Provider(headers={"Retry-After": "5"}), 5),
        (Provider(response=SimpleNamespace(headers=None)), 0),
        (Provider(response=SimpleNamespace(headers="retry-after: 5")), 0),
        (ExceptionGroup("both", [Provider(retry_after=1), Provider(retry_after=6)]), 6),
        (Refused(), 0),
        (Sulking(), 0),
        (Provider(retry_after=-1), 0),
        (Provider(retry_after=float("nan")), 0),
        (Provider(retry_after=float("inf")), MOST_RETRY_AFTER),
        (Provider(retry_after=10**400), MOST_RETRY_AFTER),
        (with_headers(retry_after="86400"), MOST_RETRY_AFTER),
        (with_headers(retry_after_ms="nonsense"), 0),
    ],
)
def test_a_retry_after_is_found_and_bounded(error: BaseException, seconds: float) -> None:
    """C39: as an attribute, or in the headers of the response or of the exception; nonsense is no pause."""
    assert retry_after(error) == seconds


def test_a_retry_after_may_be_a_date() -> None:
    """As HTTP allows; how long it is until then hangs on this machine's clock, and nothing else does."""
    assert 50 < retry_after(with_headers(retry_after=date_in(60))) <= 60


def test_headers_of_the_standard_library_are_read() -> None:
    """`urllib` keeps them in a Message, which is no Mapping."""
    headers = Message()
    headers["Retry-After"] = "8"

    assert retry_after(HTTPError("http://model", 503, "busy", headers, None)) == 8
