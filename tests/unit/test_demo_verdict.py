"""The demo fails when a number is not what the protocol promises, and says which."""

from dataclasses import replace

import pytest

from interview_demo.demo.asking import LOST, Asked
from interview_demo.demo.modelling import StageCount
from interview_demo.demo.tally import Takeover, Tally, tally
from interview_demo.demo.verdict import TAKEOVER_SLACK, broken_promises

SCORE = "interview-score"
LEASE = 2.0


def caller(role: str, *, subject: str = "question 1", digest: str = "aaa", stage: str = SCORE) -> Asked:
    return Asked(stage, subject, "A", role, "database", 7, digest, 0.5)


KEPT = [
    caller("owner"),
    caller("follower"),
    caller("replay"),
    caller(LOST, subject="question 2", digest=""),
    caller("owner", subject="question 2", digest="bbb"),
    caller("follower", subject="question 2", digest="bbb"),
]
ADVANCES = {"question 1": 1, "question 2": 1}
TAKEN_OVER = [Takeover(SCORE, "question 2", 2.4, since_asked=2.5)]


def counted(
    asked: list[Asked] = KEPT,
    *,
    calls: int = 3,
    advances: dict[str, int] = ADVANCES,
    takeovers: list[Takeover] = TAKEN_OVER,
) -> Tally:
    counts = {SCORE: StageCount(begun=calls, answered=2, tokens=600)}
    return tally(asked, counts, advances=advances, takeovers=takeovers, kills=1, dashboard_calls=calls)


def broken(numbers: Tally) -> str:
    return "\n".join(broken_promises(numbers, lease_timeout=LEASE))


def test_what_was_promised_and_kept_is_no_complaint() -> None:
    """Two keys and one takeover cost three calls."""
    numbers = counted()

    assert broken_promises(numbers, lease_timeout=LEASE) == []
    assert numbers.expected_calls == numbers.model_calls == 3


def test_the_json_object_has_the_agreed_fields() -> None:
    """Programs read this object; its fields are fixed."""
    assert counted().as_dict() == {
        "requests": 6,
        "model_calls": 3,
        "expected_calls": 3,
        "dashboard_calls": 3,
        "takeovers": 1,
        "takeover_seconds": 2.4,
        "distinct_answers_per_key_max": 1,
        "stages": {SCORE: {"requests": 6, "model_calls": 3, "followers": 2, "replays": 1}},
    }


def test_what_was_saved_is_what_was_asked_and_not_called() -> None:
    """Tokens are saved at the stage's mean."""
    stage = counted().stages[SCORE]

    assert stage.saved == 3
    assert stage.tokens_saved == 600


def test_a_dashboard_that_says_otherwise_is_told() -> None:
    """What an operator reads is what the model server counted."""
    assert "the dashboard says 2 calls" in broken(replace(counted(), dashboard_calls=2))


@pytest.mark.parametrize("calls", [2, 4], ids=["one too few", "one too many"])
def test_another_number_of_calls_is_told(calls: int) -> None:
    """The model server's count decides, in both directions."""
    assert f"{calls} model calls were counted and 3 are expected" in broken(counted(calls=calls))


def test_a_second_answer_under_one_key_is_told() -> None:
    """Every caller of a generation sees the same value."""
    asked = [*KEPT[:2], replace(KEPT[2], digest="ccc"), *KEPT[3:]]

    assert "callers of one key saw 2 answers" in broken(counted(asked))


def test_the_same_answer_under_two_keys_is_fine() -> None:
    """Answers are compared within a key, never across."""
    asked = [replace(one, digest="aaa") if one.digest else one for one in KEPT]

    assert broken(counted(asked)) == ""


def test_a_second_owner_is_told() -> None:
    """One key has one caller who made the call."""
    asked = [caller("owner"), caller("owner"), *KEPT[2:]]

    assert "3 callers owned 2 keys" in broken(counted(asked))


def test_a_key_that_nobody_answered_is_told() -> None:
    """A call that was lost and not taken over is no success."""
    numbers = counted(KEPT[:4], calls=2, takeovers=[])

    assert "1 owners were killed and 0 of their calls were taken over" in broken(numbers)
    assert "1 callers owned 2 keys" in broken(numbers)


def test_a_takeover_past_its_limit_is_told() -> None:
    """Nobody waits for ever: the lease, and a little."""
    late = [Takeover(SCORE, "question 2", LEASE + TAKEOVER_SLACK + 0.1, since_asked=9.0)]

    assert "a takeover took 7.1 s" in broken(counted(takeovers=late))


@pytest.mark.parametrize("count", [0, 2])
def test_an_interview_that_does_not_advance_once_is_told(count: int) -> None:
    """An answer moves the interview on once, however many requests carried it."""
    numbers = counted(advances={**ADVANCES, "question 2": count})

    assert f"{count} requests advanced the interview at question 2" in broken(numbers)


def test_a_role_that_nobody_knows_is_told() -> None:
    """Each caller was owner, follower or replay, or was lost with its node."""
    assert "not each was owner, follower, replay or lost" in broken(counted([*KEPT, caller("guest")]))


def test_calls_of_a_stage_that_nobody_asked_for_are_told() -> None:
    """A call that no request explains is a call too many."""
    counts = {SCORE: StageCount(begun=3), "interview-report": StageCount(begun=1)}

    numbers = tally(KEPT, counts, advances=ADVANCES, takeovers=TAKEN_OVER, kills=1, dashboard_calls=4)

    assert "interview-report: 1 calls for 0 keys" in broken(numbers)


def test_a_second_call_under_a_running_lease_is_told() -> None:
    """A takeover before the lease could end is no takeover but a duplicate call."""
    early = [Takeover(SCORE, "question 2", 0.1, since_asked=LEASE - 0.1)]

    assert "made again while its owner's lease still ran" in broken(counted(takeovers=early))
