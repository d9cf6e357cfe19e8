"""The load generator: closed-loop clients that time every request, first event and chunk.

It decides when the window begins and ends, and knows nothing of what stands between it and the
engine. One process: `python -m gateway.bench.load --port N ...`; one line of JSON on stdout.
"""

import asyncio
import gc
import re
import sys
import time
from array import array
from functools import partial
from typing import cast

import httptools
import uvloop

from gateway.bench.load_spec import LoadResult, LoadSpec
from gateway.bench.process import TreeSample, Usage, machine_busy_s, sample_tree
from gateway.bench.quantiles import Quantiles
from gateway.bench.replies import STAMP_DIGITS

STAMP = re.compile(rb"@T(\d{%d})@" % STAMP_DIGITS)
CARRY_BYTES = STAMP_DIGITS + 2
"""One less than a stamp: what is carried over can complete a stamp but not hold a whole one."""
DONE = b"[DONE]"
RECONNECT_S = 0.02
ERROR_KINDS_MAX = 16
US_PER_NS = 1e-3


class Tally:
    """What the clients of one run have seen since the window began."""

    __slots__ = (
        "chunk_delay_ns",
        "error_kinds",
        "in_flight",
        "is_recording",
        "is_stopping",
        "latency_ns",
        "ttft_ns",
    )

    def __init__(self) -> None:
        self.latency_ns = array("q")
        self.ttft_ns = array("q")
        self.chunk_delay_ns = array("q")
        self.error_kinds: dict[str, int] = {}
        self.in_flight = 0
        self.is_recording = False
        self.is_stopping = False

    def count_error(self, kind: str) -> None:
        """Count one failed request; kinds beyond `ERROR_KINDS_MAX` are counted together."""
        if self.is_recording:
            if kind not in self.error_kinds and len(self.error_kinds) >= ERROR_KINDS_MAX:
                kind = "other"
            self.error_kinds[kind] = self.error_kinds.get(kind, 0) + 1


