"""A stage's policy: nonsense is refused at birth, in one sentence with the values and the repair."""

from dataclasses import FrozenInstanceError, fields, replace
from datetime import timedelta
from typing import Any

import pytest

from singleflight_app.domain.policy import DURATIONS, Breaker, InvalidPolicy, Retry, StagePolicy


def test_the_defaults_make_sense() -> None:
    """Safe for a model call of 5 to 60 s: it beats often enough, and a follower outlasts a lease."""
    policy = StagePolicy()

    assert policy.lease >= 3 * policy.heartbeat
    assert policy.wait >= policy.lease
    assert policy.execution_timeout == 600


@pytest.mark.parametrize("name", DURATIONS)
def test_a_duration_is_given_in_seconds_or_as_timedelta(name: str) -> None:
    """Both are kept in seconds, so that two ways of writing are one policy."""
    options: dict[str, Any] = {"lease_timeout": 30, "heartbeat_interval": 5, "wait_timeout": 40}

    in_seconds = StagePolicy(**{**options, name: 33 if name != "heartbeat_interval" else 7})
    as_delta = StagePolicy(**{**options, name: timedelta(seconds=33 if name != "heartbeat_interval" else 7)})

    assert in_seconds == as_delta
    assert hash(in_seconds) == hash(as_delta)


@pytest.mark.parametrize("name", DURATIONS)
@pytest.mark.parametrize("value", [0, -1, True, "5", None, float("nan"), float("inf"), timedelta(0), timedelta.max])
def test_a_duration_that_is_none_is_refused(name: str, value: object) -> None:
    """Zero, for ever, and what is no number: each would hang or spin somewhere; PostgreSQL can't add them to a time."""
    with pytest.raises(InvalidPolicy, match=f"{name} is ") as refused:
        StagePolicy(**{name: value})  # type: ignore[arg-type]

    assert refused.value.option == name
    assert refused.value.repair


@pytest.mark.parametrize(("lease", "heartbeat"), [(0.6, 0.2), (0.3, 0.1), (30, 10), (2.1, 0.7)])
def test_a_lease_of_exactly_three_heartbeats_is_fine(lease: float, heartbeat: float) -> None:
    """Also where floats are not: 3 * 0.2 is more than 0.6."""
    assert StagePolicy(lease_timeout=lease, heartbeat_interval=heartbeat).lease == lease


def test_a_lease_under_three_heartbeats_is_refused() -> None:
    """One slow beat would lose it."""
    with pytest.raises(InvalidPolicy, match="lease_timeout is 10 s and heartbeat_interval 5 s") as refused:
        StagePolicy(lease_timeout=10, heartbeat_interval=5)

    assert refused.value.repair == "set lease_timeout to at least 15, or beat more often"


def test_a_wait_shorter_than_the_lease_is_refused() -> None:
    """A follower would leave before a dead owner could be replaced."""
    with pytest.raises(InvalidPolicy, match="wait_timeout is 20 s and lease_timeout 30 s") as refused:
        StagePolicy(wait_timeout=20)

    assert refused.value.repair == "set wait_timeout to at least 30"


@pytest.mark.parametrize(
    ("option", "value", "repair"),
    [
        ("compress", 1, "give True or False"),
        ("takeover", "yes", "give True or False"),
        ("max_takeovers", 1.5, "give a whole number"),
        ("max_takeovers", True, "give a whole number"),
        ("max_waiters", -1, "give zero or a positive number"),
        ("version", 3, "give a string"),
        ("reraise", "builtins.ValueError", "give a list of dotted paths"),
        ("retry_on", (ValueError,), 'list dotted paths, such as "openai.RateLimitError"'),
        ("retry_on", "http", "give a list of dotted paths"),
        ("max_concurrency", 0, "give a whole number from 1 on"),
        ("max_concurrency", True, "give a whole number from 1 on"),
        ("max_local_calls", 1.5, "give a whole number from 1 on"),
        ("max_local_calls", "3", "give a whole number from 1 on"),
        ("on_saturated", "queue", "use one of wait, reject"),
        ("on_saturated", None, "give a string"),
        ("retry", 3, "give None, or a dict of attempts, wait, max_wait"),
        ("retry", Breaker(), "give None, or a dict of attempts, wait, max_wait"),
        ("breaker", True, "give None, or a dict of failures, pause"),
    ],
)
def test_an_option_of_the_wrong_type_is_refused(option: str, value: object, repair: str) -> None:
    """With what to give instead."""
    with pytest.raises(InvalidPolicy, match=f"{option} is ") as refused:
        StagePolicy(**{option: value})  # type: ignore[arg-type]

    assert refused.value.repair == repair


