"""What the state of a flight means, said to a person: badges, and one sentence that names the repair."""

from datetime import timedelta
from typing import Any, NamedTuple

from django.utils.translation import gettext, ngettext, pgettext

from singleflight_app.admin import shown
from singleflight_app.domain.states import Status
from singleflight_app.models import STATUS_LABELS

#: beside the word, so that no state is told by its colour alone
ICONS = {
    Status.PENDING: "◷",
    Status.RUNNING: "▶",
    Status.SUCCEEDED: "✓",
    Status.FAILED: "✗",
    Status.TIMED_OUT: "⧖",
    Status.CANCELLED: "⊘",
}
STUCK_ICON = "⚠"


class Badge(NamedTuple):
    """A state as a word with an icon; `kind` is the end of its CSS class."""

    kind: str
    icon: str
    word: str


def badge_of(flight: Any) -> Badge:  # noqa: ANN401  (a flight with what `selectors.flights` adds)
    """Return the state of a flight; one that nobody runs any more is stuck, whatever its status says."""
    status = Status(flight.status)
    if flight.is_stuck:
        word = gettext("stuck: no lease") if status is Status.RUNNING else gettext("stuck: no worker")
        return Badge("stuck", STUCK_ICON, word)
    return Badge(status.value, ICONS[status], str(STATUS_LABELS[status]))


def short_owner(owner: str) -> str:
    """Return host and pid of an owner; the random part tells processes apart, not people."""
    return ":".join(owner.split(":")[:2])


def saved(flight: Any) -> str:  # noqa: ANN401
    """Return what the calls that joined or replayed a flight would have cost; tokens where no price was given."""
    shared = flight.joins + flight.replays
    if flight.status != Status.SUCCEEDED or not shared:
        return shown.NONE
    if flight.cost:
        return shown.money(flight.cost * shared)
    tokens = (flight.input_tokens + flight.output_tokens) * shared
    if not tokens:
        return shown.NONE
    return ngettext("%(count)s token", "%(count)s tokens", tokens) % {"count": shown.number(tokens)}


def meaning(flight: Any) -> str:  # noqa: ANN401
    """Return what the state of a flight means for whoever asks now."""
    status = Status(flight.status)
    if status is Status.PENDING:
        return _pending(flight)
    if status is Status.RUNNING:
        return _running(flight)
    ended = _ended(flight, status)
    return f"{ended} {_from_now_on(flight, status)}"


def _pending(flight: Any) -> str:  # noqa: ANN401
    waited = {"age": shown.age(flight.age)}
    if flight.is_stuck:
        text = gettext(
            "Has waited for a worker for %(age)s, longer than pending_timeout: whoever asks next runs it. "
            "Look whether Celery workers run, and the sweep with them."
        )
        return text % waited
    return gettext("Has waited for a worker for %(age)s.") % waited


def _running(flight: Any) -> str:  # noqa: ANN401
    facts = {
        "owner": short_owner(flight.owner) or gettext("nobody"),
        "age": shown.age(flight.age),
        "beat": shown.age(flight.heartbeat_age),
        "lease": shown.age(abs(flight.lease_remaining)),
    }
    if not flight.owner:
        text = gettext("Its lease was ended by hand %(lease)s ago: the next caller takes over.")
    elif flight.is_stuck:
        text = gettext(
            "Owned by %(owner)s for %(age)s, last beat %(beat)s ago, lease over for %(lease)s: "
            "the owner died or is cut off. The next caller takes over; without one, the sweep does."
        )
    else:
        text = gettext("Running on %(owner)s for %(age)s, last beat %(beat)s ago, lease for %(lease)s more.")
    return text % facts


def _ended(flight: Any, status: Status) -> str:  # noqa: ANN401
    facts = {"owner": short_owner(flight.owner) or gettext("nobody"), "duration": shown.age(flight.duration)}
    texts = {
        Status.SUCCEEDED: gettext("Succeeded on %(owner)s after %(duration)s."),
        Status.FAILED: gettext("Failed on %(owner)s after %(duration)s."),
        Status.TIMED_OUT: gettext("Outlived execution_timeout on %(owner)s and was ended after %(duration)s."),
        Status.CANCELLED: gettext("Cancelled."),
    }
    return texts[status] % facts


def _from_now_on(flight: Any, status: Status) -> str:  # noqa: ANN401
    left = flight.outcome_remaining
    is_over = left is None or left <= timedelta(0)
    if flight.forgotten:
        return gettext("It was forgotten: whoever asks next gets a new call.")
    if status is Status.CANCELLED or is_over:
        return gettext("Whoever asks next gets a new call.")
    facts = {"left": shown.age(left), "retry": shown.age(flight.retry_remaining)}
    if status is Status.SUCCEEDED:
        return gettext("Its result answers for %(left)s more.") % facts
    if flight.retryable and flight.retry_remaining is not None:
        if flight.retry_remaining <= timedelta(0):
            return pgettext("failure", "Whoever asks next tries again.")
        return gettext("It is replayed for %(retry)s more; then whoever asks tries again.") % facts
    return gettext("The same failure is replayed for %(left)s more.") % facts
