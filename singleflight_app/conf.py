"""The `SINGLEFLIGHT` setting: one dict, read and validated once, read anew after `setting_changed`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from functools import lru_cache
from typing import Any, cast

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.db import connections

from singleflight_app.domain.exceptions import MOST_SECONDS, InvalidRequest, seconds
from singleflight_app.domain.keys import check_stage
from singleflight_app.domain.policy import InvalidPolicy, StagePolicy
from singleflight_app.domain.sealing import is_key

MODES = ("local", "distributed", "hybrid")
_POLLS_PER_TTL = 2


class InvalidSetting(ImproperlyConfigured):
    """A part of `SINGLEFLIGHT` is wrong: `code` is the system check's id, `repair` what to do."""

    def __init__(self, code: str, problem: str, repair: str) -> None:
        super().__init__(f"SINGLEFLIGHT: {problem}; {repair}")
        self.code, self.problem, self.repair = code, problem, repair


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The validated setting. Durations in seconds; docs/settings.md explains each option."""

    namespace: str = "default"
    mode: str = "hybrid"
    database: str = "default"
    cache: str | None = "default"
    pool_size: int = 8
    prepare_statements: bool | None = None
    poll_interval: float = 0.5
    stream_length: int = 10_000
    memory_entries: int = 10_000
    memory_bytes: int = 64_000_000
    unsettled_flights: int = 1000
    unsettled_bytes: int = 64_000_000
    event_retention: timedelta = timedelta(days=30)
    blob_storage: str | None = None
    encryption_keys: tuple[str, ...] = field(default=(), repr=False)
    defaults: StagePolicy = field(default_factory=StagePolicy)
    stages: Mapping[str, StagePolicy] = field(default_factory=dict)

    def policy(self, stage: str) -> StagePolicy:
        """Return the stage's policy; a stage without one has the defaults."""
        return self.stages.get(stage, self.defaults)

    @property
    def wait_timeout_max(self) -> float:
        """The longest `wait_timeout` of any stage, in seconds."""
        return max(policy.wait for policy in self.policies)

    @property
    def replay_memory_ttl_max(self) -> float:
        """The longest `replay_memory_ttl` of any stage, in seconds."""
        return max(seconds(policy.replay_memory_ttl) for policy in self.policies)

    @property
    def statement_timeout(self) -> float:
        """Deadline of one coordination statement in seconds: below the shortest heartbeat, from 1 to 2."""
        return max(1.0, min(2.0, 0.8 * min(policy.heartbeat for policy in self.policies)))

    @property
    def policies(self) -> tuple[StagePolicy, ...]:
        """Every policy there is, the defaults first."""
        return (self.defaults, *self.stages.values())


def problems(raw: object) -> Iterator[InvalidSetting]:
    """Yield what is wrong with a raw `SINGLEFLIGHT` value, each with its repair."""
    if not isinstance(raw, Mapping):
        yield InvalidSetting("singleflight.E001", f"it is a {type(raw).__name__}", "make it a dict")
        return
    yield from _global_problems(raw)
    stages = raw.get("STAGES", {})
    if not isinstance(stages, Mapping) or not isinstance(raw.get("DEFAULTS", {}), Mapping):
        yield InvalidSetting(
            "singleflight.E001", "STAGES or DEFAULTS is no dict", "map stage names to dicts of options"
        )
        return
    try:
        _policy(raw, {})
    except InvalidPolicy as exc:
        yield InvalidSetting("singleflight.E003", f"DEFAULTS: {exc}", exc.repair)
        return  # every stage inherits it
    for name, options in stages.items():
        try:
            check_stage(name)
            _policy(raw, options)
        except InvalidRequest as exc:
            yield InvalidSetting("singleflight.E003", f"STAGES: {exc}", "rename it")
        except InvalidPolicy as exc:
            yield InvalidSetting("singleflight.E003", f"{name}: {exc}", exc.repair)


def _global_problems(raw: Mapping[str, Any]) -> Iterator[InvalidSetting]:
    known = {item.name.upper(): item for item in fields(Settings)}
    for name, value in raw.items():
        if name not in known:
            repair = f"known options: {', '.join(sorted(known))}"
            yield InvalidSetting("singleflight.E001", f"{name!r} is no option", repair)
        elif name == "ENCRYPTION_KEYS":
            yield from _key_problems(value)
        elif (instead := _refusal(name, value)) is not None:
            yield InvalidSetting("singleflight.E002", f"{name} is {value!r}", instead)


