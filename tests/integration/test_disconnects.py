"""A client that leaves, at any moment: the engine stops and the slot is back."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from gateway.emulator.options import EmulatorOptions
from gateway.emulator.server import Emulator, running_emulator
from tests.support.gateway import Running, eventually, running_gateway

ABORTED_WITHIN_S = 2.0
"""Generous for a loaded machine; the measured figure is far below (see docs/performance.md)."""
SLOW = EmulatorOptions(profile="demo", max_num_seqs=1)


@asynccontextmanager
async def raw_request(running: Running, **fields: object) -> AsyncIterator[asyncio.StreamReader]:
    """A request on a bare socket that is cut off when the block is left."""
    body = json.dumps(
        {"model": "emulated", "messages": [{"role": "user", "content": "hi"}], **fields}
    ).encode()
    host, port = running.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()
    try:
        yield reader
    finally:
        writer.close()


@pytest.fixture
async def engine() -> AsyncIterator[Emulator]:
    """One slow engine with one slot."""
    async with running_emulator(SLOW) as emulator:
        yield emulator


@pytest.fixture
async def running(engine: Emulator) -> AsyncIterator[Running]:
    """A gateway before it that knows about the one slot."""
    replica = {"url": engine.url, "max_num_seqs": 1}
    async with running_gateway(replica) as gateway:
        yield gateway


async def assert_all_is_free(engine: Emulator, running: Running) -> None:
    """Nothing is left in the engine nor in the books."""
    await eventually(
        lambda: running.in_flight == 0 and engine.engine.running + engine.engine.waiting == 0,
        ABORTED_WITHIN_S,
    )
    replica = next(iter(running.gateway.scheduler.replicas.values()))
    assert replica.ledger.sequences == 0
    assert replica.ledger.kv_tokens == 0


@pytest.mark.parametrize("streams", [True, False])
async def test_leaving_while_running_stops_the_engine(
    engine: Emulator, running: Running, streams: bool
) -> None:
    """Otherwise a GPU generates for nobody, and the user's next request waits behind it."""
    async with raw_request(running, stream=streams, max_tokens=4000):
        await eventually(lambda: engine.engine.running == 1)
    await assert_all_is_free(engine, running)


async def test_leaving_mid_stream_stops_the_engine(engine: Emulator, running: Running) -> None:
    """The commonest moment: the reader has seen enough."""
    async with raw_request(running, stream=True, max_tokens=4000) as reader:
        for _ in range(3):
            await reader.readuntil(b"\n\n")
    await assert_all_is_free(engine, running)


@pytest.mark.parametrize("streams", [True, False])
async def test_leaving_the_queue_frees_the_place(
    engine: Emulator, running: Running, streams: bool
) -> None:
    """A dead waiter would be released into a slot that somebody else needs."""
    scheduler = running.gateway.scheduler
    async with (
        raw_request(running, stream=True, max_tokens=4000),
        raw_request(running, stream=True, max_tokens=4000),
    ):
        await eventually(lambda: len(scheduler.granted) == 2)
        async with raw_request(running, stream=streams, max_tokens=4000):
            await eventually(lambda: len(scheduler.waiting) == 1)
        await eventually(lambda: not scheduler.waiting, ABORTED_WITHIN_S)
        assert len(engine.received) == 2
    await assert_all_is_free(engine, running)


async def test_leaving_before_the_engine_answers_stops_it(
    engine: Emulator, running: Running
) -> None:
    """vLLM's headers come at once, but an engine may hang before them."""
    engine.faults.inject("freeze")
    async with raw_request(running, stream=True, max_tokens=10):
        await eventually(lambda: len(engine.received) == 1)
    engine.faults.clear()
    await assert_all_is_free(engine, running)


async def test_leaving_with_a_second_request_pipelined_stops_the_first(
    engine: Emulator, running: Running
) -> None:
    """The server hears of the departure for the latest request, but the first one is running."""
    body = json.dumps({"model": "emulated", "messages": [], "prompt": "x", "max_tokens": 4000})
    host, port = running.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write((head + body).encode() * 2)
    await writer.drain()
    await eventually(lambda: engine.engine.running == 1)
    writer.close()
    await assert_all_is_free(engine, running)


async def test_a_half_sent_body_leaves_nothing_behind(engine: Emulator, running: Running) -> None:
    """A client that dies while uploading was never admitted."""
    host, port = running.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write(b'POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{"a')
    await writer.drain()
    writer.close()
    await writer.wait_closed()
    await assert_all_is_free(engine, running)
    assert engine.received == ()
