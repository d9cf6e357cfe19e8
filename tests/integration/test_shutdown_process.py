"""The same as a process: what an orchestrator sees of a gateway that it stops."""

import asyncio
import signal
from pathlib import Path

import httpx
import pytest

from tests.support.child import child
from tests.support.gateway import eventually
from tests.support.held_engine import running_held_engine

PATH = "/v1/chat/completions"
STREAM = {"model": "raw", "messages": [{"role": "user", "content": "x"}], "stream": True}


async def test_it_finishes_what_runs_and_ends_with_status_0(tmp_path: Path) -> None:
    """Any other status looks like a crash, and is restarted or alerted on."""
    async with running_held_engine(4) as engine, httpx.AsyncClient(timeout=20) as http:
        shutdown = {"lag_s": 0.3, "limit_s": 30}
        async with child(tmp_path, engine.url, shutdown=shutdown) as gateway:
            call = asyncio.create_task(http.post(gateway.url + PATH, json=STREAM))
            await eventually(lambda: engine.here)
            engine.asked[0].begin()
            engine.asked[0].event()
            gateway.signal(signal.SIGTERM)
            await asyncio.sleep(0.1)
            ready = await http.get(gateway.url + "/readyz")
            assert (ready.status_code, ready.json()["reason"]) == (503, "shutting down")
            await asyncio.sleep(0.4)
            late = await http.post(gateway.url + PATH, json=STREAM)
            assert (late.status_code, late.json()["error"]["code"]) == (503, "draining")
            engine.asked[0].finish()
            assert (await call).text.endswith("data: [DONE]\n\n")
            assert await gateway.status() == 0
            assert "Traceback" not in gateway.said


async def test_at_the_limit_it_says_so_and_ends_with_status_0(tmp_path: Path) -> None:
    """It did what it was told to: the limit is part of that."""
    async with running_held_engine(4) as engine, httpx.AsyncClient(timeout=20) as http:
        async with child(tmp_path, engine.url, shutdown={"lag_s": 0, "limit_s": 0.3}) as gateway:
            call = asyncio.create_task(http.post(gateway.url + PATH, json=STREAM))
            await eventually(lambda: engine.here)
            engine.asked[0].begin()
            engine.asked[0].event()
            gateway.signal(signal.SIGTERM)
            answer = await call
            assert answer.text.count('"draining"') == 1
            assert answer.text.endswith("data: [DONE]\n\n")
            assert await gateway.status() == 0
            assert "1 requests are ended at the limit" in gateway.said
            assert "Traceback" not in gateway.said
        await asyncio.wait_for(engine.asked[0].is_left.wait(), 5)


@pytest.mark.parametrize(
    "numbers",
    [(signal.SIGTERM, signal.SIGTERM), (signal.SIGINT, signal.SIGINT),
     (signal.SIGTERM, signal.SIGINT)],
)  # fmt: skip
async def test_a_second_signal_ends_it_at_once(tmp_path: Path, numbers: tuple[int, int]) -> None:
    """With a status that says that it was not allowed to finish."""
    async with running_held_engine(4) as engine, httpx.AsyncClient(timeout=20) as http:
        async with child(tmp_path, engine.url, shutdown={"lag_s": 60}) as gateway:
            call = asyncio.create_task(http.post(gateway.url + PATH, json=STREAM))
            await eventually(lambda: engine.here)
            gateway.signal(numbers[0])
            await asyncio.sleep(0.3)
            assert gateway.process.returncode is None
            gateway.signal(numbers[1])
            assert await asyncio.wait_for(gateway.status(), 3) == 128 + numbers[1]
            with pytest.raises(httpx.TransportError):
                await call
            assert "Traceback" not in gateway.said
        await asyncio.wait_for(engine.asked[0].is_left.wait(), 5)


async def test_a_signal_before_anything_was_served_ends_it_too(tmp_path: Path) -> None:
    """A deployment that is rolled back while it starts."""
    async with child(tmp_path, "http://127.0.0.1:9", ready=False) as gateway:
        gateway.signal(signal.SIGINT)
        assert await gateway.status() == 0
