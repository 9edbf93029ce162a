"""An OTLP receiver for tests: HTTP in, spans out."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Span:
    service: str
    name: str
    trace: str
    span: str
    parent: str
    began: float
    ended: float
    attributes: dict[str, Any]


@dataclass
class Receiver:
    """Spans as they come; `wait` for what is wanted."""

    url: str = ""
    spans: list[Span] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        with self._changed:
            for resource in request.resource_spans:
                service = next(a.value.string_value for a in resource.resource.attributes if a.key == "service.name")
                for scope in resource.scope_spans:
                    self.spans += [_read(service, span) for span in scope.spans]
            self._changed.notify_all()

    def trace_of(self, turn: str, wanted: set[str], within: float) -> list[Span]:
        """All spans of the trace that has this turn's `request` span, once `wanted` names, or `service name`s, are among them."""

        def there() -> bool:
            spans = self._of(turn)
            return wanted <= {span.name for span in spans} | {f"{span.service} {span.name}" for span in spans}

        with self._changed:
            self._changed.wait_for(there, within)
            return self._of(turn)

    def _of(self, turn: str) -> list[Span]:
        traces = {span.trace for span in self.spans if span.attributes.get("catenary.turn.id") == turn}
        return [span for span in self.spans if span.trace in traces]


def _read(service: str, span: Any) -> Span:
    values = {
        a.key: getattr(a.value, a.value.WhichOneof("value")) for a in span.attributes if a.value.WhichOneof("value")
    }
    return Span(
        service,
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.start_time_unix_nano / 1e9,
        span.end_time_unix_nano / 1e9,
        values,
    )


@contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:  # the standard library's name
            receiver.take(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    receiver.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