class Client(asyncio.Protocol):
    """One keep-alive connection that sends its request again whenever a response is complete."""

    __slots__ = (
        "_arrived_ns",
        "_carry",
        "_events",
        "_is_waiting",
        "_parser",
        "_request",
        "_sent_ns",
        "_spec",
        "_tally",
        "_transport",
        "closed",
    )

    def __init__(self, spec: LoadSpec, request: bytes, tally: Tally) -> None:
        self._spec = spec
        self._request = request
        self._tally = tally
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._carry = b""
        self._events = 0
        self._is_waiting = False
        self._sent_ns = 0
        self._arrived_ns = 0
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected: send the first request."""
        self._transport = cast("asyncio.Transport", transport)
        self._send()

    def data_received(self, data: bytes) -> None:
        """Bytes of a response."""
        self._arrived_ns = time.monotonic_ns()
        if self._parser is None:
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._fail("not http")

    def connection_lost(self, exc: Exception | None) -> None:
        """An error only when a response was under way."""
        self._fail("connection lost")
        self._transport = None
        self._parser = None
        if not self.closed.done():
            self.closed.set_result(None)

    def on_body(self, body: bytes) -> None:
        """Called by the parser."""
        if not self._spec.stream:
            return
        seen = self._carry + body
        stamps = STAMP.findall(seen)
        if stamps:
            tally = self._tally
            now_ns = self._arrived_ns
            if tally.is_recording:
                for stamp in stamps:
                    tally.chunk_delay_ns.append(now_ns - int(stamp))
                if not self._events:
                    tally.ttft_ns.append(now_ns - self._sent_ns)
            self._events += len(stamps)
        self._carry = seen[-CARRY_BYTES:]

    def on_message_complete(self) -> None:
        """Called by the parser: record the response and send the next request."""
        assert self._parser is not None
        if not self._is_waiting:
            return
        status = self._parser.get_status_code()
        if status != 200:
            self._fail(f"status {status}")
        elif self._spec.stream and DONE not in self._carry:
            self._fail("no [DONE]")
        elif self._spec.stream and self._events != self._spec.events:
            # An error told within a stream of status 200 looks like this.
            self._fail("events missing")
        else:
            self._complete()
            if self._parser.should_keep_alive():
                self._send()
            else:
                self._close()

    def _send(self) -> None:
        if self._tally.is_stopping or self._transport is None:
            self._close()
            return
        self._carry = b""
        self._events = 0
        self._is_waiting = True
        self._tally.in_flight += 1
        self._sent_ns = time.monotonic_ns()
        self._transport.write(self._request)

    def _complete(self) -> None:
        self._is_waiting = False
        self._tally.in_flight -= 1
        if self._tally.is_recording:
            self._tally.latency_ns.append(self._arrived_ns - self._sent_ns)

    def _fail(self, kind: str) -> None:
        if self._is_waiting:
            self._is_waiting = False
            self._tally.in_flight -= 1
            self._tally.count_error(kind)
        self._close()

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


async def run_load(spec: LoadSpec) -> LoadResult:
    """Run one load to its end and report its window; raises OSError when pace cannot be set."""
    if spec.interval_us:
        await _set_pace(spec.upstream_port or spec.port, spec.interval_us)
    at_rest = _sample(spec)
    tally = Tally()
    async with asyncio.TaskGroup() as group:
        clients = [
            group.create_task(_keep_connected(spec, tally, spec.ramp_s * i / spec.connections))
            for i in range(spec.connections)
        ]
        await asyncio.sleep(spec.ramp_s + spec.warm_s)
        result = await _watch_window(spec, tally, at_rest)
        for client in clients:
            client.cancel()
    return result


async def _watch_window(spec: LoadSpec, tally: Tally, at_rest: dict[int, TreeSample]) -> LoadResult:
    before = _sample(spec)
    machine_cpu_s = machine_busy_s()
    own_cpu_s, began_s = time.process_time(), time.monotonic()
    tally.is_recording = True
    await asyncio.sleep(spec.window_s)
    tally.is_recording = False
    tally.is_stopping = True
    elapsed_s, own_cpu_s = time.monotonic() - began_s, time.process_time() - own_cpu_s
    machine_cpu_s = machine_busy_s() - machine_cpu_s
    after = _sample(spec)
    return LoadResult(
        elapsed_s=elapsed_s,
        requests=len(tally.latency_ns),
        events=len(tally.chunk_delay_ns),
        errors=sum(tally.error_kinds.values()),
        error_kinds=tally.error_kinds,
        open_connections=tally.in_flight,
        latency_us=Quantiles.of(tally.latency_ns, scale=US_PER_NS),
        ttft_us=Quantiles.of(tally.ttft_ns, scale=US_PER_NS),
        chunk_delay_us=Quantiles.of(tally.chunk_delay_ns, scale=US_PER_NS),
        own_cpu_s=own_cpu_s,
        machine_cpu_s=machine_cpu_s,
        watched={
            str(pid): Usage(
                cpu_s=after[pid].cpu_s - before[pid].cpu_s,
                rss_at_rest_bytes=at_rest[pid].rss_bytes,
                rss_bytes=after[pid].rss_bytes,
            )
            for pid in spec.watched_pids
        },
    )


def _sample(spec: LoadSpec) -> dict[int, TreeSample]:
    return {pid: sample_tree(pid) for pid in spec.watched_pids}


async def _keep_connected(spec: LoadSpec, tally: Tally, start_after_s: float) -> None:
    """Hold one connection open until the run stops, a short pause after each that ended."""
    await asyncio.sleep(start_after_s)
    loop = asyncio.get_running_loop()
    make = partial(Client, spec, spec.request_bytes(), tally)
    while not tally.is_stopping:
        try:
            transport, client = await loop.create_connection(make, "127.0.0.1", spec.port)
        except OSError:
            tally.count_error("connect")
        else:
            try:
                await client.closed
            finally:
                transport.abort()
        await asyncio.sleep(RECONNECT_S)


async def _set_pace(port: int, interval_us: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(
            f"POST /bench/pace?interval_us={interval_us} HTTP/1.1\r\nhost: 127.0.0.1\r\n"
            "content-length: 0\r\n\r\n".encode()
        )
        status_line = await reader.readline()
        if b" 200 " not in status_line:
            raise OSError(f"port {port} is no fake engine: it answered {status_line!r}")
    finally:
        writer.close()


def main() -> None:
    """Run the load of the command line and print its result."""
    spec = LoadSpec.from_arguments(sys.argv[1:])
    # A collection would be measured as the gateway's jitter; a run is too short to need one.
    gc.disable()
    sys.stdout.write(uvloop.run(run_load(spec)).to_json() + "\n")


if __name__ == "__main__":
    main()
