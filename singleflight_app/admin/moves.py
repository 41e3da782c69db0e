"""The four things that an operator may do to a flight: what each does to whom, and when it does nothing."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from singleflight_app import api
from singleflight_app.domain.states import Status
from singleflight_app.storage.standing import Standing

if TYPE_CHECKING:
    from django.utils.functional import _StrPromise as Text
else:
    Text = Promise

GONE = _("it is gone")
MOVED_ON = _("it moved on to another generation after this page was shown")
HELD_BACK = _("it moved just then, or a limit of its stage or a recent outage holds it back")
_HAS_ENDED = _("it has ended")
_IS_PAST = _("its outcome is past, and whoever asks starts anew")
_IS_FORGOTTEN = _("it was forgotten, and whoever asks starts anew")
_WAS_CANCELLED = _("it was cancelled, and whoever asks starts anew")


@dataclass(frozen=True, slots=True)
class Move:
    """One of the four. `name` is that of the action; `permission` that of `has_..._permission` and of its codename."""

    name: str
    permission: str
    label: Text  #: of a button
    description: Text  #: in the list of actions
    question: Text
    effects: tuple[Text, ...]  #: what will happen, and to whom
    act: Callable[..., bool]
    said: Callable[[int, int], str]  #: how many of how many it was done to
    obstacle: Callable[[Standing], Text | None]  #: why it would do nothing; None: it would do something

    @property
    def codename(self) -> str:
        """The permission's codename."""
        return f"{self.permission}_flight"


def why_not(move: Move, standing: Standing | None, generation: int) -> Text | None:
    """Return why a move does nothing to the generation that was chosen; None: it would do something."""
    if standing is None:
        return GONE
    return MOVED_ON if standing.generation != generation else move.obstacle(standing)


def _no_forget(standing: Standing) -> Text | None:
    if standing.status == Status.PENDING:
        return _("its call has not begun, and has no outcome yet")
    if standing.status == Status.CANCELLED:
        return _WAS_CANCELLED
    if standing.forgotten:
        return _IS_FORGOTTEN
    return _IS_PAST if standing.is_past else None


def _no_expiry(standing: Standing) -> Text | None:
    if standing.status == Status.PENDING:
        return _("it has no owner yet")
    return None if standing.status == Status.RUNNING else _HAS_ENDED


def _no_cancel(standing: Standing) -> Text | None:
    return None if standing.status in {Status.PENDING, Status.RUNNING} else _HAS_ENDED


def _no_retry(standing: Standing) -> Text | None:
    status = Status(standing.status)
    if status is Status.PENDING:
        return None
    if status is Status.RUNNING:
        return _no_requeue(standing)
    if status is Status.SUCCEEDED:
        return _("it succeeded; forget its outcome to have it called again")
    if status is Status.CANCELLED:
        return _WAS_CANCELLED
    if standing.forgotten:
        return _IS_FORGOTTEN
    if standing.is_past:
        return _IS_PAST
    return _("whoever asks calls again as it is") if standing.is_due else None


def _no_requeue(standing: Standing) -> Text | None:
    if not standing.is_leaseless:
        return _("it still runs")
    return None if standing.has_arguments else _("it runs in the foreground, and whoever waits or asks takes it over")


FORGET = Move(
    name="forget_flights",
    permission="forget",
    label=_("Forget"),
    description=_("Forget the outcome: whoever asks next gets a new call"),
    question=_("Forget these outcomes?"),
    effects=(
        _("Whoever asks from now on gets a new call: the outcome answers nobody any more, from no cache."),
        _("Whoever already waits for a running flight still gets its end; its owner notices nothing."),
    ),
    act=api.forget_flight,
    said=lambda done, seen: (
        ngettext("%(done)d of %(seen)d flight forgotten.", "%(done)d of %(seen)d flights forgotten.", seen)
        % {"done": done, "seen": seen}
    ),
    obstacle=_no_forget,
)
EXPIRE_LEASE = Move(
    name="expire_leases",
    permission="expire_lease",
    label=_("Expire lease"),
    description=_("Expire the lease: the next caller takes over"),
    question=_("Expire these leases?"),
    effects=(
        _("The owner is fenced at once: its call goes on and costs what it costs, but what it brings is refused."),
        _("One of those who wait takes over and calls again, the others follow; if nobody waits, the next caller."),
        _("A background flight whose worker is gone is queued again by the sweep."),
    ),
    act=api.expire_lease,
    said=lambda done, seen: (
        ngettext(
            "Lease expired on %(done)d of %(seen)d flight.", "Leases expired on %(done)d of %(seen)d flights.", seen
        )
        % {"done": done, "seen": seen}
    ),
    obstacle=_no_expiry,
)
CANCEL = Move(
    name="cancel_flights",
    permission="cancel",
    label=_("Cancel"),
    description=_("Cancel: whoever waits is told, and no call begins for them"),
    question=_("Cancel these flights?"),
    effects=(
        _("Whoever waits for one of them gets FlightCancelled, and no new call begins for them."),
        _(
            "The owner learns of it at its next heartbeat or at its end: an async call is stopped, any other goes on, "
            "and what it brings is refused and counted as wasted."
        ),
        _("No worker begins a pending flight any more, and its arguments are erased."),
        _("Whoever asks from now on gets a new call."),
    ),
    act=api.cancel_flight,
    said=lambda done, seen: (
        ngettext("%(done)d of %(seen)d flight cancelled.", "%(done)d of %(seen)d flights cancelled.", seen)
        % {"done": done, "seen": seen}
    ),
    obstacle=_no_cancel,
)
RETRY = Move(
    name="retry_flights",
    permission="retry",
    label=_("Retry"),
    description=_("Retry: let a failure be called again, send a waiting flight's message again"),
    question=_("Retry these flights?"),
    effects=(
        _("A failure is replayed to nobody any more: whoever asks next calls again. No call begins by itself."),
        _("The message of a pending flight is sent again at once, so that a worker comes for it."),
        _("A background flight whose worker's lease is over is queued again, and its late owner is fenced."),
    ),
    act=api.retry_flight,
    said=lambda done, seen: (
        ngettext(
            "%(done)d of %(seen)d flight may be tried again.", "%(done)d of %(seen)d flights may be tried again.", seen
        )
        % {"done": done, "seen": seen}
    ),
    obstacle=_no_retry,
)
MOVES = {move.name: move for move in (FORGET, EXPIRE_LEASE, CANCEL, RETRY)}
