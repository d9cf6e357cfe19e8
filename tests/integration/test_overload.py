"""The gateway itself is the bottleneck: who is refused, what is bounded, what is still answered."""

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Iterator, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from gateway.core.messages import Woke
from gateway.runtime.pressure import resident_bytes
from tests.support.gateway import Running, client, eventually, running_gateway
from tests.support.held_engine import HeldEngine, running_held_engine
from tests.support.house import AheadClock

PATH = "/v1/chat/completions"
CHAT = {"model": "raw", "messages": [{"role": "user", "content": "x"}]}
PATIENCE_S = 5.0
ROUND = 250


@asynccontextmanager
async def late_loop(pause_s: float) -> AsyncIterator[None]:
    """The loop is held up again and again while the block runs."""

    async def hold() -> None:
        while True:
            time.sleep(pause_s)  # noqa: ASYNC251 - that is the fault
            await asyncio.sleep(0.005)

    task = asyncio.create_task(hold())
    try:
        yield
    finally:
        task.cancel()


async def test_a_late_loop_keeps_the_lowest_tiers_out_and_serves_the_first() -> None:
    """Before their bodies are read; and nobody any more once it is over."""
    async with (
        running_held_engine(64) as engine,
        running_gateway(engine.url, bounds__loop_lag_s=0.05) as running,
        client(running) as http,
    ):
        async with late_loop(0.2):
            await eventually(lambda: running.gateway.doors.floor == 1, 20.0)
            low = await http.post(PATH, json=CHAT, headers={"x-fairgate-tier": "background"})
            assert low.status_code == 503
            assert low.json()["error"]["code"] == "over_capacity"
            assert int(low.headers["retry-after"]) >= 1
            flex = await http.post(PATH, json={**CHAT, "service_tier": "flex"})
            assert flex.status_code == 503
            top = asyncio.create_task(
                http.post(PATH, json=CHAT, headers={"x-fairgate-tier": "critical"})
            )
            await eventually(lambda: engine.here)
            engine.asked[0].answer(b"{}")
            assert (await top).status_code == 200
            text = (await http.get("/metrics")).text
            assert "fairgate_requests_kept_out_total 2.0" in text
        await eventually(lambda: running.gateway.doors.floor is None, 20.0)
        assert len(engine.asked) == 1
        assert running.gateway.relay.body_bytes == 0


