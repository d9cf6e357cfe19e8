"""Hundreds of open streams: the gateway stays quick, and nothing is left when all vanish."""

import asyncio
import time

from gateway.emulator.options import EmulatorOptions
from gateway.emulator.server import Emulator, running_emulator
from tests.support.gateway import Running, client, eventually, running_gateway
from tests.support.held_engine import running_held_engine
from tests.support.raw_client import request

STREAMS = 300
SLOTS = 200
SILENT = 10
HELD = 2_000
BATCH = 200
OPEN_WITHIN_S = 30.0
HEALTHY_WITHIN_S = 1.0
GONE_WITHIN_S = 10.0
BODY = (
    b'{"model":"emulated","messages":[{"role":"user","content":"x"}],"stream":true,'
    b'"max_tokens":4000,"user":"u%d"}'
)
Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def open_stream(running: Running, number: int, model: str = "emulated") -> Stream:
    """One of many users asks for a long stream."""
    host, port = running.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = (BODY % (number % 50)).replace(b"emulated", model.encode())
    writer.write(request("/v1/chat/completions", body=body))
    return reader, writer


async def slowest_health_s(running: Running) -> float:
    """The slowest of some answers of the health route, in time of this process alone."""
    slowest = 0.0
    async with client(running) as http:
        for _ in range(15):
            began_s = time.process_time()
            assert (await http.get("/healthz")).status_code == 200
            slowest = max(slowest, time.process_time() - began_s)
            await asyncio.sleep(0.02)
    return slowest


def all_is_free(running: Running, engine: Emulator) -> bool:
    """Neither the books nor the engine hold anything."""
    busy = engine.engine.running + engine.engine.waiting
    return running.in_flight == 0 and busy == 0 and not running.gateway.relay.open


async def heads_of(streams: list[Stream]) -> list[bytes]:
    """What nearly all have said; a few wait inside the engine, where they hear nothing yet."""
    reads = [asyncio.ensure_future(reader.readuntil(b"\n\n")) for reader, _ in streams]
    try:
        await eventually(lambda: sum(read.done() for read in reads) >= STREAMS - SILENT, 30.0)
        return [read.result() for read in reads if read.done()]
    finally:
        for read in reads:
            read.cancel()
        await asyncio.wait(reads)


async def test_all_clients_vanish_at_once_and_nothing_is_left() -> None:
    """A restarted front end drops all its streams together; every slot must be free again."""
    # Steps of 0.1 s: engine, gateway and clients share one loop here, and only one is judged.
    options = EmulatorOptions(profile="demo", speed=0.2, max_num_seqs=SLOTS)
    async with (
        running_emulator(options) as engine,
        running_gateway(
            {"url": engine.url, "max_num_seqs": SLOTS}, keepalive_after_s=0.3
        ) as running,
    ):
        streams = await asyncio.gather(*(open_stream(running, n) for n in range(STREAMS)))
        try:
            await eventually(lambda: running.in_flight == STREAMS)
            heads = await heads_of(streams)
            slowest_s = await slowest_health_s(running)
            waiting = len(running.gateway.scheduler.waiting)
        finally:
            for _, writer in streams[::2]:
                writer.transport.abort()
            for _, writer in streams[1::2]:
                writer.close()
        assert all(head.startswith(b"HTTP/1.1 200 OK\r\n") for head in heads)
        assert slowest_s < HEALTHY_WITHIN_S
        assert waiting > STREAMS - SLOTS - SILENT
        await eventually(lambda: all_is_free(running, engine), GONE_WITHIN_S)
        async with client(running) as http:
            body = {"model": "emulated", "prompt": "x", "max_tokens": 1}
            assert (await http.post("/v1/completions", json=body)).status_code == 200


async def test_operators_are_answered_beside_two_thousand_held_streams() -> None:
    """A probe that times out under load has restarted other gateways, with all their streams."""
    async with (
        running_held_engine(100_000) as engine,
        running_gateway(
            {"url": engine.url, "max_num_seqs": 100_000}, bounds__loop_lag_s=0, policy="fifo"
        ) as running,
    ):
        streams: list[Stream] = []
        try:
            for number in range(0, HELD, BATCH):
                opened = (open_stream(running, number + n, model="raw") for n in range(BATCH))
                streams += await asyncio.gather(*opened)
                await eventually(lambda: len(engine.asked) == number + BATCH, OPEN_WITHIN_S)  # noqa: B023 - read at once
                for held in engine.asked[number:]:
                    held.begin()
                for held in engine.asked:  # each goes on: else a slow machine looks stalled
                    held.event()
            await eventually(lambda: len(running.gateway.relay.open) == HELD, OPEN_WITHIN_S)
            async with client(running) as http:
                for path in ("/healthz", "/readyz", "/metrics", "/healthz", "/metrics"):
                    began_s = time.process_time()  # what other processes take is not ours
                    answer = await asyncio.wait_for(http.get(path), GONE_WITHIN_S)
                    assert answer.status_code == 200
                    assert time.process_time() - began_s < HEALTHY_WITHIN_S, path
        finally:
            for _, writer in streams:
                writer.transport.abort()
        await eventually(lambda: not running.in_flight, 30.0)
