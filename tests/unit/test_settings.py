"""The `SINGLEFLIGHT` setting: the same sentence from the system check and at run time, and no check connects."""

import base64
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.checks import CheckMessage, run_checks
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from pytest_django.fixtures import Settings as DjangoSettings

from singleflight_app import checks, run
from singleflight_app.conf import InvalidSetting, Settings, get_settings
from singleflight_app.domain.policy import Breaker, Retry, StagePolicy

REDIS = "django_redis.cache.RedisCache"


KEY = base64.b64encode(bytes(32)).decode()


def found() -> list[CheckMessage]:
    return run_checks(tags=["singleflight"])


def ids() -> list[str | None]:
    return [message.id for message in found()]


@pytest.fixture
def caches(settings: DjangoSettings) -> DjangoSettings:
    """Settings whose servers are nowhere: a check that connected would fail."""
    timeouts = {"SOCKET_CONNECT_TIMEOUT": 1, "SOCKET_TIMEOUT": 1}
    settings.CACHES = {
        "default": {"BACKEND": REDIS, "LOCATION": "redis://nowhere.invalid:1/0", "OPTIONS": timeouts},
        "endless": {"BACKEND": REDIS, "LOCATION": "redis://nowhere.invalid:1/0"},
        "hasty": {
            "BACKEND": REDIS,
            "LOCATION": "redis://nowhere.invalid:1/0",
            "OPTIONS": {**timeouts, "SOCKET_TIMEOUT": 0.2},
        },
        "memory": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
        "django": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": "redis://nowhere.invalid:1"},
    }
    return settings


def test_no_setting_is_needed_to_start(settings: DjangoSettings) -> None:
    """Defaults are safe."""
    del settings.SINGLEFLIGHT

    assert get_settings().mode == "hybrid"
    assert get_settings().policy("whatever") == StagePolicy()
    assert not [message for message in found() if message.is_serious()]


def test_without_a_redis_cache_none_is_used_unless_one_is_named(caches: DjangoSettings) -> None:
    """A project on Django's default cache starts; one that names a wrong cache is told."""
    caches.CACHES = {"default": caches.CACHES["memory"]}
    caches.SINGLEFLIGHT = {}
    assert get_settings().cache is None
    assert ids() == []

    caches.SINGLEFLIGHT = {"CACHE": "default"}

    assert get_settings().cache == "default"
    assert ids() == ["singleflight.E007"]


