"""The load generator: clients that time every request, first event and chunk.

It decides when the window begins and ends, and knows nothing of what stands between it and the
engine. One process: `python -m gateway.bench.load --port N ...`; one line of JSON on stdout.
"""

import asyncio
import gc
import sys
import time
from functools import partial

import uvloop

from gateway.bench.arrivals import Arrivals, ClosedLoop, OpenLoop
from gateway.bench.clients import Client, Framing
from gateway.bench.load_spec import LoadResult, LoadSpec
from gateway.bench.process import TreeSample, Usage, machine_busy_s, sample_tree
from gateway.bench.quantiles import Quantiles
from gateway.bench.tally import Tally

RECONNECT_S = 0.02
US_PER_NS = 1e-3
CHECKED_CLIENTS = 1
"""How many have the framing of their answers parsed; more would cost the core they share."""

Samples = dict[int, TreeSample]


async def run_load(spec: LoadSpec) -> LoadResult:
    """Run one load to its end and report its window; raises OSError when pace cannot be set."""
    if spec.interval_us:
        await _set_pace(spec.upstream_port or spec.port, spec)
    at_rest = _sample(spec)
    tally = Tally()
    open_loop = OpenLoop(spec.requests_per_s, tally) if spec.requests_per_s else None
    arrivals = open_loop or ClosedLoop()
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(_keep_connected(spec, tally, arrivals, index=index))
            for index in range(spec.connections)
        ]
        if open_loop is not None:
            tasks.append(group.create_task(open_loop.run()))
        await asyncio.sleep(spec.alone_s)
        alone = _sample(spec) if spec.alone_s else at_rest
        await asyncio.sleep(spec.ramp_s + spec.warm_s)
        result = await _watch_window(spec, tally, at_rest, alone)
        for task in tasks:
            task.cancel()
    return result


async def _watch_window(
    spec: LoadSpec, tally: Tally, at_rest: Samples, alone: Samples
) -> LoadResult:
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
        events=tally.events,
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
                rss_alone_bytes=alone[pid].rss_bytes,
                rss_bytes=after[pid].rss_bytes,
            )
            for pid in spec.watched_pids
        },
    )


def _sample(spec: LoadSpec) -> Samples:
    return {pid: sample_tree(pid) for pid in spec.watched_pids}


async def _keep_connected(spec: LoadSpec, tally: Tally, arrivals: Arrivals, *, index: int) -> None:
    """Hold one connection open until the run stops, a short pause after each that ended."""
    if index:
        await asyncio.sleep(spec.alone_s + spec.ramp_s * index / spec.connections)
    loop = asyncio.get_running_loop()
    request = spec.request_bytes()
    while not tally.is_stopping:
        framing = Framing() if index < CHECKED_CLIENTS else None
        make = partial(Client, spec, tally, arrivals, request=request, framing=framing)
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


async def _set_pace(port: int, spec: LoadSpec) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    query = f"interval_us={spec.interval_us}&events_per_write={spec.events_per_write}"
    try:
        writer.write(
            f"POST /bench/pace?{query} HTTP/1.1\r\nhost: 127.0.0.1\r\n"
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
