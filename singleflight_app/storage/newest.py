"""The list of flights, newest grant first, with every statement bounded on a table of any size.

A row is reused by the next grant of its key, so the order of ids tells nothing; generations do. The index on
(status, -generation) is walked once per status of the view, and no further than a list reaches. Conditions that
have no index of their own are checked on that walk, never on the table.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from django.db import connections
from django.db.models import QuerySet

from singleflight_app.conf import get_settings
from singleflight_app.domain.states import LIVE, Status
from singleflight_app.models import Flight
from singleflight_app.storage import selectors

#: a list reaches back this many flights, and a filter looks at this many of each status
VIEW_DEPTH = 10_000
#: of those that are pending or running, a filter looks at more: an old one that hangs must be found
LIVE_DEPTH = 50_000
#: a scope has no index; a search shows this many of its flights
SCOPE_MATCHES = 1000
#: owners and stages to filter by are those of so many newest flights of each status
SEEN_DEPTH = 200


@dataclass(frozen=True)
class Newest:
    """Flights of some statuses, as a paginator counts and slices them.

    `rows` are flights with the conditions of the filters; `is_filtered` tells whether there are any. `found` are the
    ids that a search found, None without one.
    """

    rows: QuerySet[Any]
    statuses: Sequence[Status]
    is_filtered: bool = False
    found: Collection[int] | None = None

    ordered = True  # says Django's paginator, which would warn otherwise

    @cached_property
    def total(self) -> int:
        """How many there are: exact while that is cheap, else the planner's estimate or the depth."""
        if self.found is not None:
            return self._searched().count()
        if not self.is_filtered and len(self.statuses) == len(Status):
            return selectors.count(_all())
        parts = [self._part(status).values("pk")[: _depth(status) + 1] for status in self.statuses]
        return sum(part.count() for part in parts) if not _can_unite() else _united(parts).count()

    def count(self) -> int:
        """Return how many can be reached by pages."""
        return self.total if self.found is not None else min(self.total, VIEW_DEPTH)

    @property
    def is_cut(self) -> bool:
        """Older flights than the list reaches, or than the filters looked at, may be missing."""
        return self.total > VIEW_DEPTH or (self.is_filtered and bool(self._floors))

    def ids(self, start: int, stop: int) -> list[int]:
        """Return the ids of one page."""
        if stop <= start:
            return []
        if self.found is not None:
            # Sorted here: an order and a limit would tempt the planner to walk the index until it has met them all.
            pairs = sorted(self._searched().values_list("generation", "pk"), reverse=True)
        elif not _can_unite():
            rows = self.rows.filter(status__in=self.statuses).order_by("-generation")
            pairs = list(rows.values_list("generation", "pk")[:stop])
        else:
            parts = [self._part(status).values_list("generation", "pk")[:stop] for status in self.statuses]
            merged = parts[0] if len(parts) == 1 else _united(parts).order_by("-generation")
            return [pk for _, pk in merged[start:stop]]
        return [pk for _, pk in pairs[start:stop]]

    def __getitem__(self, part: slice) -> QuerySet[Any]:
        """Return the rows of one page, as `selectors.flights` reads them."""
        ids = self.ids(part.start or 0, min(part.stop, self.count()))
        return selectors.flights().filter(pk__in=ids).order_by("-generation")

    @cached_property
    def _floors(self) -> dict[str, int]:
        """The generation at which the depth of a status ends, for those that have more flights."""
        parts = [
            _all().filter(status=status).order_by("-generation").values_list("status", "generation")
            for status in self.statuses
        ]
        deep = [part[_depth(status) : _depth(status) + 1] for part, status in zip(parts, self.statuses, strict=True)]
        return dict(_united(deep) if _can_unite() else (pair for part in deep for pair in part))

    def _part(self, status: Status) -> QuerySet[Any]:
        rows = self.rows.filter(status=status)
        if self.is_filtered and (floor := self._floors.get(status.value)) is not None:
            rows = rows.filter(generation__gt=floor)
        return rows.order_by("-generation")

    def _searched(self) -> QuerySet[Any]:
        return self.rows.filter(pk__in=self.found or (), status__in=self.statuses).order_by()


def searched(rows: QuerySet[Any], statuses: Sequence[Status], text: str) -> tuple[set[int], bool]:
    """Return the ids of flights whose id, key digest or scope is `text`, and whether older ones were left out."""
    of_scope = Newest(rows.filter(scope=text), statuses, is_filtered=True)
    return {*of_scope.ids(0, SCOPE_MATCHES), *selectors.identified(text)}, of_scope.is_cut


def seen(statuses: Iterable[Status] = Status) -> tuple[list[str], list[str]]:
    """Return the stages and the hosts (the part of `owner` before the pid) of the newest flights, sorted."""
    parts = [
        _all().filter(status=status).order_by("-generation").values_list("stage", "owner")[:SEEN_DEPTH]
        for status in statuses
    ]
    pairs = set(parts[0].union(*parts[1:]) if _can_unite() else (pair for part in parts for pair in part))
    hosts = {owner.partition(":")[0] for _, owner in pairs if owner}
    return sorted({stage for stage, _ in pairs}), sorted(hosts)


def live_count() -> int:
    """Return how many flights are pending or running, at most `LIVE_DEPTH` + 1."""
    # In the order of the partial index that holds just these.
    return _all().filter(status__in=LIVE).order_by("stage", "id").values("pk")[: LIVE_DEPTH + 1].count()


def _all() -> QuerySet[Flight]:
    return Flight.objects.using(get_settings().database)


def _depth(status: Status) -> int:
    return LIVE_DEPTH if status in LIVE else VIEW_DEPTH


def _can_unite() -> bool:
    """Tell whether the database takes limits inside a union; one that does not (SQLite) holds no flights anyway."""
    return connections[get_settings().database].features.supports_slicing_ordering_in_compound


def _united(parts: Sequence[QuerySet[Any]]) -> QuerySet[Any]:
    return parts[0].union(*parts[1:], all=True) if len(parts) > 1 else parts[0]
