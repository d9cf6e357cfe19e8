"""A light load client on the product's own engine client, so that two cores suffice."""

import asyncio
import json
import random
import statistics
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from time import monotonic

from gateway.upstream.client import EngineClient
from gateway.upstream.replicas import ReplicaAddress
from gateway.upstream.sse import StreamMeter
from tests.e2e.vllm.engines import MODEL

POLL_S = 0.25
"""An engine's metrics cost it 5 to 10 ms each time."""


@dataclass(slots=True)
class Measured:
    """What one kind of traffic saw, in seconds and tokens."""

    ttft_s: list[float] = field(default_factory=list)
    service_s: list[float] = field(default_factory=list)
    """First token to last."""
    tokens: int = 0
    failed: int = 0

    @property
    def median_s(self) -> float:
        """Median time to the first token."""
        return statistics.median(self.ttft_s)

    def quantile_s(self, share: float) -> float:
        """Quantile of the time to the first token, 0..1."""
        ordered = sorted(self.ttft_s)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Target:
    """Somewhere to send streams to, as one user."""

    def __init__(self, url: str, *, user: str = "", tier: str = "") -> None:
        self._client = EngineClient(
            ReplicaAddress("target", url), buffer_bytes_max=1 << 20, clock=monotonic
        )
        headers = {"x-fairgate-user": user, "x-fairgate-tier": tier}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items() if value)
        self._headers = f"content-type: application/json\r\n{lines}".encode()

    async def stream(self, tokens: int, into: Measured) -> None:
        """One streamed completion of exactly `tokens` tokens."""
        body = json.dumps(
            {
                "model": MODEL,
                "prompt": "def main(argv):",
                "max_tokens": tokens,
                "ignore_eos": True,
                "temperature": 0,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
        ).encode()
        began_at = monotonic()
        meter = StreamMeter(monotonic, lambda: None)
        answer = await self._client.send(
            b"/v1/completions", body, headers=self._headers, meter=meter
        )
        try:
            while await answer.read():
                pass
        finally:
            answer.close()
        usage = meter.usage
        if answer.status != 200 or usage is None or meter.first_at is None:
            into.failed += 1
            return
        into.ttft_s.append(meter.first_at - began_at)
        into.service_s.append((meter.last_at or began_at) - meter.first_at)
        into.tokens += usage.output_tokens


async def keep_outstanding(
    targets: Sequence[Target], count: int, into: Measured, tokens: tuple[int, int] = (48, 80)
) -> None:
    """Keep `count` requests outstanding, spread over `targets`, until cancelled."""
    chance = random.Random(7)

    async def one(target: Target) -> None:
        while True:
            await target.stream(chance.randint(*tokens), into)

    async with asyncio.TaskGroup() as tasks:
        for number in range(count):
            tasks.create_task(one(targets[number % len(targets)]))


async def every(
    seconds: float, target: Target, *, tokens: int, duration_s: float, into: Measured
) -> None:
    """Send one stream each `seconds` for `duration_s`, whether or not the last one has ended."""
    async with asyncio.TaskGroup() as tasks:
        for _ in range(round(duration_s / seconds)):
            tasks.create_task(target.stream(tokens, into))
            await asyncio.sleep(seconds)


async def during(
    background: Sequence[Awaitable[None]], work: Callable[[], Awaitable[None]], settle_s: float
) -> None:
    """Run `work` while `background` runs, after `settle_s` of it."""
    running = [asyncio.ensure_future(each) for each in background]
    try:
        await asyncio.sleep(settle_s)
        await work()
    finally:
        for each in running:
            each.cancel()
        await asyncio.gather(*running, return_exceptions=True)


class QueueWatch:
    """The longest queue seen inside engines, polled from their own metrics."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = urls
        self.waiting_max = 0
        self.generated = 0.0

    async def run(self) -> None:
        """Poll until cancelled."""
        import httpx

        from gateway.upstream.dialects.vllm import parse

        async with httpx.AsyncClient(timeout=5.0) as http:
            while True:
                generated = 0.0
                for url in self._urls:
                    report = parse((await http.get(f"{url}/metrics")).content)
                    self.waiting_max = max(self.waiting_max, report.waiting or 0)
                    generated += report.generation_tokens or 0.0
                self.generated = generated
                await asyncio.sleep(POLL_S)
