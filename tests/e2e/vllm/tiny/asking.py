"""The same question to the engine and through the gateway, and what may differ in the answers."""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any

import httpx

from tests.e2e.vllm.engines import MODEL

SETTLES_S_MAX = 10.0
"""An engine drops what nobody waits for within a step."""
TRIES_MAX = 8
"""An event holds as many tokens as were made since the last one: on a busy machine the same stream
is cut in more than one way."""

_OWN = (
    # ids of answers, messages and calls; instants; what differs with nothing but the clock
    (
        re.compile(rb'"(chatcmpl|cmpl|resp|msg|fc|rs|call|chatcmpl-tool)[-_][0-9A-Za-z-]+"'),
        rb'"\1"',
    ),
    (re.compile(rb'"(created|created_at|completed_at)":\d+(\.\d+)?'), rb'"\1":0'),
)

Body = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Both:
    """A client of the engine and one of the gateway before it."""

    direct: httpx.AsyncClient
    through: httpx.AsyncClient

    async def post(self, path: str, body: Body) -> tuple[httpx.Response, httpx.Response]:
        """Ask directly, then through the gateway."""
        return await self.direct.post(path, json=body), await self.through.post(path, json=body)

    async def assert_same(self, path: str, body: Body) -> bytes:
        """Both give the same bytes, ids and instants aside; returns those of the gateway.

        Raises AssertionError with the difference of the last of `TRIES_MAX` tries.
        """
        written: set[bytes] = set()
        for _ in range(TRIES_MAX):
            direct, through = await self.post(path, body)
            assert (through.status_code, direct.status_code) == (200, 200), through.text
            assert through.headers["content-type"] == direct.headers["content-type"]
            written.add(comparable(direct.content))
            if comparable(through.content) in written:
                return through.content
        assert comparable(through.content) == comparable(direct.content)
        raise AssertionError("unreachable: the two differ")

    async def counters(self) -> tuple[dict[str, float], dict[str, float]]:
        """(the engine's, the gateway's) prompt and output tokens so far."""
        engine = (await self.direct.get("/metrics")).text
        gateway = (await self.through.get("/metrics")).text
        return (
            {
                "prompt": total(engine, "vllm:prompt_tokens_total"),
                "output": total(engine, "vllm:generation_tokens_total"),
            },
            {
                kind: total(gateway, "fairgate_tokens_total", f'kind="{kind}"')
                for kind in ("prompt", "output")
            },
        )

    async def running(self) -> tuple[float, float, int]:
        """(sequences in the engine, requests at its door, requests in the gateway's books)."""
        metrics = (await self.direct.get("/metrics")).text
        inside = total(metrics, "vllm:num_requests_running") + total(
            metrics, "vllm:num_requests_waiting"
        )
        load = (await self.direct.get("/load")).json()["server_load"]
        return inside, load, (await self.through.get("/readyz")).json()["granted"]

    async def until_nothing_runs(self) -> float:
        """Seconds until neither the engine nor the gateway holds anything.

        Raises AssertionError after `SETTLES_S_MAX`.
        """
        began_at = monotonic()
        while any(held := await self.running()):
            assert monotonic() < began_at + SETTLES_S_MAX, f"still held: {held}"
            await asyncio.sleep(0.02)
        return monotonic() - began_at


def comparable(answer: bytes) -> bytes:
    """An answer without what is new in every one."""
    for pattern, same in _OWN:
        answer = pattern.sub(same, answer)
    return answer


def total(metrics: str, name: str, label: str = "") -> float:
    """The sum of a metric's series that carry `label`."""
    lines = re.findall(rf"^{re.escape(name)}(\{{[^}}]*\}})? (\S+)$", metrics, re.MULTILINE)
    return sum(float(value) for labels, value in lines if label in labels)


def chat(**more: Any) -> dict[str, Any]:
    """A chat of eight tokens without chance."""
    messages = [{"role": "user", "content": "Write a function that parses a date."}]
    return {"model": MODEL, "messages": messages, "max_tokens": 8, "temperature": 0, **more}


def completion(**more: Any) -> dict[str, Any]:
    """A completion of eight tokens without chance."""
    return {
        "model": MODEL, "prompt": "def main(argv):", "max_tokens": 8, "temperature": 0, **more,
    }  # fmt: skip


def response(**more: Any) -> dict[str, Any]:
    """A response of eight tokens without chance."""
    return {
        "model": MODEL, "input": "Say something.", "max_output_tokens": 8, "temperature": 0, **more,
    }  # fmt: skip