def _key_problems(value: object) -> Iterator[InvalidSetting]:
    """Yield what is wrong with the keys, without a key in the text: settings' problems are printed and logged."""
    repair = "list keys of 32 random bytes in base64, the newest first"
    if not isinstance(value, list | tuple):
        yield InvalidSetting("singleflight.E002", f"ENCRYPTION_KEYS is a {type(value).__name__}", repair)
        return
    wrong = [str(number) for number, key in enumerate(value, start=1) if not is_key(key)]
    if wrong:
        yield InvalidSetting("singleflight.E002", f"ENCRYPTION_KEYS: number {', '.join(wrong)} is no key", repair)


def _refusal(name: str, value: object) -> str | None:
    """Return what to set `name` to instead of `value`, or None when it is fine."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= MOST_SECONDS
    if name == "MODE":
        return None if value in MODES else f"use one of {', '.join(MODES)}"
    if name in {"NAMESPACE", "DATABASE"}:
        return None if isinstance(value, str) and value else "give a non-empty string"
    if name in {"CACHE", "BLOB_STORAGE"}:
        known = "CACHES" if name == "CACHE" else "STORAGES"
        return None if value is None or (isinstance(value, str) and value) else f"name an alias of {known}, or None"
    if name == "PREPARE_STATEMENTS":
        return None if value is None or isinstance(value, bool) else "give True or False, or None to find out"
    if name == "EVENT_RETENTION":
        return None if isinstance(value, timedelta) and value > timedelta(0) else "give a datetime.timedelta"
    if name == "POLL_INTERVAL":
        return None if number else "give a number of seconds above zero"
    if name in {"DEFAULTS", "STAGES"}:
        return None
    return None if number and isinstance(value, int) else "give a whole number above zero"


def _policy(raw: Mapping[str, Any], options: object) -> StagePolicy:
    if not isinstance(options, Mapping):
        raise InvalidPolicy("it is no dict", option="", repair="give a dict of options")
    policy = StagePolicy.from_options({**raw.get("DEFAULTS", {}), **options})
    poll = raw.get("POLL_INTERVAL", Settings.poll_interval)
    if isinstance(poll, int | float) and cast("float", policy.result_ttl) < _POLLS_PER_TTL * poll:
        raise InvalidPolicy(
            f"result_ttl is {policy.result_ttl:g} s and POLL_INTERVAL {poll:g} s: "
            "a follower could find the outcome already expired",
            option="result_ttl",
            repair=f"set result_ttl to at least {_POLLS_PER_TTL * poll:g}",
        )
    return policy


@lru_cache(maxsize=1)
def get_settings() -> Settings:
    """Return the validated setting; raise the first problem as `InvalidSetting`."""
    raw = getattr(settings, "SINGLEFLIGHT", {})
    for problem in problems(raw):
        raise problem
    plain = {name.lower(): value for name, value in raw.items() if name not in {"DEFAULTS", "STAGES"}}
    plain["encryption_keys"] = tuple(plain.get("encryption_keys", ()))
    stages = {name: _policy(raw, options) for name, options in raw.get("STAGES", {}).items()}
    if "cache" not in plain and not _has_redis(Settings.cache):
        plain = {**plain, "cache": None}
    return Settings(**plain, defaults=_policy(raw, {}), stages=stages)


def database_problem(settings: Settings) -> InvalidSetting | None:
    """Return what is wrong with the alias in DATABASE, so that flights could not be kept there."""
    name = settings.database
    if name not in connections.settings:
        return InvalidSetting("singleflight.E004", f"DATABASE is {name!r}, no such alias", "name an alias of DATABASES")
    vendor = connections[name].vendor
    if vendor == "postgresql":
        return None
    repair = 'point DATABASE at a PostgreSQL alias, or set MODE to "local" (one process, nothing shared)'
    return InvalidSetting("singleflight.E005", f"database {name!r} is {vendor}, not PostgreSQL", repair)


def _has_redis(alias: str | None) -> bool:
    """Tell whether a cache alias is django-redis; no setting is needed to start without one."""
    backend = getattr(settings, "CACHES", {}).get(alias, {}).get("BACKEND", "")
    return "redis" in backend.lower() and "django.core" not in backend


def _forget(*, setting: str, **_: object) -> None:
    if setting in {"SINGLEFLIGHT", "CACHES", "DATABASES"}:
        get_settings.cache_clear()


setting_changed.connect(_forget, dispatch_uid="singleflight_app.conf")