@pytest.mark.parametrize(
    ("raw", "code", "sentence"),
    [
        ([], "singleflight.E001", "it is a list; make it a dict"),
        (None, "singleflight.E001", "it is a NoneType; make it a dict"),
        ({"STAGES": []}, "singleflight.E001", "STAGES or DEFAULTS is no dict"),
        ({"DEFAULTS": None}, "singleflight.E001", "STAGES or DEFAULTS is no dict"),
        ({"NAMESPCE": "x"}, "singleflight.E001", "'NAMESPCE' is no option; known options: BLOB_STORAGE, CACHE"),
        ({"mode": "local"}, "singleflight.E001", "'mode' is no option"),
        ({7: 1}, "singleflight.E001", "7 is no option"),
        ({"MODE": "both"}, "singleflight.E002", "MODE is 'both'; use one of local, distributed, hybrid"),
        ({"MODE": ["local"]}, "singleflight.E002", r"MODE is \['local'\]; use one of"),
        ({"NAMESPACE": ""}, "singleflight.E002", "NAMESPACE is ''; give a non-empty string"),
        ({"DATABASE": None}, "singleflight.E002", "DATABASE is None; give a non-empty string"),
        ({"CACHE": ""}, "singleflight.E002", "CACHE is ''; name an alias of CACHES, or None"),
        ({"BLOB_STORAGE": 7}, "singleflight.E002", "BLOB_STORAGE is 7; name an alias of STORAGES, or None"),
        ({"ENCRYPTION_KEYS": "x"}, "singleflight.E002", "ENCRYPTION_KEYS is a str; list keys of 32 random bytes"),
        (
            {"ENCRYPTION_KEYS": [KEY, "x", None]},
            "singleflight.E002",
            "ENCRYPTION_KEYS: number 2, 3 is no key; list keys",
        ),
        ({"POOL_SIZE": 0}, "singleflight.E002", "POOL_SIZE is 0; give a whole number above zero"),
        ({"POOL_SIZE": 1.5}, "singleflight.E002", "POOL_SIZE is 1.5"),
        ({"POOL_SIZE": True}, "singleflight.E002", "POOL_SIZE is True"),
        ({"POLL_INTERVAL": "1"}, "singleflight.E002", "POLL_INTERVAL is '1'; give a number of seconds"),
        ({"POLL_INTERVAL": float("nan")}, "singleflight.E002", "POLL_INTERVAL is nan"),
        ({"POLL_INTERVAL": float("inf")}, "singleflight.E002", "POLL_INTERVAL is inf"),
        ({"PREPARE_STATEMENTS": 1}, "singleflight.E002", "PREPARE_STATEMENTS is 1; give True or False"),
        ({"EVENT_RETENTION": 0}, "singleflight.E002", "EVENT_RETENTION is 0; give"),
        ({"STAGES": {"s": 7}}, "singleflight.E003", "s: it is no dict; give a dict of options"),
        ({"STAGES": {"s": {"leese": 1}}}, "singleflight.E003", "s: 'leese' is no option of a stage"),
        ({"STAGES": {"s": {"lease_timeout": 5}}}, "singleflight.E003", "s: lease_timeout is 5 s"),
        ({"DEFAULTS": {"wait_timeout": 1}}, "singleflight.E003", "DEFAULTS: wait_timeout is 1 s"),
        (
            {"POLL_INTERVAL": 2, "STAGES": {"s": {"result_ttl": 3}}},
            "singleflight.E003",
            "s: result_ttl is 3 s and POLL_INTERVAL 2 s.*; set result_ttl to at least 4",
        ),
        (
            {"STAGES": {"s": {"max_concurrency": 0}}},
            "singleflight.E003",
            "s: max_concurrency is 0; give a whole number",
        ),
        ({"STAGES": {"s": {"max_local_calls": "2"}}}, "singleflight.E003", "s: max_local_calls is '2'; give a whole"),
        (
            {"STAGES": {"s": {"on_saturated": "drop"}}},
            "singleflight.E003",
            "s: on_saturated is 'drop'; use one of wait",
        ),
        ({"STAGES": {"s": {"retry": 3}}}, "singleflight.E003", "s: retry is 3; give None, or a dict of attempts"),
        ({"STAGES": {"s": {"retry": {"attempts": 0}}}}, "singleflight.E003", "s: retry.attempts is 0; give a whole"),
        ({"STAGES": {"s": {"breaker": {"pause": 0}}}}, "singleflight.E003", "s: breaker.pause is 0; give a duration"),
        ({"DEFAULTS": {"retry_on": "http"}}, "singleflight.E003", "DEFAULTS: retry_on is 'http'; give a list"),
        ({"STAGES": {"no stage name": {}}}, "singleflight.E003", "STAGES: stage 'no stage name' is no stage name"),
    ],
)
def test_nonsense_is_refused_by_check_and_at_run_time(
    settings: DjangoSettings, raw: object, code: str, sentence: str
) -> None:
    """One sentence: the problem in `msg`, the repair in `hint`, both in the exception."""
    settings.SINGLEFLIGHT = raw

    with pytest.raises(InvalidSetting, match=f"SINGLEFLIGHT: {sentence}") as refused:
        run("any", {}, lambda: "not called", scope="test")

    messages = [message for message in found() if message.id == code]
    assert refused.value.code == code
    assert isinstance(refused.value, ImproperlyConfigured)
    assert messages
    assert all(message.hint and message.hint[0].isupper() for message in messages)
    assert refused.value.problem in messages[0].msg
    assert refused.value.repair.lower() in (messages[0].hint or "").lower()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("max_concurrency", 0),
        ("max_local_calls", 0),
        ("on_saturated", "drop"),
        ("retry", {"attempts": 0}),
        ("breaker", {"failures": 0}),
    ],
)
def test_manage_check_tells_of_a_wrong_limit_or_guard(settings: DjangoSettings, option: str, value: object) -> None:
    """Before anything is served."""
    settings.SINGLEFLIGHT = {"STAGES": {"score": {option: value}}}

    with pytest.raises(SystemCheckError, match=rf"singleflight\.E003\) SINGLEFLIGHT: score: {option}") as refused:
        call_command("check", tags=["singleflight"])

    assert "HINT: " in str(refused.value)


