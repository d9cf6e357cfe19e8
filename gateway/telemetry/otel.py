"""Traces as OpenTelemetry writes them, sent over HTTP by a thread of their own.

Needs the extra `otel`, and is imported only where traces are configured. A collector that is slow
or away costs traces, which are counted, and never a request. Neither prompts nor users are in them.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from queue import Empty, SimpleQueue

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags, TraceState
from opentelemetry.trace.status import Status, StatusCode

from gateway.telemetry.record import SettledRequest
from gateway.telemetry.tracing import Kind, Span, Trace

LOGGER = logging.getLogger("fairgate.traces")
TRACES_MAX = 2_000
"""Traces that wait to be sent; further ones are dropped."""
BATCH_MAX = 128
"""Traces sent at a time."""
EVERY_S = 1.0
"""How long traces are gathered."""
SEND_S = 5.0
"""How long a collector may take."""
CLOSE_S = 2.0
PATH = "/v1/traces"
NS = 1_000_000_000
SAMPLED = TraceFlags(TraceFlags.SAMPLED)
FINE = ("done", "cancelled", "client_stalled")
Finished = tuple[Trace, SettledRequest]


class Traces:
    """Where finished traces go."""

    def __init__(
        self,
        endpoint: str,
        clock: Callable[[], float],
        *,
        version: str,
        exporter: SpanExporter | None = None,
    ) -> None:
        """`endpoint`, a URL, takes OTLP over HTTP; `clock` is that of instants."""
        self._clock = clock
        self._exporter = exporter or OTLPSpanExporter(
            endpoint=endpoint if endpoint.endswith(PATH) else endpoint + PATH, timeout=SEND_S
        )
        own = {"service.name": "fairgate", "service.version": version}
        # What OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say goes before.
        self._resource = Resource(own).merge(OTELResourceDetector().detect())
        self._scope = InstrumentationScope("fairgate", version)
        self._queue: SimpleQueue[Finished | None] = SimpleQueue()
        self._is_failing = False
        self.dropped = {"queue": 0, "collector": 0}
        """Traces that were lost, since too many waited or since the collector took none."""
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)
        self._thread.start()

    def add(self, trace: Trace, record: SettledRequest) -> None:
        """Send one, soon; never waits."""
        if self._queue.qsize() >= TRACES_MAX:
            self.dropped["queue"] += 1
        else:
            self._queue.put((trace, record))

    def close(self) -> None:
        """Send what waits, for `CLOSE_S` seconds at most."""
        self._queue.put(None)
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        is_open = True
        while is_open:
            batch, is_open = self._gathered()
            if batch:
                self._send(batch)
        self._exporter.shutdown()

    def _gathered(self) -> tuple[list[Finished], bool]:
        """What came within `EVERY_S` of the first, and whether more may come."""
        batch: list[Finished] = []
        until: float | None = None
        while len(batch) < BATCH_MAX:
            wait_s = None if until is None else max(0.0, until - time.monotonic())
            try:
                found = self._queue.get(timeout=wait_s)
            except Empty:
                break
            if found is None:
                return batch, False
            batch.append(found)
            until = time.monotonic() + EVERY_S if until is None else until
        return batch, True

    def _send(self, batch: Sequence[Finished]) -> None:
        ahead_s = time.time() - self._clock()
        spans = [span for each in batch for span in self.spans_of(*each, ahead_s=ahead_s)]
        try:
            is_taken = self._exporter.export(spans) is SpanExportResult.SUCCESS
            problem = "refused"
        except Exception as error:  # whatever the library raises costs these traces only
            is_taken, problem = False, repr(error)
        if is_taken:
            self._is_failing = False
            return
        self.dropped["collector"] += len(batch)
        if not self._is_failing:
            self._is_failing = True
            LOGGER.error("traces cannot be sent, and are lost meanwhile: %s", problem)

    def spans_of(
        self, trace: Trace, record: SettledRequest, *, ahead_s: float
    ) -> Iterator[ReadableSpan]:
        """The spans of one trace; `ahead_s` turns its instants into Unix time."""
        state = TraceState.from_header([trace.state]) if trace.state else None

        def context(span_id: int, *, is_remote: bool = False) -> SpanContext:
            return SpanContext(trace.trace_id, span_id, is_remote, SAMPLED, state)

        own = context(trace.span_id)
        parent = None if trace.parent_id is None else context(trace.parent_id, is_remote=True)
        ended_at = record.arrived_at + record.duration_s
        yield ReadableSpan(
            name=record.route,
            context=own,
            parent=parent,
            resource=self._resource,
            attributes=_attributes(record),
            events=list(_events(record, ahead_s)),
            kind=SpanKind.SERVER,
            status=_status(record),
            start_time=_ns(record.arrived_at, ahead_s),
            end_time=_ns(ended_at, ahead_s),
            instrumentation_scope=self._scope,
        )
        for span in trace.spans:
            yield ReadableSpan(
                name=span.kind.value,
                context=context(span.span_id),
                parent=own,
                resource=self._resource,
                attributes=_attributes_of(span, record),
                kind=SpanKind.CLIENT if span.kind is Kind.ENGINE else SpanKind.INTERNAL,
                start_time=_ns(span.began_at, ahead_s),
                end_time=_ns(ended_at if span.ended_at is None else span.ended_at, ahead_s),
                instrumentation_scope=self._scope,
            )


def _attributes(record: SettledRequest) -> dict[str, str | int | float]:
    found: dict[str, str | int | float] = {
        "http.response.status_code": record.status,
        "gen_ai.operation.name": record.route,
        "gen_ai.request.model": record.model,
        "fairgate.request_id": record.request_id,
        "fairgate.tier": record.tier,
        "fairgate.tenant": record.tenant,
        "fairgate.outcome": record.outcome,
        "fairgate.attempts": record.attempts,
        "fairgate.queue_s": record.waited_s,
    }
    if record.usage is not None:
        found["gen_ai.usage.input_tokens"] = record.usage.prompt_tokens
        found["gen_ai.usage.output_tokens"] = record.usage.output_tokens
    if record.output_tokens_max is not None:
        found["gen_ai.request.max_tokens"] = record.output_tokens_max
    if _is_error(record):
        found["error.type"] = record.outcome
    return found


def _attributes_of(span: Span, record: SettledRequest) -> dict[str, str]:
    if span.kind is Kind.QUEUE:
        return {"fairgate.tier": record.tier}
    return {
        "gen_ai.request.model": record.model,
        "fairgate.replica": span.replica,
        "fairgate.attempt_id": span.attempt_id,
    }


def _events(record: SettledRequest, ahead_s: float) -> Iterator[Event]:
    if record.ttft_s is not None:
        yield Event("first token", timestamp=_ns(record.arrived_at + record.ttft_s, ahead_s))


def _is_error(record: SettledRequest) -> bool:
    """Whether it is the server's: what clients did wrong is no error of the span."""
    is_clients = 400 <= record.status < 500
    return record.outcome not in FINE and not is_clients


def _status(record: SettledRequest) -> Status:
    if not _is_error(record):
        return Status(StatusCode.UNSET)
    return Status(StatusCode.ERROR, record.outcome)


def _ns(instant: float, ahead_s: float) -> int:
    return int((instant + ahead_s) * NS)
