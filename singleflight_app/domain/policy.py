"""How one stage treats its flights: a frozen value that refuses nonsense at birth."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any

from singleflight_app.domain.exceptions import MOST_SECONDS, seconds

Duration = float | timedelta

DURATIONS = (
    "lease_timeout",
    "heartbeat_interval",
    "wait_timeout",
    "execution_timeout",
    "pending_timeout",
    "result_ttl",
    "failure_ttl",
    "replay_memory_ttl",
)
COUNTS = ("max_concurrency", "max_local_calls")  #: limits: a whole number from 1 on, None for no limit
ON_SATURATED = ("wait", "reject")
_BEATS_PER_LEASE = 3
_ROUNDING = 1e-6  #: 3 * 0.2 is not 0.6 to a computer


class InvalidPolicy(ValueError):
    """An option of a stage makes no sense; `option` names it, `repair` says what to set instead."""

    def __init__(self, problem: str, *, option: str, repair: str) -> None:
        super().__init__(problem)
        self.option, self.repair = option, repair


@dataclass(frozen=True, kw_only=True)
class Retry:
    """How often one call tries its function again after a retryable error, inside its flight.

    `attempts` in all, the first included. The pause grows from `wait` to `max_wait` with jitter; a provider's
    Retry-After counts instead, where it is longer. A pause that would outlast `wait_timeout` ends the trying.
    """

    attempts: int = 3
    wait: Duration = 0.5
    max_wait: Duration = 20.0

    def __post_init__(self) -> None:
        _check_count("retry.attempts", self.attempts)
        for name in ("wait", "max_wait"):
            object.__setattr__(self, name, _positive_seconds(f"retry.{name}", getattr(self, name)))
        if seconds(self.max_wait) < seconds(self.wait):
            repair = f"set max_wait to at least {self.wait:g}"
            raise InvalidPolicy(
                f"retry.max_wait is {self.max_wait:g} s and retry.wait {self.wait:g} s", option="retry", repair=repair
            )


@dataclass(frozen=True, kw_only=True)
class Breaker:
    """When a process stops making a stage's calls: `failures` retryable ones in a row, for `pause` seconds."""

    failures: int = 5
    pause: Duration = 30.0

    def __post_init__(self) -> None:
        _check_count("breaker.failures", self.failures)
        object.__setattr__(self, "pause", _positive_seconds("breaker.pause", self.pause))


_GROUPS: dict[str, type[Retry] | type[Breaker]] = {"retry": Retry, "breaker": Breaker}


