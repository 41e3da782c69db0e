"""The demo's numbers: what callers saw, beside what the model server counted. Plain values, no I/O."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from interview_demo.demo.asking import LOST, Asked
from interview_demo.demo.modelling import StageCount

OWNER, FOLLOWER, REPLAY = "owner", "follower", "replay"


@dataclass(frozen=True)
class Takeover:
    """A call whose node was killed, and when it began for the second time, in seconds."""

    stage: str
    subject: str
    seconds: float  #: since the kill
    since_asked: float  #: since before the first owner was asked, so at least a lease


@dataclass(frozen=True)
class StageTally:
    """One stage: each request is an owner, a follower, a replay, or was lost with its node."""

    requests: int
    keys: int
    model_calls: int
    tokens: int
    owners: int
    followers: int
    replays: int
    lost: int
    taken_over: int
    distinct_answers_max: int

    @property
    def saved(self) -> int:
        """Model calls that were asked for and not made."""
        return self.requests - self.model_calls

    @property
    def tokens_saved(self) -> int:
        """Tokens that those would have cost, at the stage's mean."""
        return round(self.saved * self.tokens / self.model_calls) if self.model_calls else 0

    @property
    def expected_calls(self) -> int:
        """One call per key, and one more for each that was taken over."""
        return self.keys + self.taken_over


@dataclass(frozen=True)
class Tally:
    """The whole interview."""

    stages: Mapping[str, StageTally]
    advances: Mapping[str, int]  #: subject: how many requests moved the interview on
    takeovers: Sequence[Takeover]
    kills: int
    dashboard_calls: int  #: what the ledger says of the same stages and time

    @property
    def requests(self) -> int:
        """All callers of all flights."""
        return sum(stage.requests for stage in self.stages.values())

    @property
    def model_calls(self) -> int:
        """Calls that the model server counted."""
        return sum(stage.model_calls for stage in self.stages.values())

    @property
    def expected_calls(self) -> int:
        """One call per key, and one for each kill."""
        return sum(stage.keys for stage in self.stages.values()) + self.kills

    @property
    def takeover_seconds(self) -> float | None:
        """The longest time from a kill to the call's second beginning."""
        return max((takeover.seconds for takeover in self.takeovers), default=None)

    @property
    def distinct_answers_max(self) -> int:
        """The most answers that callers of one key saw; the promise is one."""
        return max((stage.distinct_answers_max for stage in self.stages.values()), default=0)

    def as_dict(self) -> dict[str, Any]:
        """Return the object that `--json` prints."""
        return {
            "requests": self.requests,
            "model_calls": self.model_calls,
            "expected_calls": self.expected_calls,
            "dashboard_calls": self.dashboard_calls,
            "takeovers": len(self.takeovers),
            "takeover_seconds": self.takeover_seconds,
            "distinct_answers_per_key_max": self.distinct_answers_max,
            "stages": {
                name: {
                    "requests": stage.requests,
                    "model_calls": stage.model_calls,
                    "followers": stage.followers,
                    "replays": stage.replays,
                }
                for name, stage in self.stages.items()
            },
        }


def tally(
    asked: Sequence[Asked],
    counts: Mapping[str, StageCount],
    *,
    advances: Mapping[str, int],
    takeovers: Sequence[Takeover] = (),
    kills: int = 0,
    dashboard_calls: int,
) -> Tally:
    """Count by stage. A stage that the model server counted and nobody asked for is listed too."""
    names = dict.fromkeys([*(one.stage for one in asked), *counts])
    stages = {
        name: _stage(
            [one for one in asked if one.stage == name],
            counts.get(name, StageCount()),
            sum(takeover.stage == name for takeover in takeovers),
        )
        for name in names
    }
    return Tally(stages, advances, takeovers, kills, dashboard_calls)


def _stage(asked: Sequence[Asked], count: StageCount, taken_over: int) -> StageTally:
    answers: dict[str, set[str]] = {}
    for one in asked:
        answers.setdefault(one.subject, set())
        if one.role != LOST:
            answers[one.subject].add(one.digest)
    roles = [one.role for one in asked]
    return StageTally(
        requests=len(asked),
        keys=len(answers),
        model_calls=count.begun,
        tokens=count.tokens,
        owners=roles.count(OWNER),
        followers=roles.count(FOLLOWER),
        replays=roles.count(REPLAY),
        lost=roles.count(LOST),
        taken_over=taken_over,
        distinct_answers_max=max((len(digests) for digests in answers.values()), default=0),
    )
