"""Clients that read nothing: they cost a slot for as long as their upstream, and never longer."""

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from gateway.emulator.options import EmulatorOptions
from gateway.emulator.server import Emulator, running_emulator
from tests.chaos.clients import RECEIVE_BYTES, ask, request_of
from tests.chaos.conftest import Say
from tests.chaos.schedule import Client
from tests.support.gateway import Running, eventually, running_gateway
from tests.support.house import settled_by

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(120)]

LAZY = Client(
    at_s=0.0,
    manner="never",
    streams=True,
    tells_usage=True,
    is_chat=True,
    tier="standard",
    user="lazy",
    words="Tell everything.",
    max_tokens=400,
    leaves_after_s=0.0,
)
LAZIES = 50
SLOTS = 4
STALL_S = 2.0
GIANT_TOKENS = 7_500
GIANT_S = 30.0
"""What the engine alone takes for a giant, several times."""


@asynccontextmanager
async def scene(**options: object) -> AsyncIterator[tuple[Emulator, Running, int]]:
    """One engine with a step of 1 ms, and a gateway."""
    engine = EmulatorOptions(profile="demo", speed=20.0, max_num_seqs=SLOTS)
    async with (
        running_emulator(engine) as emulator,
        running_gateway(emulator.url, **options) as running,  # type: ignore[arg-type]  # free keywords
    ):
        yield emulator, running, int(running.url.rpartition(":")[2])


async def lazy(port: int, client: Client, **more: object) -> socket.socket:
    """A client that has asked and reads nothing."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
    raw.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(raw, ("127.0.0.1", port))
    await loop.sock_sendall(raw, request_of(client, **more))
    return raw


async def test_a_slot_is_back_when_the_engine_is_done_not_when_the_client_has_read(
    say: Say,
) -> None:
    """A handful of clients on dead lines would hold a whole fleet."""
    async with scene() as (emulator, running, port):
        sockets = [await lazy(port, replace(LAZY, user=f"u{n % 7}")) for n in range(LAZIES)]
        loop = asyncio.get_running_loop()
        finished = emulator.engine.counters

        await eventually(lambda: finished.finished == LAZIES, 60.0)
        done_at = loop.time()
        await eventually(lambda: running.in_flight == 0)
        late_s = loop.time() - done_at
        seen = await ask(port, replace(LAZY, manner="reads", max_tokens=4), asyncio.Event())
        for raw in sockets:
            raw.close()
        await eventually(lambda: not running.gateway.relay.open)
    say(f"{LAZIES} clients that never read: slots back {late_s * 1e3:.0f} ms after the engine")
    assert seen.status == 200
    assert late_s < 1.0


async def test_who_never_reads_more_than_fits_is_cut_off(say: Say) -> None:
    """An answer that nobody takes would hold its slot until its client goes."""
    bounds = {"bounds__client_stall_s": STALL_S, "bounds__stream_buffer": 1 << 16}
    async with scene(**bounds) as (emulator, running, port):
        records = settled_by(running)
        # Each event is a kilobyte and more: ten times what all buffers on the way hold.
        more = {"logprobs": True, "top_logprobs": 20, "max_tokens": GIANT_TOKENS}
        giants = [await lazy(port, replace(LAZY, user=f"u{n}"), **more) for n in range(SLOTS)]
        await eventually(lambda: emulator.engine.running == SLOTS)
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        seen = await ask(port, replace(LAZY, manner="reads", max_tokens=4), asyncio.Event())
        waited_s = loop.time() - began_at
        await eventually(lambda: len(records) == SLOTS + 1, 30.0)
        await eventually(lambda: not (running.in_flight or running.gateway.relay.open))
        await eventually(lambda: emulator.engine.running == 0)
        for raw in giants:
            raw.close()
    outcomes = Counter(each.outcome for each in records)
    say(f"{SLOTS} giants that nobody reads: a slot after {waited_s:.1f} s, {dict(outcomes)}")
    assert seen.status == 200
    assert outcomes == {"client_stalled": SLOTS, "done": 1}
    assert waited_s < GIANT_S