@dataclass(frozen=True, kw_only=True)
class StagePolicy:
    """Options of a stage; durations are given in seconds or as timedelta and kept in seconds.

    The defaults suit a model call of 5 to 60 s. docs/settings.md explains each option.
    """

    lease_timeout: Duration = 30.0
    heartbeat_interval: Duration = 5.0
    wait_timeout: Duration = 90.0
    execution_timeout: Duration = 600.0
    pending_timeout: Duration = 300.0
    result_ttl: Duration = 60.0
    failure_ttl: Duration = 10.0
    version: str = ""
    reraise: tuple[str, ...] = ()
    retry_on: tuple[str, ...] = ("builtins.TimeoutError", "builtins.ConnectionError", "http")
    compress: bool = True
    compress_over: int = 2048
    max_result_bytes: int = 10_000_000
    store_over_bytes: int = 1_000_000
    replay_cache: bool = True
    replay_memory: bool = True
    replay_memory_ttl: Duration = 5.0
    takeover: bool = True
    max_takeovers: int = 3
    max_waiters: int = 1000
    max_concurrency: int | None = None
    max_local_calls: int | None = None
    on_saturated: str = "wait"
    retry: Retry | None = None
    breaker: Breaker | None = None

    def __post_init__(self) -> None:
        for name in DURATIONS:
            object.__setattr__(self, name, _positive_seconds(name, getattr(self, name)))
        for name in COUNTS:
            if getattr(self, name) is not None:
                _check_count(name, getattr(self, name))
        for name, group in _GROUPS.items():
            if getattr(self, name) is not None and not isinstance(getattr(self, name), group):
                raise _no_group(name, getattr(self, name))
        for field in fields(self):
            if field.default is not None:
                _check_type(field.name, getattr(self, field.name), type(field.default))
        if self.on_saturated not in ON_SATURATED:
            repair = f"use one of {', '.join(ON_SATURATED)}"
            raise InvalidPolicy(f"on_saturated is {self.on_saturated!r}", option="on_saturated", repair=repair)
        self._check_relations()

    def _check_relations(self) -> None:
        if self.lease < _BEATS_PER_LEASE * self.heartbeat - _ROUNDING:
            raise InvalidPolicy(
                f"lease_timeout is {self.lease:g} s and heartbeat_interval {self.heartbeat:g} s: "
                "a lease under three heartbeats is lost by one slow beat",
                option="lease_timeout",
                repair=f"set lease_timeout to at least {_BEATS_PER_LEASE * self.heartbeat:g}, or beat more often",
            )
        if self.wait < self.lease:
            raise InvalidPolicy(
                f"wait_timeout is {self.wait:g} s and lease_timeout {self.lease:g} s: "
                "a follower would give up before a dead owner can be replaced",
                option="wait_timeout",
                repair=f"set wait_timeout to at least {self.lease:g}",
            )

    @property
    def lease(self) -> float:
        """`lease_timeout` in seconds."""
        return seconds(self.lease_timeout)

    @property
    def heartbeat(self) -> float:
        """`heartbeat_interval` in seconds."""
        return seconds(self.heartbeat_interval)

    @property
    def wait(self) -> float:
        """`wait_timeout` in seconds."""
        return seconds(self.wait_timeout)

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> "StagePolicy":
        """Build a policy from a settings dict; an unknown option is refused by name."""
        _check_names(options, cls, "a stage")
        given: dict[str, Any] = dict(options)
        for name in ("reraise", "retry_on"):
            if isinstance(given.get(name), list):
                given[name] = tuple(given[name])
        for name, group in _GROUPS.items():
            if isinstance(given.get(name), Mapping):
                _check_names(given[name], group, name)
                given[name] = group(**given[name])
        return cls(**given)


def _check_names(options: Mapping[str, Any], kind: type, owner: str) -> None:
    known = sorted(field.name for field in fields(kind))
    for name in options:
        if name not in known:
            repair = f"known options: {', '.join(known)}"
            raise InvalidPolicy(f"{name!r} is no option of {owner}", option=str(name), repair=repair)


def _no_group(name: str, value: object) -> InvalidPolicy:
    options = ", ".join(field.name for field in fields(_GROUPS[name]))
    return InvalidPolicy(f"{name} is {value!r}", option=name, repair=f"give None, or a dict of {options}")


def _check_count(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidPolicy(f"{name} is {value!r}", option=name, repair="give a whole number from 1 on")


def _positive_seconds(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | timedelta):
        raise InvalidPolicy(
            f"{name} is {value!r}", option=name, repair="give a number of seconds or a datetime.timedelta"
        )
    number = seconds(value)
    if not 0 < number <= MOST_SECONDS:
        repair = "give a duration above zero and of ten years at most"
        raise InvalidPolicy(f"{name} is {value!r}", option=name, repair=repair)
    return number


def _check_type(name: str, value: object, kind: type) -> None:
    if isinstance(value, kind) and not (kind is not bool and isinstance(value, bool)):
        if kind is int and isinstance(value, int) and value < 0:
            raise InvalidPolicy(f"{name} is {value!r}", option=name, repair="give zero or a positive number")
        if kind is tuple and not all(isinstance(item, str) for item in value):  # type: ignore[attr-defined]
            raise InvalidPolicy(
                f"{name} is {value!r}",
                option=name,
                repair='list dotted paths, such as "openai.RateLimitError"',
            )
        return
    words = {bool: "True or False", int: "a whole number", str: "a string", tuple: "a list of dotted paths"}
    raise InvalidPolicy(f"{name} is {value!r}", option=name, repair=f"give {words[kind]}")
