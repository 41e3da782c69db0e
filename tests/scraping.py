"""What a page of /metrics says, as Prometheus reads it."""

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module


@dataclass(frozen=True)
class Sample:
    """One number of a page."""

    name: str
    labels: dict[str, str]
    value: float


class Scrape:
    """One page, or several together."""

    def __init__(self, *pages: str) -> None:
        parser = import_module("prometheus_client.parser")  # an extra
        self.samples = [
            Sample(sample.name, dict(sample.labels), sample.value)
            for page in pages
            for family in parser.text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name.startswith("singleflight_")
        ]

    @property
    def names(self) -> set[str]:
        """Return the names of all series."""
        return {sample.name for sample in self.samples}

    def sum(self, name: str, **labels: str) -> float:
        """Return the sum over all series of a name that have these labels."""
        return sum(self._values(name, labels))

    def all(self, name: str, **labels: str) -> list[float]:
        """Return the value of each such series."""
        return list(self._values(name, labels))

    def _values(self, name: str, labels: dict[str, str]) -> Iterable[float]:
        for sample in self.samples:
            if sample.name == f"singleflight_{name}" and labels.items() <= sample.labels.items():
                yield sample.value
