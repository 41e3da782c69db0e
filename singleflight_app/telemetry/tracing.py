"""Spans of OpenTelemetry, where the project has its API package and a tracer provider.

Attributes are stage, role, layer, flight id, generation and status: never a key, a scope, an argument or a result.
An error is told by its type alone, since its message may hold an answer. What a provider of the project raises is
logged and harms no caller.
"""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from opentelemetry import trace
from opentelemetry.trace import Span, SpanContext, StatusCode, TraceFlags, Tracer

from singleflight_app.domain.spans import NO_SPAN, NoSpan

logger = logging.getLogger("singleflight_app")

CLAIM, CALL, WAIT, SETTLE = (f"singleflight.{name}" for name in ("claim", "call", "wait", "settle"))
_VERSION = "00"
_NOBODY = (trace.ProxyTracerProvider, trace.NoOpTracerProvider)  #: providers that stand for none
_PARTS = [2, 32, 16, 2]  #: hexadecimal digits of a traceparent's parts


class OpenTelemetrySpan:
    """One span of the project's tracer; `trace_parent` is empty when it is not sampled."""

    __slots__ = ("_began_at", "_span", "_stage", "_tracer", "trace_parent")

    def __init__(self, tracer: Tracer, name: str, stage: str) -> None:
        self._tracer, self._stage, self._began_at = tracer, stage, time.time_ns()
        self._span = _started(tracer, name, stage, self._began_at)
        self.trace_parent = _trace_parent(self._span)

    def tell(
        self,
        *,
        role: str | None = None,
        layer: str | None = None,
        flight_id: int | None = None,
        generation: int | None = None,
        status: str | None = None,
    ) -> None:
        """Set the attributes that are known."""
        facts = {"role": role, "layer": layer, "flight_id": flight_id, "generation": generation, "status": status}
        known = {f"singleflight.{name}": _plain(fact) for name, fact in facts.items() if fact is not None}
        with _harmless():
            self._span.set_attributes(known)

    def link(self, trace_parent: str) -> None:
        """Point to the call that answers, in whatever trace it is; what is no traceparent points to nothing."""
        context = _context_of(trace_parent)
        if context is not None:
            with _harmless():
                self._span.add_link(context)

    def become_call(self) -> None:
        """Go on as the call's span, with the claim that was granted as a part of it.

        The row had to be told the call's span before it was known who calls.
        """
        with _harmless():
            around = trace.set_span_in_context(self._span)
            claim = self._tracer.start_span(CLAIM, around, attributes=_of(self._stage), start_time=self._began_at)
            claim.end()
            self._span.update_name(CALL)

    @contextmanager
    def current(self) -> Iterator[None]:
        """Have the spans that begin in the block under this one."""
        with trace.use_span(self._span, record_exception=False, set_status_on_exception=False):
            yield

    def end(self, error: BaseException | None = None) -> None:
        """End it, with the type of an error; a second end changes nothing."""
        with _harmless():
            if not self._span.is_recording():
                return
            if error is not None:
                self._span.set_status(StatusCode.ERROR)
                self._span.set_attribute("error.type", f"{type(error).__module__}.{type(error).__qualname__}")
            self._span.end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End it."""
        self.end(error)


class OpenTelemetry:
    """Begins spans of the project's tracer, from when the project has set a provider on."""

    def __init__(self) -> None:
        self._tracer: Tracer | None = None

    @property
    def is_on(self) -> bool:
        """Whether there is a provider."""
        return self._found() is not None

    def claim(self, stage: str) -> OpenTelemetrySpan | NoSpan:
        """Begin the span of a claim; it becomes the call's if the claim is granted."""
        return self._begin(CLAIM, stage)

    def call(self, stage: str) -> OpenTelemetrySpan | NoSpan:
        """Begin the span of a call that nobody granted (degraded)."""
        return self._begin(CALL, stage)

    def wait(self, stage: str) -> OpenTelemetrySpan | NoSpan:
        """Begin the span of a follower's wait."""
        return self._begin(WAIT, stage)

    def settle(self, stage: str) -> OpenTelemetrySpan | NoSpan:
        """Begin the span of writing an end."""
        return self._begin(SETTLE, stage)

    def _begin(self, name: str, stage: str) -> OpenTelemetrySpan | NoSpan:
        tracer = self._tracer or self._found()
        if tracer is not None:
            with _harmless():
                return OpenTelemetrySpan(tracer, name, stage)
        return NO_SPAN

    def _found(self) -> Tracer | None:
        """Return the tracer; a provider is set once and never replaced, so it is looked for only until then."""
        if self._tracer is None:
            try:
                provider = trace.get_tracer_provider()
                if isinstance(provider, _NOBODY):
                    return None
                self._tracer = provider.get_tracer("singleflight_app")
            except Exception:
                logger.exception("there is no tracer")
        return self._tracer


@contextmanager
def _harmless() -> Iterator[None]:
    """Log what a sampler or a processor of the project raises; a paid answer must not be lost over a trace."""
    try:
        yield
    except Exception:
        logger.exception("the trace lost a span")


def _of(stage: str) -> dict[str, str]:
    return {"singleflight.stage": stage}


def _started(tracer: Tracer, name: str, stage: str, began_at: int) -> Span:
    return tracer.start_span(name, attributes=_of(stage), start_time=began_at)


def _plain(fact: str | int) -> str | int:
    """Return an enum's value as the plain string that exporters know."""
    return fact if isinstance(fact, int) else str(fact)


def _trace_parent(span: Span) -> str:
    context = span.get_span_context()
    if not (span.is_recording() and context.trace_flags.sampled):
        return ""
    return f"{_VERSION}-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def _context_of(trace_parent: str) -> SpanContext | None:
    parts = trace_parent.split("-")
    if [len(part) for part in parts] != _PARTS:
        return None
    try:
        _, trace_id, span_id, flags = (int(part, 16) for part in parts)
    except ValueError:
        return None
    context = SpanContext(trace_id, span_id, is_remote=True, trace_flags=TraceFlags(flags))
    return context if context.is_valid else None
