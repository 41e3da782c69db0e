"""What the protocol promised and the numbers don't show. An empty list is the demo's success."""

from collections.abc import Iterator

from interview_demo.demo.tally import StageTally, Tally

#: from a kill to the second call, beyond the lease: a poll, a claim, the way to the model, a busy machine
TAKEOVER_SLACK = 5.0


def broken_promises(tally: Tally, *, lease_timeout: float) -> list[str]:
    """Return one sentence for each number that is not what the protocol promises."""
    return [
        *_whole(tally, lease_timeout),
        *(line for name in tally.stages for line in _stage(name, tally.stages[name])),
    ]


def _whole(tally: Tally, lease_timeout: float) -> Iterator[str]:
    if tally.model_calls != tally.expected_calls:
        yield f"{tally.model_calls} model calls were counted and {tally.expected_calls} are expected"
    if tally.dashboard_calls != tally.model_calls:
        yield f"the dashboard says {tally.dashboard_calls} calls, and the model server counted {tally.model_calls}"
    if len(tally.takeovers) != tally.kills:
        yield f"{tally.kills} owners were killed and {len(tally.takeovers)} of their calls were taken over"
    seconds, limit = tally.takeover_seconds, lease_timeout + TAKEOVER_SLACK
    if seconds is not None and seconds > limit:
        yield f"a takeover took {seconds:.1f} s and the lease of {lease_timeout:g} s allows {limit:.1f} s"
    for takeover in tally.takeovers:
        if takeover.since_asked < lease_timeout:
            yield f"the call for {takeover.subject} was made again while its owner's lease still ran"
    for subject, count in tally.advances.items():
        if count != 1:
            yield f"{count} requests advanced the interview at {subject} and it advances once"


def _stage(name: str, stage: StageTally) -> Iterator[str]:
    if stage.model_calls != stage.expected_calls:
        yield f"{name}: {stage.model_calls} calls for {stage.keys} keys and {stage.taken_over} takeovers"
    if stage.owners != stage.keys:
        yield f"{name}: {stage.owners} callers owned {stage.keys} keys"
    if stage.owners + stage.followers + stage.replays + stage.lost != stage.requests:
        yield f"{name}: {stage.requests} requests, but not each was owner, follower, replay or lost"
    if stage.distinct_answers_max != 1:
        yield f"{name}: callers of one key saw {stage.distinct_answers_max} answers"
