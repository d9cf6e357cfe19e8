"""The proxies of deploy/ before a real gateway: what comes through, and what must end."""

import asyncio
import itertools
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.e2e.processes import ended, serving
from tests.e2e.proxy.site import (
    Certificate,
    Recipe,
    caddy,
    certificate_in,
    haproxy,
    nginx,
    standing_before,
)
from tests.support.chaos_proxy import ChaosProxy, chaos_proxy
from tests.support.ports import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

RECIPES = [nginx, caddy, haproxy]
TOKENS = 50
STEP_S = 0.02
"""Of the emulator's usual engine: one token each."""
LEFT_S_MAX = 5.0
PARTS_MIN = 30
"""Of fifty events: a busy machine may let some of them arrive together."""


@dataclass(frozen=True)
class Site:
    """A proxy, and behind it a wire that counts, a gateway and an emulated engine."""

    url: str
    gateway: str
    wire: ChaosProxy
    certificate: Certificate

    def client(self) -> httpx.AsyncClient:
        """A client of the proxy's with connections of its own."""
        return httpx.AsyncClient(
            base_url=self.url, verify=self.certificate.trusted(), timeout=httpx.Timeout(30)
        )

    async def granted(self) -> int:
        """How many requests run, as the gateway says itself."""
        async with httpx.AsyncClient() as client:
            answer = await client.get(f"{self.gateway}/readyz")
        granted: int = answer.json()["granted"]
        return granted


@pytest.fixture(scope="module")
def gateway_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A gateway before one emulated engine."""
    engine, port = free_port(), free_port()
    command = [sys.executable, "-m", "gateway", "emulate", "--port", str(engine)]
    folder = tmp_path_factory.mktemp("gateway")
    with (
        ended(subprocess.Popen(command)),
        serving(folder, port, [f"http://127.0.0.1:{engine}"], store={"url": None}),
    ):
        yield port


@pytest.fixture(params=RECIPES, ids=lambda recipe: recipe.__name__)
async def site(
    request: pytest.FixtureRequest, tmp_path: Path, gateway_port: int
) -> AsyncIterator[Site]:
    """One of the proxies before it."""
    recipe: Recipe = request.param
    certificate = certificate_in(tmp_path)
    async with chaos_proxy(gateway_port) as wire:
        port = int(wire.url.rpartition(":")[2])
        async with standing_before(recipe, tmp_path, port, certificate) as url:
            yield Site(url, f"http://127.0.0.1:{gateway_port}", wire, certificate)


def chat(tokens: int, *, streams: bool) -> dict[str, object]:
    """The body of a chat request."""
    messages = [{"role": "user", "content": "Hello"}]
    return {"model": "emulated", "max_tokens": tokens, "stream": streams, "messages": messages}


async def test_events_arrive_as_they_are_made(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    """A proxy that gathers an answer first makes a chat feel dead, and nobody sees why."""
    arrivals, text = [], b""
    async with (
        site.client() as client,
        client.stream("POST", "/v1/chat/completions", json=chat(TOKENS, streams=True)) as answer,
    ):
        assert answer.headers["content-type"].startswith("text/event-stream")
        async for part in answer.aiter_raw():
            arrivals.append(time.monotonic())
            text += part
    assert text.endswith(b"data: [DONE]\n\n")
    pauses = [later - sooner for sooner, later in itertools.pairwise(arrivals)]
    with capsys.disabled():
        print(f"\n  {len(arrivals)} parts, longest pause {max(pauses) * 1e3:.0f} ms")  # noqa: T201 - figures
    assert len(arrivals) >= PARTS_MIN
    assert arrivals[-1] - arrivals[0] > TOKENS * STEP_S / 2
    assert max(pauses) < TOKENS * STEP_S / 2


async def test_a_client_that_leaves_is_left_by_everybody(site: Site) -> None:
    """Otherwise the engine works to the end for nobody, and others wait for its slot."""
    async with (
        site.client() as client,
        client.stream("POST", "/v1/chat/completions", json=chat(4_000, streams=True)) as answer,
    ):
        await anext(answer.aiter_raw())
        assert await site.granted() == 1
    await until_nothing_runs(site)


async def test_who_leaves_before_the_answer_began_is_left_too(site: Site) -> None:
    """A plain request is silent until its end: nothing that is written tells that nobody reads."""
    with pytest.raises(httpx.ReadTimeout):
        async with site.client() as client:
            await client.post(
                "/v1/chat/completions",
                json=chat(4_000, streams=False),
                timeout=httpx.Timeout(30, read=1.0),
            )
    await until_nothing_runs(site)


async def until_nothing_runs(site: Site) -> None:
    """Wait until the gateway has nothing at its engine; an answer would take over a minute."""
    async with asyncio.timeout(LEFT_S_MAX):
        while await site.granted():  # noqa: ASYNC110 - it is another process'
            await asyncio.sleep(0.05)


async def test_connections_to_the_gateway_are_used_again(site: Site) -> None:
    """A handshake for each request is latency, and thousands of closed sockets in the kernel."""
    for _ in range(10):
        async with site.client() as client:
            answer = await client.post("/v1/chat/completions", json=chat(1, streams=False))
        assert answer.status_code == 200, answer.text
    # The recipe's own health checks have connections of their own.
    before = site.wire.accepted
    for _ in range(10):
        async with site.client() as client:
            await client.post("/v1/chat/completions", json=chat(1, streams=False))
    assert site.wire.accepted - before < 10


async def test_a_long_prompt_and_a_refusal_pass_unchanged(site: Site) -> None:
    """A proxy's own page in place of the gateway's JSON is read by no client library."""
    body = chat(1, streams=False) | {"messages": [{"role": "user", "content": "word " * 400_000}]}
    async with site.client() as client:
        answer = await client.post("/v1/chat/completions", json=body)
        missing = await client.post("/v1/chat/completions", json=body | {"model": "none"})
    assert answer.json().get("object") == "chat.completion" or answer.json()["error"]["code"]
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "model_not_found"


async def test_operators_get_in_from_here(site: Site) -> None:
    """The console compares Host with Origin: a proxy that changes one locks its owner out."""
    async with site.client() as client:
        page = await client.get("/console")
        asked = await client.get("/admin/v1/scale", headers={"origin": site.url})
        strange = await client.get("/admin/v1/scale", headers={"origin": "https://example.org"})
    assert page.status_code in {200, 307}
    assert asked.status_code == 200, asked.text
    assert strange.status_code == 403