async def test_who_must_stay_out_is_refused_before_its_body_is_read() -> None:
    """An overloaded gateway must not take in what it will throw away."""
    key = {"tenant": "t", "user": "u", "tier": "background"}
    key["key_sha256"] = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"
    async with (
        running_held_engine(1) as engine,
        running_gateway(engine.url, bounds__loop_lag_s=0, keys=[key]) as running,
    ):
        running.gateway.upkeep.pressure.level = 1
        await eventually(lambda: running.gateway.doors.floor == 3)
        port = int(running.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"POST {PATH} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer foo\r\n"
        writer.write(head.encode() + b"content-length: 1000000\r\n\r\n")
        assert (await asyncio.wait_for(reader.readline(), 5)).startswith(b"HTTP/1.1 503")
        writer.close()


async def test_all_bodies_together_are_bounded() -> None:
    """Each within its own bound, a hundred of them would still be gigabytes."""
    async with (
        running_held_engine(1) as engine,
        running_gateway(engine.url, bounds__bodies="64KiB") as running,
        client(running) as http,
    ):
        large = {**CHAT, "messages": [{"role": "user", "content": "x" * 40_000}]}
        first = asyncio.create_task(http.post(PATH, json=large))
        await eventually(lambda: engine.here)
        second = await http.post(PATH, json=large)
        assert (second.status_code, second.json()["error"]["code"]) == (503, "over_capacity")
        port = int(running.url.rpartition(":")[2])
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-length: 90000\r\n\r\n".encode())
        writer.write(b"{" * 20_000)
        await eventually(lambda: running.gateway.relay.body_bytes > 55_000)
        writer.close()
        engine.asked[0].answer(b"{}")
        assert (await first).status_code == 200
        await eventually(lambda: running.gateway.relay.body_bytes == 0)
        third = asyncio.create_task(http.post(PATH, json=large))
        await eventually(lambda: len(engine.asked) == 2)
        engine.asked[1].answer(b"{}")
        assert (await third).status_code == 200


async def test_where_many_stream_each_holds_less_for_a_slow_client() -> None:
    """A megabyte for each of ten thousand slow clients is ten gigabytes."""
    async with (
        running_held_engine(64) as engine,
        running_gateway(engine.url, bounds__stream_buffers="1MiB") as running,
        client(running) as http,
    ):
        calls = [
            asyncio.create_task(http.post(PATH, json={**CHAT, "stream": True})) for _ in range(8)
        ]
        await eventually(lambda: len(engine.here) == 8)
        only = running.gateway.fleet.client(f"127.0.0.1-{engine.port}")
        await eventually(lambda: only.buffer_bytes_max == (1 << 20) // 8)
        for call in calls:
            call.cancel()
        await eventually(lambda: only.buffer_bytes_max == 1 << 20)


class Direct:
    """Asks the gateway's application without a socket, as many as one likes at once."""

    def __init__(self, running: Running) -> None:
        self._app = running.gateway.asgi
        self.statuses: list[int] = []

    async def ask(self) -> None:
        """One request, whose client waits for the answer however long it takes."""
        body: list[MutableMapping[str, Any]] = [
            {"type": "http.request", "body": b'{"model":"raw","messages":[]}'}
        ]

        async def receive() -> MutableMapping[str, Any]:
            if not body:
                await asyncio.Event().wait()
            return body.pop()

        async def send(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                self.statuses.append(message["status"])

        scope = {"type": "http", "method": "POST", "path": PATH, "headers": []}
        await self._app(scope, receive, send)


async def _streaming(engine: HeldEngine, http: httpx.AsyncClient) -> "asyncio.Task[httpx.Response]":
    call = asyncio.create_task(http.post(PATH, json={**CHAT, "stream": True}))
    await eventually(lambda: engine.here)
    engine.asked[0].begin()
    return call


@pytest.fixture
def young_heap() -> Iterator[None]:
    """The collector looks at nothing that other tests left: a look takes as long as there is."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("young_heap")
async def test_ten_thousand_queue_timeouts_leave_nothing_behind() -> None:
    """Timed-out waiters that stay in a heap have grown other gateways for ever."""
    clock = AheadClock()
    tiers = [{"name": "only", "queue_limit": 0, "patience_s": PATIENCE_S}]
    async with (
        running_held_engine(1) as engine,
        running_gateway(
            {"url": engine.url, "max_num_seqs": 1}, clock=clock, tiers=tiers,
            bounds__waiting_per_user=ROUND,
        ) as running,
        client(running) as http,
    ):  # fmt: skip
        gateway, direct = running.gateway, Direct(running)
        first = await _streaming(engine, http)
        sizes = []
        for number in range(40):
            engine.asked[0].event()  # it has not stalled
            asks = [asyncio.create_task(direct.ask()) for _ in range(ROUND)]
            await eventually(lambda: len(gateway.scheduler.waiting) == ROUND)
            clock.lead_s += PATIENCE_S
            gateway.dispatcher.tell(Woke())
            await asyncio.gather(*asks)
            assert direct.statuses == [429] * ROUND * (number + 1)
            assert not gateway.scheduler.waiting
            del asks
            gc.collect()
            sizes.append(resident_bytes())
        assert sizes[-1] - sizes[8] < 8 << 20, sizes
        assert len(gateway.relay.lives) == 1
        engine.asked[0].finish()
        assert (await first).text.endswith("data: [DONE]\n\n")
        call = asyncio.create_task(http.post(PATH, json=CHAT))
        await eventually(lambda: len(engine.asked) == 2)
        engine.asked[1].answer(b"{}")
        assert (await call).status_code == 200
