"""Unequal replicas: work goes where it is done."""

import asyncio
from contextlib import suppress

import httpx

from gateway.emulator.options import EmulatorOptions
from gateway.emulator.server import running_emulator
from tests.support.gateway import client, running_gateway

OUTSTANDING = 24
WARM_UP_S = 2.0
"""Until both are known to be there and their slots are full."""
RUN_S = 4.0
TOKENS = 60
"""Answers of 2.4 and 1.2 s: what a busy machine adds to each hand-over is small beside them."""
BODY = {
    "model": "emulated",
    "messages": [{"role": "user", "content": "hi"}],
    "max_tokens": TOKENS,
    "stream": True,
}


async def test_a_replica_twice_as_fast_gets_twice_the_work() -> None:
    """A fixed split would leave the fast one idle and let the slow one's users wait."""
    # Steps of 40 and 20 ms.
    slow = EmulatorOptions(profile="demo", speed=0.5, max_num_seqs=4)
    fast = EmulatorOptions(profile="demo", speed=1.0, max_num_seqs=4)
    async with (
        running_emulator(slow) as one,
        running_emulator(fast) as other,
        running_gateway(one.url, other.url) as running,
        client(running) as http,
    ):

        async def keep_asking() -> None:
            while True:
                await http.post("/v1/chat/completions", json=BODY)

        tasks = [asyncio.create_task(keep_asking()) for _ in range(OUTSTANDING)]
        await asyncio.sleep(WARM_UP_S)
        before = [engine.engine.counters.generation_tokens for engine in (one, other)]
        await asyncio.sleep(RUN_S)
        done = [engine.engine.counters.generation_tokens for engine in (one, other)]
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError, httpx.HTTPError):
                await task
    assert 1.6 < (done[1] - before[1]) / (done[0] - before[0]) < 2.4
