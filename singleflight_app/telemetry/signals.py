"""What happened, in the past tense. The engine sends, everything else listens.

Each is sent with the sender `Engine` and the keyword arguments listed beside it. A listener that raises is
logged by `announce` and harms no caller. No signal carries a key, a scope, an argument or a result.
"""

import logging
from typing import Any

from django.dispatch import Signal

logger = logging.getLogger("singleflight_app")

#: A caller got its answer. stage, role (Role), layer (Layer), waited (seconds), flight_id (int | None),
#: generation (int | None), usage (Usage of the flight that answered), failed (bool)
request_answered = Signal(use_caching=True)
#: A caller's wait budget ended first. stage, waited (seconds)
wait_timed_out = Signal(use_caching=True)
#: A follower's wait for another process ended, once per flight and process. stage,
#: by ("hint" | "poll"); not announced where there is no stream that could bring hints
follower_woken = Signal(use_caching=True)
#: A caller was turned away before it waited. stage, reason
caller_refused = Signal(use_caching=True)
#: A generation was granted to this process. stage, flight_id, generation, claim (Claim)
lease_granted = Signal(use_caching=True)
#: The grant was over an expired lease: a second call of the key. stage, flight_id, generation
lease_taken_over = Signal(use_caching=True)
#: The row proves that this process's lease is over. stage, flight_id, generation, reason
#: ("superseded" | "cancelled" | "vanished")
lease_lost = Signal(use_caching=True)
#: A generation was ended without its owner, whose call is nobody's answer any more (a takeover announces
#: `lease_taken_over` instead). stage, flight_id, generation (that was lost), reason ("requeued": a worker begins the
#: call again; "gave_up": settled as lost; "cancelled": by hand, while it ran; "vanished": the row is gone)
flight_lost = Signal(use_caching=True)
#: An owner's end is in the row. stage, flight_id, generation, status (Status), seconds (of the call, None: unknown),
#: usage (Usage), is_call (False: the lease was given back before the function began)
flight_settled = Signal(use_caching=True)
#: A late owner's end was refused; its usage is wasted. stage, flight_id, generation, usage (Usage)
flight_fenced = Signal(use_caching=True)
#: So many calls of a stage failed here that its breaker opened, or the one that tried again failed. stage
breaker_opened = Signal(use_caching=True)
#: Hybrid mode made a call without the database. stage
flight_degraded = Signal(use_caching=True)
#: A stored outcome was dropped by `forget`. stage, flight_id, generation
flight_forgotten = Signal(use_caching=True)
#: A stored result could not be read and was led anew. stage, flight_id, generation,
#: reason ("unreadable": damaged, or of another type; "unknown": written by a newer release, or with another key)
result_dropped = Signal(use_caching=True)
#: The owner's value came back from its stored form as something else. stage
result_changed = Signal(use_caching=True)
#: A helper of the protocol failed and was worked around. component ("database" | "cache" | "notify" |
#: "settle" | "beat" | "poll" | "broker" | "ledger" | "storage"), error (the exception's class name)
coordination_failed = Signal(use_caching=True)


class Engine:
    """The sender of every signal; Django caches a signal's receivers by sender."""


def announce(signal: Signal, **facts: Any) -> None:  # noqa: ANN401  (each signal's facts are listed above)
    """Send `signal` to its listeners; their failures are logged here, never raised."""
    if not signal.receivers:
        return
    for receiver, answer in signal.send_robust(sender=Engine, **facts):
        if isinstance(answer, Exception):
            logger.error("listener %r failed", receiver, exc_info=answer)
