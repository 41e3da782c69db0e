"""What happened in a test: the calls that were made, and what each request got."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from django.dispatch import Signal

from singleflight_app.domain.keys import FlightKey
from singleflight_app.domain.states import Layer, Role
from singleflight_app.telemetry import signals


class Request(NamedTuple):
    """What one caller got: by which role, from which layer, of which generation; `failed`: a failure, not a value.

    Of a caller that got no answer, role and layer are None, and `reason` says why.
    """

    stage: str
    role: Role | None
    layer: Layer | None
    generation: int | None
    failed: bool
    reason: str = ""

    def __str__(self) -> str:
        """Return it as a line of an assertion's text."""
        if self.role is None or self.layer is None:
            return f"no answer: {self.reason}"
        what = "a failure" if self.failed else "a value"
        return f"{self.role.value}: {what} from {self.layer.value}, generation {self.generation}"


class Record:
    """Filled by the engine's signals, while it listens, and by each call that begins."""

    def __init__(self) -> None:
        self.calls = list[FlightKey]()
        self.requests: list[Request] = []
        self.takeovers: Counter[str] = Counter()
        self.changed: list[str] = []  #: stages whose value came back from its stored form as something else

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Listen until the block ends."""
        for signal, receiver in self._receivers():
            signal.connect(receiver, weak=False)
        try:
            yield
        finally:
            for signal, receiver in self._receivers():
                signal.disconnect(receiver)

    def told(self, stage: str) -> str:
        """Return, for an assertion's text, which calls of a stage there were, and what its requests got."""
        calls = [key.canonical or str(key) for key in self.calls if key.stage == stage]
        requests = [request for request in self.requests if request.stage == stage]
        lines = [f"  call {number}: {text}" for number, text in enumerate(calls, 1)]
        lines += [f"  request {number}: {request}" for number, request in enumerate(requests, 1)]
        return "\n".join(lines) or "  nothing asked for it"

    def _receivers(self) -> tuple[tuple[Signal, Callable[..., None]], ...]:
        return (
            (signals.request_answered, self._answered),
            (signals.wait_timed_out, self._timed_out),
            (signals.caller_refused, self._refused),
            (signals.lease_taken_over, self._taken_over),
            (signals.result_changed, self._changed),
        )

    def _answered(
        self,
        *,
        stage: str,
        role: Role,
        layer: Layer,
        generation: int | None,
        failed: bool,
        **_: Any,  # noqa: ANN401
    ) -> None:
        self.requests.append(Request(stage, role, layer, generation, failed))

    def _timed_out(self, *, stage: str, waited: float, **_: object) -> None:
        self._unanswered(stage, f"still running after {waited:.1f} s")

    def _refused(self, *, stage: str, reason: str, **_: object) -> None:
        self._unanswered(stage, f"turned away by {reason}")

    def _unanswered(self, stage: str, reason: str) -> None:
        self.requests.append(Request(stage, None, None, None, failed=True, reason=reason))

    def _taken_over(self, *, stage: str, **_: object) -> None:
        self.takeovers[stage] += 1

    def _changed(self, *, stage: str, **_: object) -> None:
        self.changed.append(stage)
