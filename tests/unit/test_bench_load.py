"""The load generator against servers of this process, for a moment each."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from gateway.bench.load import run_load
from gateway.bench.load_spec import LoadSpec
from gateway.bench.replies import plain
from gateway.bench.upstream import Pace, start

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def answering(answer: Answer) -> AsyncIterator[int]:
    """A server with its own idea of HTTP; yields its port."""
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


async def test_load_and_engine_fit_together() -> None:
    """Every figure rests on these two: streams arrive whole, at the pace that was asked for."""
    server = await start(0, Pace())
    port = server.sockets[0].getsockname()[1]
    spec = LoadSpec(
        port=port,
        stream=True,
        connections=10,
        events=5,
        events_per_s=1_000,
        warm_s=0.1,
        window_s=0.3,
        watch=str(os.getpid()),
    )
    async with server:
        measured = await run_load(spec)
    assert measured.errors == 0
    assert measured.requests > 10
    # At most what the pace allows; a busy machine delivers less.
    assert 20 < measured.events < 1.5 * 300
    assert measured.ttft_us is not None
    assert measured.chunk_delay_us is not None
    assert 0 < measured.chunk_delay_us.p50 < 1e6
    own = measured.watched[str(os.getpid())]
    assert own.cpu_s > 0
    assert own.rss_bytes > 0


async def test_plain_requests_and_engine_fit_together() -> None:
    """The other half of the figures: requests in a closed loop."""
    server = await start(0, Pace())
    port = server.sockets[0].getsockname()[1]
    async with server:
        measured = await run_load(LoadSpec(port=port, connections=4, warm_s=0.05, window_s=0.2))
    assert measured.errors == 0
    assert measured.requests > 20
    assert measured.events == 0
    assert measured.open_connections == 4
    assert measured.latency_us is not None
    assert measured.latency_us.p50 <= measured.latency_us.p99


async def test_an_open_loop_keeps_its_rate() -> None:
    """A rate that follows the gateway's speed hides its queue."""
    server = await start(0, Pace())
    port = server.sockets[0].getsockname()[1]
    spec = LoadSpec(port=port, connections=4, requests_per_s=200, warm_s=0.05, window_s=0.3)
    async with server:
        measured = await run_load(spec)
    assert measured.errors == 0
    # At most what the rate allows; a busy machine delivers less.
    assert 10 < measured.requests < 1.5 * 60


async def test_memory_is_looked_at_with_one_client_alone() -> None:
    """From one stream to a thousand: what the first one costs is no stream's."""
    server = await start(0, Pace())
    port = server.sockets[0].getsockname()[1]
    spec = LoadSpec(
        port=port, connections=3, alone_s=0.05, warm_s=0.05, window_s=0.05, watch=str(os.getpid())
    )
    async with server:
        measured = await run_load(spec)
    usage = measured.watched[str(os.getpid())]
    assert usage.rss_bytes >= usage.rss_alone_bytes * 0.5
    assert usage.rss_alone_bytes > 0
    assert measured.open_connections == 3


async def test_a_port_where_nobody_listens_is_an_error_for_each_try() -> None:
    """A gateway that is down must not be a run without any requests and without any errors."""
    server = await start(0, Pace())
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    measured = await run_load(LoadSpec(port=port, warm_s=0.0, window_s=0.1))
    assert measured.error_kinds.keys() == {"connect"}
    assert measured.requests == 0


async def test_a_server_that_hangs_up_is_tried_again_at_intervals() -> None:
    """A pause between tries: thousands of refused connections a second are no load worth a name."""
    seen: list[bytes] = []

    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.close()

    async with answering(hang_up) as port:
        measured = await run_load(LoadSpec(port=port, warm_s=0.0, window_s=0.2))
    assert measured.error_kinds.keys() == {"connection lost"}
    assert 1 < len(seen) <= 15


async def test_a_pace_can_only_be_set_at_a_fake_engine() -> None:
    """Aimed at a real engine by mistake, a paced load must not start."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(plain("{}", status="404 Not Found"))
        writer.close()

    async with answering(refuse) as port:
        with pytest.raises(OSError, match="no fake engine"):
            await run_load(LoadSpec(port=port, events_per_s=100.0, window_s=0.1))
