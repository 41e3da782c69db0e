"""The real SDK of OpenTelemetry, with what it records kept or said by the test."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Sampler

PREFIX = "singleflight."


class Spans:
    """What a provider of this test process has recorded; the project's own spans are begun by `span`."""

    def __init__(self, sampler: Sampler | None = None) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=sampler)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.span = self.provider.get_tracer("tests").start_as_current_span

    def all(self) -> list[ReadableSpan]:
        """Return every span that has ended, in the order of their ends."""
        return list(self._exporter.get_finished_spans())

    def named(self, name: str) -> list[ReadableSpan]:
        """Return those of one name; ours without their prefix."""
        return [span for span in self.all() if span.name in {name, PREFIX + name}]

    def one(self, name: str) -> ReadableSpan:
        """Return the only one of its name."""
        (span,) = self.named(name)
        return span


@contextmanager
def recorded(monkeypatch: pytest.MonkeyPatch, sampler: Sampler | None = None) -> Iterator[Spans]:
    """Have this process's provider record spans; a provider is set once, so a test puts its own in its place."""
    spans = Spans(sampler)
    with monkeypatch.context() as patch:
        patch.setattr(trace, "_TRACER_PROVIDER", spans.provider)
        yield spans
    spans.provider.shutdown()


def traceparent(span: ReadableSpan) -> str:
    """Return how others name a span."""
    context = span.get_span_context()
    assert context is not None
    return _named(context)


def links(span: ReadableSpan) -> list[str]:
    """Return what a span points to."""
    return [_named(link.context) for link in span.links]


def attributes(span: ReadableSpan) -> dict[str, Any]:
    """Return what a span tells, without our prefix."""
    return {name.removeprefix(PREFIX): value for name, value in (span.attributes or {}).items()}


def is_under(span: ReadableSpan, parent: ReadableSpan) -> bool:
    """Tell whether one span is another's child."""
    context = parent.get_span_context()
    return span.parent is not None and context is not None and span.parent.span_id == context.span_id


def _named(context: trace.SpanContext) -> str:
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def record(say: Callable[[dict[str, Any]], object]) -> None:
    """Set this program's provider, and tell each span that ends."""

    class Saying(SpanExporter):
        def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
            for fact in _told(spans):
                say(fact)
            return SpanExportResult.SUCCESS

    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(Saying()))
    trace.set_tracer_provider(provider)


def _told(spans: Iterable[ReadableSpan]) -> Iterator[dict[str, Any]]:
    for span in spans:
        facts = {"name": span.name, "traceparent": traceparent(span), "links": links(span)}
        yield {**facts, "attributes": attributes(span)}