def test_an_unknown_option_is_refused_with_those_there_are() -> None:
    """A typo must not pass for a default."""
    with pytest.raises(InvalidPolicy, match="'lease_timout' is no option of a stage") as refused:
        StagePolicy.from_options({"lease_timout": 30})

    for field in fields(StagePolicy):
        assert field.name in refused.value.repair


def test_lists_of_a_settings_file_are_taken() -> None:
    """Settings have lists where a frozen policy has tuples."""
    policy = StagePolicy.from_options({"reraise": ["a.B"], "retry_on": []})

    assert (policy.reraise, policy.retry_on) == (("a.B",), ())


def test_nothing_is_limited_or_guarded_unless_it_is_asked_for() -> None:
    """A stage without these options pays for none of them."""
    policy = StagePolicy()

    assert (policy.max_concurrency, policy.max_local_calls, policy.on_saturated) == (None, None, "wait")
    assert (policy.retry, policy.breaker) == (None, None)


def test_a_provider_that_asks_to_come_again_is_retryable_by_default() -> None:
    """429 and 5xx, whatever the SDK: beside what the standard library raises when nobody answers."""
    assert StagePolicy().retry_on == ("builtins.TimeoutError", "builtins.ConnectionError", "http")


def test_groups_of_options_are_given_as_dicts() -> None:
    """As in a settings file; durations in seconds or as timedelta, what is left out by default."""
    given = {
        "retry": {"attempts": 5, "wait": timedelta(seconds=2)},
        "breaker": {"failures": 3, "pause": timedelta(minutes=1)},
    }

    policy = StagePolicy.from_options(given)

    assert policy.retry == Retry(attempts=5, wait=2.0, max_wait=20.0)
    assert policy.breaker == Breaker(failures=3, pause=60.0)
    assert policy == StagePolicy.from_options({"retry": policy.retry, "breaker": policy.breaker})
    assert StagePolicy.from_options({"retry": {}, "breaker": {}}) == StagePolicy(retry=Retry(), breaker=Breaker())
    assert hash(policy) == hash(StagePolicy.from_options(given))


@pytest.mark.parametrize(
    ("options", "problem", "repair"),
    [
        ({"retry": {"tries": 3}}, "'tries' is no option of retry", "known options: attempts, max_wait, wait"),
        ({"retry": {7: 3}}, "7 is no option of retry", "known options: attempts, max_wait, wait"),
        ({"retry": {"attempts": 0}}, "retry.attempts is 0", "give a whole number from 1 on"),
        ({"retry": {"attempts": True}}, "retry.attempts is True", "give a whole number from 1 on"),
        ({"retry": {"wait": 0}}, "retry.wait is 0", "give a duration above zero and of ten years at most"),
        ({"retry": {"wait": "1"}}, "retry.wait is '1'", "give a number of seconds or a datetime.timedelta"),
        ({"retry": {"max_wait": None}}, "retry.max_wait is None", "give a number of seconds or a datetime.timedelta"),
        ({"retry": {"wait": 30}}, "retry.max_wait is 20 s and retry.wait 30 s", "set max_wait to at least 30"),
        ({"breaker": {"failure": 3}}, "'failure' is no option of breaker", "known options: failures, pause"),
        ({"breaker": {"failures": -1}}, "breaker.failures is -1", "give a whole number from 1 on"),
        ({"breaker": {"pause": float("nan")}}, "breaker.pause is nan", "give a duration above zero"),
    ],
)
def test_nonsense_in_a_group_is_refused(options: dict[str, Any], problem: str, repair: str) -> None:
    """By its full name, with the repair."""
    with pytest.raises(InvalidPolicy, match=problem) as refused:
        StagePolicy.from_options(options)

    assert refused.value.repair.startswith(repair)


def test_a_policy_does_not_change() -> None:
    """Codecs and flights hang on it; `replace` makes another, checked like the first."""
    policy = StagePolicy()

    with pytest.raises(FrozenInstanceError):
        policy.version = "2"  # type: ignore[misc]
    with pytest.raises(InvalidPolicy):
        replace(policy, lease_timeout=1)
