"""System checks (tag `singleflight`): the problem in `msg`, the repair in `hint`. They never connect.

E001 unknown option or wrong shape · E002 wrong value of an option · E003 nonsense in a stage's policy ·
E004 no such database alias · E005 / W005 not PostgreSQL · E006 isolation level · E007 the cache is not
django-redis · W008 the cache's client waits without a timeout · W009 a key never comes twice · E010 no such storage
alias · W011 the storage's files are served on the web · E012 ENCRYPTION_KEYS without cryptography · W013 no
exception has this path.
"""

from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from pydoc import ErrorDuringImport, locate
from typing import Any

from django.apps import AppConfig
from django.conf import DEFAULT_STORAGE_ALIAS, STATICFILES_STORAGE_ALIAS
from django.conf import settings as django_settings
from django.core.cache import caches
from django.core.checks import CheckMessage, Error, Warning, register  # noqa: A004  (Django's name of the level)
from django.core.files.storage import FileSystemStorage, InvalidStorageError, Storage, storages
from django.db import connections

from singleflight_app.conf import Settings, database_problem, get_settings, problems
from singleflight_app.domain.retryable import HTTP, dotted
from singleflight_app.folded import Folded, registry

TAG = "singleflight"
_LEAST_TIMEOUT = 0.5  #: seconds; the listener's read of a quiet stream takes 0.25
_NO_PATH = (
    "Write an exception's dotted path, as 'builtins.TimeoutError'. If the class is made while the program runs, add "
    f'"{TAG}.W013" to SILENCED_SYSTEM_CHECKS.'
)
_READ_COMMITTED = 2  #: psycopg.IsolationLevel.READ_COMMITTED


@register(TAG)
def check_settings(app_configs: Sequence[AppConfig] | None = None, **_: Any) -> list[CheckMessage]:  # noqa: ANN401  (Django's signature)
    """Return every problem of `SINGLEFLIGHT` and of the aliases that it names."""
    found: list[CheckMessage] = [
        Error(f"SINGLEFLIGHT: {problem.problem}.", hint=_sentence(problem.repair), id=problem.code)
        for problem in problems(getattr(django_settings, "SINGLEFLIGHT", {}))
    ]
    if found:
        return found
    settings = get_settings()
    return [
        *_database(settings),
        *_cache(settings),
        *_storage(settings),
        *_encryption(settings),
        *_exceptions(settings),
    ]


@register(TAG)
def check_keys(app_configs: Sequence[AppConfig] | None = None, **_: Any) -> list[CheckMessage]:  # noqa: ANN401  (Django's signature)
    """Return every stage whose key holds what is another at each call, so that nothing is ever shared."""
    return [_never_twice(flight, found) for _, flight in sorted(registry.items()) if (found := flight.unrepeatable())]


def _never_twice(flight: Folded[Any, Any], found: Mapping[str, str]) -> CheckMessage:
    listed = ", ".join(f"{name} ({what})" for name, what in found.items())
    silence = f'If it does come again, add "{TAG}.W009" to SILENCED_SYSTEM_CHECKS.'
    return Warning(
        f"SINGLEFLIGHT: no key of stage {flight.stage!r} seems to come twice, for it holds {listed}.",
        hint=f"Leave it out with key=, a function that names the arguments that count, and out of scope=. {silence}",
        obj=flight.label,
        id=f"{TAG}.W009",
    )


def _database(settings: Settings) -> Iterator[CheckMessage]:
    problem = database_problem(settings)
    if problem is not None and settings.mode == "local" and problem.code == f"{TAG}.E005":
        hint = 'It is fine for one process; for more, point DATABASE at PostgreSQL and set MODE to "hybrid".'
        yield Warning(f"SINGLEFLIGHT: {problem.problem}.", hint=hint, id=f"{TAG}.W005")
        return
    if problem is not None:
        yield Error(f"SINGLEFLIGHT: {problem.problem}.", hint=_sentence(problem.repair), id=problem.code)
        return
    connection = connections[settings.database]
    level = connection.settings_dict.get("OPTIONS", {}).get("isolation_level")
    if level is not None and int(level) != _READ_COMMITTED:
        hint = "Leave isolation_level out for this alias, or give the app an alias of its own."
        yield Error("SINGLEFLIGHT: the database's isolation level is not READ COMMITTED.", hint=hint, id=f"{TAG}.E006")


