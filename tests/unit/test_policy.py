"""A stage's policy: nonsense is refused at birth, in one sentence with the values and the repair."""

from dataclasses import FrozenInstanceError, fields, replace
from datetime import timedelta
from typing import Any

import pytest

from singleflight_app.domain.policy import DURATIONS, InvalidPolicy, StagePolicy


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


def test_a_policy_does_not_change() -> None:
    """Codecs and flights hang on it; `replace` makes another, checked like the first."""
    policy = StagePolicy()

    with pytest.raises(FrozenInstanceError):
        policy.version = "2"  # type: ignore[misc]
    with pytest.raises(InvalidPolicy):
        replace(policy, lease_timeout=1)
