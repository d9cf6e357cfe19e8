"""Clients that read slowly or not at all: the engine's slot is not theirs, nor the memory."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.telemetry.metrics import Metrics
from gateway.telemetry.record import SettledRequest
from tests.support.gateway import Running, eventually, running_gateway
from tests.support.raw_client import request
from tests.support.raw_engine import SSE_HEAD, RawEngine, chunked, running_raw_engine

EVENT = b'data: {"choices":[{"delta":{"content":"' + b"x" * 1000 + b'"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
LAST = b"0\r\n\r\n"
KNOB_BYTES = 4096
"""Of the client's socket: what it does not read soon stands in the gateway."""


@pytest.fixture
async def engine() -> AsyncIterator[RawEngine]:
    """An engine that says what the test tells it."""
    async with running_raw_engine() as raw:
        yield raw


@asynccontextmanager
async def lazy_client(running: Running, *, streams: bool) -> AsyncIterator[socket.socket]:
    """A client that sends a request and reads nothing until it is told to."""
    host, port = running.url.removeprefix("http://").split(":")
    body = json.dumps({"model": "raw", "messages": [], "stream": streams}).encode()
    with socket.socket() as lazy:
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, KNOB_BYTES)
        lazy.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(lazy, (host, int(port)))
        await loop.sock_sendall(lazy, request("/v1/chat/completions", body=body))
        yield lazy


async def read_all(lazy: socket.socket) -> bytes:
    """At last it reads."""
    loop = asyncio.get_running_loop()
    pieces = []
    while piece := await asyncio.wait_for(loop.sock_recv(lazy, 1 << 20), 10):
        pieces.append(piece)
    return b"".join(pieces)


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> list[SettledRequest]:
    """All that is settled in this test."""
    records: list[SettledRequest] = []
    monkeypatch.setattr(Metrics, "settled", lambda self, record: records.append(record))
    return records


async def test_the_slot_is_free_when_the_engine_is_done_however_slow_the_client(
    engine: RawEngine,
) -> None:
    """What fits into the buffer is taken from the engine at its own speed: it must not idle."""
    engine.writes = [SSE_HEAD, *[chunked(EVENT * 50)] * 200, chunked(DONE), LAST]
    async with (
        running_gateway(engine.url, bounds={"stream_buffer": "64MiB"}) as running,
        lazy_client(running, streams=True) as lazy,
    ):
        await eventually(lambda: running.gateway.relay.open)
        await eventually(lambda: running.in_flight == 0)
        assert running.gateway.relay.open, "the client has not read it yet"
        answer = await read_all(lazy)
        await eventually(lambda: not running.gateway.relay.open)
    assert answer.count(b"data: {") == 200 * 50
    assert answer.endswith(b"0\r\n\r\n")


@pytest.mark.parametrize("streams", [True, False])
async def test_a_client_that_reads_nothing_is_cut_off_after_a_while(
    engine: RawEngine, streams: bool, settled: list[SettledRequest],
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """It holds a slot and memory for as long as it likes; and it was no success."""
    if streams:
        engine.writes = [SSE_HEAD, *[chunked(EVENT * 50)] * 400]
    else:
        body = b'{"x":"' + b"x" * (20 << 20) + b'"}'
        head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body)
        engine.writes = [head, body]
    limits = {"stream_buffer": "64KiB", "client_stall_s": 0.2}
    async with (
        running_gateway(engine.url, bounds=limits) as running,
        lazy_client(running, streams=streams),
    ):
        await eventually(lambda: running.gateway.relay.open)
        await eventually(lambda: running.in_flight == 0, 10.0)
        await eventually(lambda: settled)
    assert [record.outcome for record in settled] == ["client_stalled"]
    assert not caplog.records, "that is no fault of the server's"


async def test_what_a_stalled_client_makes_the_gateway_hold_is_bounded(engine: RawEngine) -> None:
    """An engine is far quicker than a modem: without a stop its whole answer would be held."""
    total = 400 * len(EVENT) * 50
    engine.writes = [SSE_HEAD, *[chunked(EVENT * 50)] * 400, chunked(DONE), LAST]
    async with (
        running_gateway(engine.url, bounds={"stream_buffer": "64KiB"}) as running,
        lazy_client(running, streams=True) as lazy,
    ):
        relay = running.gateway.relay
        await eventually(lambda: relay.open)
        (exchange,) = relay.open
        await eventually(lambda: exchange.writing_since is not None)
        await asyncio.sleep(0.2)
        taken = exchange.output_tokens
        await asyncio.sleep(0.2)
        assert exchange.output_tokens == taken, "nothing more is read from the engine"
        assert taken * len(EVENT) < total / 2
        answer = await read_all(lazy)
    assert answer.count(b"data: {") == 400 * 50
    assert answer.count(DONE) == 1
