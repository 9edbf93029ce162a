"""Traces: context through message headers, spans with given times, nothing exported unless asked for."""

from collections.abc import Iterator

import pytest
from catenary_runtime import telemetry
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    """What would be exported."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(telemetry, "_tracer", provider.get_tracer("test"))
    yield exporter
    provider.shutdown()


def parent_of(span: ReadableSpan) -> int | None:
    return span.parent.span_id if span.parent else None


def test_a_receiver_is_a_child_of_the_sender(spans: InMemorySpanExporter) -> None:
    sender = telemetry.start("request", attributes={"catenary.api": "chat"})
    headers = telemetry.headers_of(sender)
    assert set(headers) == {"traceparent"}
    telemetry.start("place", telemetry.extract(headers)).end()
    sender.end()
    place, request = spans.get_finished_spans()
    assert place.context is not None
    assert request.context is not None
    assert place.context.trace_id == request.context.trace_id
    assert parent_of(place) == request.context.span_id
    assert dict(request.attributes or {}) == {"catenary.api": "chat"}


def test_a_stage_that_is_over_keeps_its_times(spans: InMemorySpanExporter) -> None:
    telemetry.record("prefill", None, 1000.25, 1000.75, {"gen_ai.usage.input_tokens": 3})
    (span,) = spans.get_finished_spans()
    assert (span.name, span.start_time, span.end_time) == ("prefill", 1000_250_000_000, 1000_750_000_000)


def test_a_failure_carries_our_code(spans: InMemorySpanExporter) -> None:
    span = telemetry.start("decode")
    telemetry.fail(span, "engine_failed")
    span.end()
    (told,) = spans.get_finished_spans()
    assert told.status.status_code is StatusCode.ERROR
    assert dict(told.attributes or {}) == {"error.type": "engine_failed"}


@pytest.mark.parametrize("headers", [None, {}, {"other": "x"}])
def test_without_a_trace_there_is_no_context(headers: dict[str, str] | None) -> None:
    assert telemetry.extract(headers) is None


def test_without_an_endpoint_nothing_is_set_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", raising=False)
    telemetry.setup("worker", "w", "1")
    assert telemetry._provider is None
    telemetry.shutdown()
    assert telemetry.headers_of(telemetry.start("request")) == {}


def test_a_foreign_trace_is_passed_on_though_we_export_nothing() -> None:
    theirs = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    span = telemetry.start("request", telemetry.extract(theirs))
    assert telemetry.headers_of(span)["traceparent"].split("-")[1] == "0af7651916cd43dd8448eb211c80319c"