def test_every_problem_is_found_at_once(settings: DjangoSettings) -> None:
    """One run of `check` names them all."""
    settings.SINGLEFLIGHT = {"MODE": "both", "POOL_SIZE": 0, "STAGES": {"a": {"x": 1}, "b": {"y": 1}}}

    assert ids() == ["singleflight.E002", "singleflight.E002", "singleflight.E003", "singleflight.E003"]


def test_one_fault_in_the_defaults_is_one_message(settings: DjangoSettings) -> None:
    """Not one for each stage that inherits it."""
    settings.SINGLEFLIGHT = {"DEFAULTS": {"wait_timeout": 1}, "STAGES": {"a": {}, "b": {}, "c": {}}}

    assert ids() == ["singleflight.E003"]


def test_a_stage_has_the_defaults_and_what_it_changes(settings: DjangoSettings) -> None:
    """DEFAULTS are those of every stage, named or not."""
    settings.SINGLEFLIGHT = {
        "DEFAULTS": {"result_ttl": 120, "version": "d"},
        "STAGES": {"report": {"version": "r", "wait_timeout": timedelta(minutes=5)}},
    }

    found_settings: Settings = get_settings()

    assert (found_settings.policy("report").result_ttl, found_settings.policy("report").version) == (120, "r")
    assert (found_settings.policy("other").result_ttl, found_settings.policy("other").version) == (120, "d")
    assert found_settings.wait_timeout_max == 300


def test_a_changed_setting_is_read_anew(settings: DjangoSettings) -> None:
    """`override_settings` works in a project's tests."""
    settings.SINGLEFLIGHT = {"NAMESPACE": "one"}
    before = get_settings().namespace
    settings.SINGLEFLIGHT = {"NAMESPACE": "two"}

    assert (before, get_settings().namespace) == ("one", "two")


def test_changed_limits_and_guards_are_read_anew(settings: DjangoSettings) -> None:
    """As every option; a list is as good as a tuple, a dict as the object."""
    settings.SINGLEFLIGHT = {"STAGES": {"s": {"max_concurrency": 2, "retry": {"attempts": 2}, "retry_on": ["http"]}}}
    before = get_settings().policy("s")
    settings.SINGLEFLIGHT = {"STAGES": {"s": {"max_local_calls": 3, "on_saturated": "reject", "breaker": {}}}}
    after = get_settings().policy("s")

    assert (before.max_concurrency, before.retry, before.retry_on) == (2, Retry(attempts=2), ("http",))
    assert (after.max_concurrency, after.retry) == (None, None)
    assert (after.max_local_calls, after.on_saturated, after.breaker) == (3, "reject", Breaker())


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ({"DATABASE": "other"}, ["singleflight.E004"]),
        ({"CACHE": "other"}, ["singleflight.E007"]),
        ({"CACHE": "memory"}, ["singleflight.E007"]),
        ({"CACHE": "django"}, ["singleflight.E007"]),
        ({"CACHE": "endless"}, ["singleflight.W008"]),
        ({"CACHE": "hasty"}, ["singleflight.W008"]),
        ({"CACHE": None}, []),
        ({"CACHE": "default"}, []),
        ({}, []),
    ],
)
def test_the_aliases_that_it_names_are_looked_at(
    caches: DjangoSettings, raw: dict[str, Any], expected: list[str]
) -> None:
    """They exist, and are what flights need; nobody connects to find out."""
    caches.SINGLEFLIGHT = raw

    assert ids() == expected


