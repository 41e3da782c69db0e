"""Reads live flights for an operator, stuck ones first."""

from collections.abc import Mapping, Sequence

from singleflight_app.domain.exceptions import seconds
from singleflight_app.domain.policy import StagePolicy
from singleflight_app.domain.states import Status
from singleflight_app.domain.watching import LiveFlight, Watched
from singleflight_app.storage.pool import Database
from singleflight_app.storage.queries import query


def watch(
    database: Database,
    *,
    policies: Mapping[str, StagePolicy],
    defaults: StagePolicy,
    stages: Sequence[str] = (),
    only_stuck: bool = False,
    limit: int = 100,
) -> Watched:
    """Return up to `limit` live flights of some stages, or of all; CoordinationUnavailable: no answer."""
    rows = database.run(
        query("watch_flights"),
        {
            "policies": list(policies),
            "timeouts": [seconds(policy.pending_timeout) for policy in policies.values()],
            "timeout": seconds(defaults.pending_timeout),
            "stages": list(stages) or None,
            "only_stuck": only_stuck,
            "limit": limit + 1,
        },
    )
    found = [LiveFlight._make((*row[1:3], Status(row[3]), *row[4:])) for row in rows if row[1] is not None]
    return Watched(rows[0][0], tuple(found[:limit]), is_cut=len(found) > limit)