def _cache(settings: Settings) -> Iterator[CheckMessage]:
    if settings.cache is None:
        return
    hint = "Use a CACHES alias with the backend django_redis.cache.RedisCache, or set CACHE to None."
    if settings.cache not in caches.settings:
        message = f"SINGLEFLIGHT: CACHE is {settings.cache!r}, no such alias."
        yield Error(message, hint=hint, id=f"{TAG}.E007")
        return
    try:
        from django_redis.cache import RedisCache  # noqa: PLC0415  (an extra)
    except ImportError:
        yield Error("SINGLEFLIGHT: CACHE is set, but django-redis is missing.", hint=hint, id=f"{TAG}.E007")
        return
    if not isinstance(caches[settings.cache], RedisCache):
        yield Error(f"SINGLEFLIGHT: cache {settings.cache!r} is not django-redis.", hint=hint, id=f"{TAG}.E007")
        return
    options = caches.settings[settings.cache].get("OPTIONS", {})
    if not {"SOCKET_TIMEOUT", "SOCKET_CONNECT_TIMEOUT"} <= set(options):
        yield Warning(
            f"SINGLEFLIGHT: cache {settings.cache!r} has no socket timeouts; a silent Redis would hold callers up.",
            hint="Set SOCKET_CONNECT_TIMEOUT and SOCKET_TIMEOUT to about 1 in its OPTIONS.",
            id=f"{TAG}.W008",
        )
    elif isinstance(options["SOCKET_TIMEOUT"], int | float) and options["SOCKET_TIMEOUT"] < _LEAST_TIMEOUT:
        yield Warning(
            f"SINGLEFLIGHT: cache {settings.cache!r} gives up a read after {options['SOCKET_TIMEOUT']:g} s; "
            "hints are waited for longer than that, and would never come.",
            hint="Set SOCKET_TIMEOUT to about 1 in its OPTIONS.",
            id=f"{TAG}.W008",
        )


def _storage(settings: Settings) -> Iterator[CheckMessage]:
    alias = settings.blob_storage
    if alias is None:
        return
    try:
        storage = storages[alias]
    except InvalidStorageError as exc:
        message = f"SINGLEFLIGHT: BLOB_STORAGE is {alias!r}, which can't be had: {exc}"
        yield Error(message, hint="Name an alias of STORAGES, or set BLOB_STORAGE to None.", id=f"{TAG}.E010")
        return
    except Exception as exc:  # noqa: BLE001  (whatever a backend thinks of its OPTIONS)
        message = f"SINGLEFLIGHT: the storage {alias!r} of BLOB_STORAGE can't be made: {exc}"
        yield Error(message, hint="Look at its OPTIONS in STORAGES.", id=f"{TAG}.E010")
        return
    if alias in {DEFAULT_STORAGE_ALIAS, STATICFILES_STORAGE_ALIAS} or _is_served(storage):
        yield Warning(
            f"SINGLEFLIGHT: the files of storage {alias!r} are served on the web, and results may be private.",
            hint="Give the results a storage of their own, outside of MEDIA_ROOT and STATIC_ROOT.",
            id=f"{TAG}.W011",
        )


def _is_served(storage: Storage) -> bool:
    roots = [root for root in (django_settings.MEDIA_ROOT, django_settings.STATIC_ROOT) if root]
    if not isinstance(storage, FileSystemStorage):
        return False
    return any(Path(storage.location).resolve().is_relative_to(Path(root).resolve()) for root in roots)


def _encryption(settings: Settings) -> Iterator[CheckMessage]:
    if settings.encryption_keys and find_spec("cryptography") is None:
        hint = 'Install the extra: pip install "django-singleflight-app[encryption]".'
        yield Error("SINGLEFLIGHT: ENCRYPTION_KEYS is set, but cryptography is missing.", hint=hint, id=f"{TAG}.E012")


def _exceptions(settings: Settings) -> Iterator[CheckMessage]:
    listed = {
        (option, path)
        for policy in settings.policies
        for option, paths in (("retry_on", policy.retry_on), ("reraise", policy.reraise))
        for path in paths
        if (option, path) != ("retry_on", HTTP)
    }
    for option, path in sorted(listed):
        own = _own_name(path)
        if own != path:
            message = f"SINGLEFLIGHT: {option} names {path!r}, which is the name of no exception."
            yield Warning(message, hint=f"Write {own!r}, its own name." if own else _NO_PATH, id=f"{TAG}.W013")


def _own_name(path: str) -> str | None:
    """Return the dotted path that an exception class has itself; None: `path` leads to none."""
    try:
        found = locate(path)
    except ErrorDuringImport:
        return None
    return dotted(found) if isinstance(found, type) and issubclass(found, BaseException) else None


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."
