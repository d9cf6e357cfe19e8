"""Where settled requests are written, line by line and as traces, as the configuration has it."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Protocol

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric

from gateway.telemetry.log import RequestLog
from gateway.telemetry.record import SettledRequest
from gateway.telemetry.tracing import Trace, Tracing

LOGGER = logging.getLogger("fairgate.reload")


class TraceWriter(Protocol):
    """Where traces go."""

    dropped: dict[str, int]
    """Those that were lost, by reason."""

    def add(self, trace: Trace, record: SettledRequest) -> None:
        """Write one, soon; never waits."""

    def close(self) -> None:
        """Write what waits, for a moment at most."""


class Writers:
    """The request log and the traces of one gateway, each there or not."""

    def __init__(self, clock: Callable[[], float], version: str) -> None:
        """`clock` is that of the records' instants."""
        self._clock = clock
        self._version = version
        self.log: RequestLog | None = None
        self._traces: TraceWriter | None = None
        self._traced_as: tuple[str | None, float] = (None, 0.0)

    def open_log(self, target: str | None) -> None:
        """Write lines there from now on, None: nowhere; a file that is open is opened anew."""
        known = self.log
        if known is not None and known.target == target:
            known.reopen()
            return
        fresh = None
        if target is not None:
            try:
                fresh = RequestLog(target, self._clock)
            except OSError as error:
                LOGGER.error("the request log cannot be opened, and is not written: %s", error)
        self.log = fresh
        _close(known)

    def open_traces(
        self, endpoint: str | None, share: float, tracing: Tracing | None
    ) -> Tracing | None:
        """Which requests are to be recorded from now on, where `tracing` was so far.

        `endpoint` is a collector's, None: no request; `share`, 0..1, is of those whose clients do
        not say. What waits to be sent is sent in any case.
        """
        if (endpoint, share) == self._traced_as:
            return tracing
        known, self._traces, self._traced_as = self._traces, None, (endpoint, share)
        _close(known)
        if endpoint is None:
            return None
        # The library takes a second to import: only who uses it pays.
        from gateway.telemetry.otel import Traces  # noqa: PLC0415 - an extra, wanted only here

        self._traces = Traces(endpoint, self._clock, version=self._version)
        return Tracing(share, self._traces.add)

    async def close(self) -> None:
        """Write what waits, for some seconds at most."""
        for each in (self.log, self._traces):
            if each is not None:
                await asyncio.to_thread(each.close)

    def families(self) -> Iterator[Metric]:
        """What was lost, of those that are there."""
        if self.log is not None:
            yield _lost(
                "request_log_dropped_lines",
                "Lines of the request log that were lost: too many waited, or the disk took none.",
                self.log.dropped,
            )
        if self._traces is not None:
            yield _lost(
                "traces_dropped",
                "Traces that were lost: too many waited, or the collector took none.",
                self._traces.dropped,
            )


def _lost(name: str, text: str, dropped: dict[str, int]) -> Metric:
    lost = CounterMetricFamily(f"fairgate_{name}", text, labels=("reason",))
    for reason, count in dropped.items():
        lost.add_metric((reason,), count)
    return lost


def _close(known: RequestLog | TraceWriter | None) -> None:
    """Elsewhere: it may take seconds."""
    if known is not None:
        asyncio.get_running_loop().run_in_executor(None, known.close)