@pytest.mark.parametrize(
    ("mode", "expected"),
    [("local", "singleflight.W005"), ("hybrid", "singleflight.E005"), ("distributed", "singleflight.E005")],
)
def test_a_database_that_is_not_postgresql_is_an_error_where_one_is_needed(
    caches: DjangoSettings, mode: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A warning in local mode, whose tables are still there for the admin."""
    from django.db import connections  # noqa: PLC0415  (not before Django is set up)

    lite = {**connections.settings["default"], "ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    monkeypatch.setitem(connections.settings, "lite", lite)
    caches.SINGLEFLIGHT = {"MODE": mode, "DATABASE": "lite"}

    assert ids() == [expected]
    if mode != "local":
        with pytest.raises(InvalidSetting, match="database 'lite' is sqlite, not PostgreSQL; point DATABASE at"):
            run("any", {}, lambda: "never called", scope="test")


@pytest.mark.parametrize(("level", "expected"), [(4, ["singleflight.E006"]), (2, []), (None, [])])
def test_another_isolation_level_is_an_error(
    caches: DjangoSettings, monkeypatch: pytest.MonkeyPatch, level: int | None, expected: list[str]
) -> None:
    """The statements read what others have just committed."""
    from django.db import connections  # noqa: PLC0415  (not before Django is set up)

    options = {} if level is None else {"isolation_level": level}
    monkeypatch.setitem(connections["default"].settings_dict, "OPTIONS", options)
    caches.SINGLEFLIGHT = {}

    assert ids() == expected


@pytest.mark.parametrize("keys", [[KEY[:-4]], [f"{KEY}{KEY}"], KEY])
def test_a_key_is_in_no_message(settings: DjangoSettings, keys: object) -> None:
    """A wrong setting is printed and logged; a key must not be, even where it is almost one."""
    settings.SINGLEFLIGHT = {"ENCRYPTION_KEYS": keys}

    with pytest.raises(InvalidSetting) as refused:
        get_settings()

    assert "AAAA" not in f"{refused.value} {found()}"
    settings.SINGLEFLIGHT = {"ENCRYPTION_KEYS": [KEY]}
    assert KEY not in repr(get_settings())


@pytest.mark.parametrize(
    ("alias", "location", "expected"),
    [
        ("results", "/srv/results", []),
        ("results", "/srv/media", ["singleflight.W011"]),
        ("results", "/srv/media/results", ["singleflight.W011"]),
        ("results", "/srv/static/results", ["singleflight.W011"]),
        ("default", "/srv/results", ["singleflight.W011"]),
        ("nowhere", "/srv/results", ["singleflight.E010"]),
        ("broken", "/srv/results", ["singleflight.E010"]),
        ("mistyped", "/srv/results", ["singleflight.E010"]),
    ],
)
def test_a_storage_is_there_and_not_served(
    settings: DjangoSettings, alias: str, location: str, expected: list[str]
) -> None:
    """A result is for those who asked for it, not for whoever guesses the name of its file."""
    settings.MEDIA_ROOT, settings.STATIC_ROOT = "/srv/media", "/srv/static"
    backend = "django.core.files.storage.FileSystemStorage"
    settings.STORAGES = {
        **settings.STORAGES,
        "results": {"BACKEND": backend, "OPTIONS": {"location": location}},
        "broken": {"BACKEND": "not.installed.Storage"},
        "mistyped": {"BACKEND": backend, "OPTIONS": {"place": location}},
    }
    settings.SINGLEFLIGHT = {"BLOB_STORAGE": alias, "CACHE": None}

    assert ids() == expected


def test_keys_without_the_library_are_refused(settings: DjangoSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the extra to install, before the first result has to be sealed."""
    settings.SINGLEFLIGHT = {"ENCRYPTION_KEYS": [KEY], "CACHE": None}
    assert ids() == []

    monkeypatch.setattr(checks, "find_spec", lambda _: None)

    assert ids() == ["singleflight.E012"]


@pytest.mark.parametrize("option", ["retry_on", "reraise"])
@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("builtins.TimeoutError", None),
        ("json.decoder.JSONDecodeError", None),
        ("json.JSONDecodeError", "Write 'json.decoder.JSONDecodeError', its own name"),
        ("asyncio.TimeoutError", "Write 'builtins.TimeoutError', its own name"),
        ("TimeoutError", "Write 'builtins.TimeoutError', its own name"),
        ("openal.APIError", "Write an exception's dotted path, as 'builtins.TimeoutError'"),
        ("json.dumps", "Write an exception's dotted path, as 'builtins.TimeoutError'"),
        ("broken_sdk.Error", "Write an exception's dotted path, as 'builtins.TimeoutError'"),
    ],
)
def test_a_listed_exception_is_one(
    settings: DjangoSettings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    option: str,
    path: str,
    hint: str | None,
) -> None:
    """A slip of the pen would make each such failure final, or another class, and nobody would be told."""
    (tmp_path / "broken_sdk.py").write_text("raise RuntimeError")
    monkeypatch.syspath_prepend(tmp_path)
    settings.SINGLEFLIGHT = {"CACHE": None, "STAGES": {"score": {option: [path]}}}

    messages = found()

    assert [message.id for message in messages] == (["singleflight.W013"] if hint else [])
    assert all((message.hint or "").startswith(hint or "") for message in messages)
