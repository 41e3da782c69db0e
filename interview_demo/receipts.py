"""How a caller came by an answer: what the page shows and what the demo counts."""

import hashlib
from dataclasses import asdict, dataclass
from typing import Any, Protocol, TypeVar

from interview_demo.answers import Answer

A_co = TypeVar("A_co", bound=Answer, covariant=True)


class OutcomeOf(Protocol[A_co]):
    """The part of a flight's outcome that a receipt shows."""

    @property
    def value(self) -> A_co: ...
    @property
    def role(self) -> str: ...
    @property
    def layer(self) -> str: ...
    @property
    def generation(self) -> int | None: ...
    @property
    def waited(self) -> float: ...
    @property
    def superseded(self) -> bool: ...
    @property
    def degraded(self) -> bool: ...


@dataclass(frozen=True)
class Receipt:
    """One caller's share in one flight; `digest` is short for the answer: equal digests, equal answers."""

    stage: str
    role: str
    layer: str
    generation: int | None
    waited: float
    superseded: bool
    degraded: bool
    digest: str

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return asdict(self)


def receipt_of(stage: str, outcome: OutcomeOf[Answer]) -> Receipt:
    """Describe an outcome."""
    return Receipt(
        stage=stage,
        role=str(outcome.role),
        layer=str(outcome.layer),
        generation=outcome.generation,
        waited=round(outcome.waited, 3),
        superseded=outcome.superseded,
        degraded=outcome.degraded,
        digest=digest_of(outcome.value),
    )


def digest_of(answer: Answer) -> str:
    """Return the first 12 hex digits of the SHA-256 of an answer's JSON."""
    return hashlib.sha256(answer.model_dump_json().encode()).hexdigest()[:12]
