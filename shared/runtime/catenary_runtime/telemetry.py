"""Traces: one per turn, one span per stage, never one per token; context travels in the `traceparent` header.

Spans leave by OTLP when `OTEL_EXPORTER_OTLP_ENDPOINT` is set; without it the context is still passed on, and costs
little.
"""

import os
from collections.abc import Mapping

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from catenary_runtime import semconv

__all__ = ["Span", "SpanKind", "extract", "fail", "headers_of", "record", "setup", "shutdown", "start"]

Attributes = Mapping[str, str | int | float | bool]
_propagator = TraceContextTextMapPropagator()
_tracer = trace.get_tracer("catenary")
_provider: TracerProvider | None = None


def setup(service: str, instance: str, version: str) -> None:
    """Export spans when an OTLP endpoint is configured. Once per process."""
    global _provider, _tracer  # noqa: PLW0603  # OpenTelemetry's provider is one per process by design
    if _provider is not None or not (
        os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    ):
        return
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    resource = Resource.create(
        {
            "service.name": os.environ.get("OTEL_SERVICE_NAME") or f"catenary-{service}",
            "service.instance.id": instance,
            "service.version": version,
        }
    )
    _provider = TracerProvider(resource=resource)
    _provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(), schedule_delay_millis=500))
    _tracer = _provider.get_tracer("catenary", version)


def shutdown() -> None:
    """Send what is left."""
    if _provider is not None:
        _provider.shutdown()


def start(
    name: str,
    parent: Context | None = None,
    attributes: Attributes | None = None,
    *,
    kind: SpanKind = SpanKind.INTERNAL,
    at: float | None = None,
) -> Span:
    """Begin a span; `at` in Unix seconds. The caller ends it."""
    return _tracer.start_span(
        name, context=parent, kind=kind, attributes=attributes, start_time=None if at is None else int(at * 1e9)
    )


def record(name: str, parent: Context | None, began: float, ended: float, attributes: Attributes | None = None) -> None:
    """A span that is already over; times in Unix seconds."""
    span = start(name, parent, attributes, at=began)
    span.end(end_time=int(ended * 1e9))


def fail(span: Span, code: str) -> None:
    """Mark a span as failed with one of our error codes."""
    span.set_attribute(semconv.ERROR_TYPE, code)
    span.set_status(Status(StatusCode.ERROR, code))


def headers_of(span: Span) -> dict[str, str]:
    """Message headers that make receivers children of this span; empty without a trace."""
    carrier: dict[str, str] = {}
    _propagator.inject(carrier, context=trace.set_span_in_context(span))
    return carrier


def extract(headers: Mapping[str, str] | None) -> Context | None:
    """The context in message or HTTP headers, or None."""
    if not headers or "traceparent" not in headers:
        return None
    return _propagator.extract(headers)
