"""Traces as a collector gets them: OpenTelemetry's own library reads what is sent."""

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from gateway.telemetry.tracing import Trace, Tracing
from tests.unit.test_metrics import record
from tests.unit.test_tracing import SAMPLED, SPAN_ID, TRACE_ID

pytest.importorskip("opentelemetry.sdk.trace", reason="SKIPPED: pip install 'fairgate[otel]'")
pytest.importorskip(
    "opentelemetry.exporter.otlp.proto.http", reason="SKIPPED: pip install 'fairgate[otel]'"
)

AT = 1_000.0


class Memory:
    """An exporter that keeps what it is given, or fails, or hangs."""

    def __init__(self) -> None:
        from opentelemetry.sdk.trace.export import SpanExportResult

        self.spans: list[Any] = []
        self.answer: Any = SpanExportResult.SUCCESS
        self.failed = SpanExportResult.FAILURE
        self.gate = threading.Event()
        self.gate.set()
        self.is_shut = False

    def export(self, spans: Sequence[Any]) -> Any:
        """Take them, once the gate is open."""
        self.gate.wait(10)
        if isinstance(self.answer, Exception):
            raise self.answer
        self.spans += spans
        return self.answer

    def shutdown(self) -> None:
        """The end."""
        self.is_shut = True


@contextmanager
def traces(exporter: Any = None, endpoint: str = "http://127.0.0.1:9") -> Iterator[Any]:
    """A writer that is closed at the end; instants are Unix time less a day or so."""
    from gateway.telemetry.otel import Traces

    found = Traces(endpoint, lambda: 0.0, version="1.2.3", exporter=exporter)
    try:
        yield found
    finally:
        found.close()


def one(writer: Any, **changes: Any) -> Trace:
    """A request that waited for a second, was with an engine, and has ended."""
    trace = Tracing(1.0, writer.add).begin({b"traceparent": SAMPLED, b"tracestate": b"a=b"})
    assert trace is not None
    trace.waits(AT)
    trace.sends(AT + 1.0, "gpu0", "r1-1")
    trace.leaves(AT + 2.0)
    fields = {"arrived_at": AT, "duration_s": 3.0, "ttft_s": 1.5, **changes}
    trace.finish(record(**fields))
    return trace


def test_the_spans_of_a_request_hang_together() -> None:
    """Gateway above, queue and engine below it, and the client above all."""
    memory = Memory()
    with traces(memory) as writer:
        trace = one(writer)
    server, queue, engine = memory.spans
    assert [each.name for each in memory.spans] == ["chat", "queue", "engine"]
    assert {f"{each.context.trace_id:032x}" for each in memory.spans} == {TRACE_ID}
    assert server.parent.span_id == int(SPAN_ID, 16)
    assert server.parent.is_remote
    assert queue.parent.span_id == engine.parent.span_id == server.context.span_id
    assert engine.context.span_id == trace.spans[1].span_id
    assert server.context.trace_state.get("a") == "b"
    assert server.start_time == queue.start_time < queue.end_time == engine.start_time
    assert engine.end_time < server.end_time == server.start_time + 3_000_000_000
    assert [event.name for event in server.events] == ["first token"]
    assert server.events[0].timestamp == server.start_time + 1_500_000_000
    assert memory.is_shut


def test_attributes_say_what_a_search_needs_and_neither_prompt_nor_user() -> None:
    """Collectors are read by more people than the request log."""
    memory = Memory()
    with traces(memory) as writer:
        one(writer, user="alice", session="s-alice")
    server, _, engine = memory.spans
    assert server.attributes["fairgate.tier"] == "standard"
    assert server.attributes["gen_ai.request.model"] == "m"
    assert server.attributes["gen_ai.usage.output_tokens"] == 20
    assert server.attributes["http.response.status_code"] == 200
    assert engine.attributes["fairgate.replica"] == "gpu0"
    assert engine.attributes["fairgate.attempt_id"] == "r1-1"
    assert "alice" not in str([dict(each.attributes) for each in memory.spans])
    assert server.resource.attributes["service.version"] == "1.2.3"


def test_a_service_is_called_as_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several fleets send to one collector."""
    memory = Memory()
    with traces(memory) as writer:
        one(writer)
    monkeypatch.setenv("OTEL_SERVICE_NAME", "fairgate-eu")
    with traces(memory) as writer:
        one(writer)
    names = [span.resource.attributes["service.name"] for span in memory.spans]
    assert (names[0], names[-1]) == ("fairgate", "fairgate-eu")


@pytest.mark.parametrize(
    ("outcome", "status", "is_error"),
    [
        ("done", 200, False), ("cancelled", 0, False), ("invalid_request", 400, False),
        ("patience_spent", 429, False), ("upstream_failed", 502, True),
        ("upstream_failed", 200, True),
    ],
)  # fmt: skip
def test_only_what_is_ours_is_an_error(outcome: str, status: int, is_error: bool) -> None:
    """Error rates by spans would count every typo of a client."""
    memory = Memory()
    with traces(memory) as writer:
        one(writer, outcome=outcome, status=status)
    server = memory.spans[0]
    assert (server.status.status_code.name == "ERROR") is is_error
    assert ("error.type" in server.attributes) is is_error


def test_a_collector_that_fails_costs_traces_and_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """It is away for an hour now and then."""
    memory = Memory()
    for answer in (memory.failed, OSError("no route")):
        memory.answer = answer
        with caplog.at_level(logging.ERROR, "fairgate.traces"), traces(memory) as writer:
            for _ in range(300):
                one(writer)
        assert writer.dropped == {"queue": 0, "collector": 300}
        assert caplog.text.count("traces cannot be sent") == 1
        caplog.clear()


def test_a_collector_that_hangs_costs_traces_and_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits to be sent is bounded."""
    from gateway.telemetry import otel

    monkeypatch.setattr(otel, "TRACES_MAX", 50)
    memory = Memory()
    memory.gate.clear()
    with traces(memory) as writer:
        for _ in range(50 + otel.BATCH_MAX + 40):
            one(writer)
        assert writer.dropped["queue"] >= 40
        memory.gate.set()
    assert memory.spans


def test_a_collector_gets_what_its_own_library_reads() -> None:
    """Bytes on a socket, as they will be."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    got: list[tuple[str, bytes]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - as the library has it
            """Nothing: only what came matters."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with traces(endpoint=f"http://127.0.0.1:{server.server_address[1]}") as writer:
            one(writer)
    finally:
        server.shutdown()
        server.server_close()
    ((path, body),) = got
    assert path == "/v1/traces"
    request = ExportTraceServiceRequest.FromString(body)
    (scope,) = request.resource_spans[0].scope_spans
    assert [span.name for span in scope.spans] == ["chat", "queue", "engine"]
    assert scope.spans[0].trace_id.hex() == TRACE_ID
