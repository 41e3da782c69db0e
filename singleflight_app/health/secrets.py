"""Keeps passwords out of what is printed: those of the settings, and those inside of URLs."""

import re
from collections.abc import Iterator
from urllib.parse import unquote, urlsplit

from django.conf import settings

MASK = "***"
_IN_URL = re.compile(r"(?<=://)[^/\s@]*@")
_LEAST = 4  #: shorter ones would blank out innocent words


def masked(text: str) -> str:
    """Return a text without user and password of URLs, and without any password of the settings."""
    text = _IN_URL.sub(f"{MASK}@", text)
    for secret in _secrets():
        if len(secret) >= _LEAST:
            text = text.replace(secret, MASK)
    return text


def _secrets() -> Iterator[str]:
    for alias in settings.DATABASES.values():
        yield str(alias.get("PASSWORD") or "")
    for cache in settings.CACHES.values():
        yield str(cache.get("OPTIONS", {}).get("PASSWORD") or "")
        places = cache.get("LOCATION") or ""
        for place in [places] if isinstance(places, str) else places:
            yield _password_in(str(place))
    yield _password_in(str(getattr(settings, "CELERY_BROKER_URL", "") or ""))


def _password_in(url: str) -> str:
    try:
        return unquote(urlsplit(url).password or "")
    except ValueError:
        return ""
