"""Operators on a listener of their own: what is where, and that both end together."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from gateway.app import Gateway
from gateway.emulator.options import EmulatorOptions
from gateway.emulator.server import Emulator, running_emulator
from gateway.server import GatewayServer, server_config
from gateway.settings import load_settings
from tests.support.gateway import Running, client, eventually, running_gateway

FAST = EmulatorOptions(profile="instant")
CHAT = {"model": "emulated", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
OPERATORS = [
    "/admin/v1/replicas", "/admin/v1/overview", "/admin/v1/events", "/metrics", "/docs",
    "/openapi.json", "/console",
]  # fmt: skip
BOTH = ["/healthz", "/readyz", "/v1/models"]


@pytest.fixture
async def engine() -> AsyncIterator[Emulator]:
    """What is served."""
    async with running_emulator(FAST) as emulator:
        yield emulator


@pytest.fixture
async def running(engine: Emulator) -> AsyncIterator[Running]:
    """A gateway with two listeners."""
    async with running_gateway(engine.url, listen__admin_port=0) as gateway:
        yield gateway


async def test_users_find_nothing_of_operators_on_their_listener(running: Running) -> None:
    """Not even a door: what is not there needs no key."""
    async with client(running) as http:
        for path in (*OPERATORS, "/admin/v1/nope", "/admin"):
            for method in ("GET", "POST"):
                answer = await http.request(method, path)
                assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
        for path in BOTH:
            assert (await http.get(path)).status_code == 200
        assert (await http.post("/v1/chat/completions", json=CHAT)).status_code == 200


async def test_operators_find_theirs_and_no_engine_on_the_other(
    running: Running, engine: Emulator
) -> None:
    """A key of a user that leaked into a monitor must not generate there."""
    async with httpx.AsyncClient(base_url=running.operators_url) as http:
        for path in (*BOTH, *OPERATORS):
            if not path.endswith("events"):
                answer = await http.get(path)
                assert answer.status_code == 200, path
                assert answer.headers["date"]
        for path in ("/v1/chat/completions", "/v1/responses/resp_1", "/rerank"):
            assert (await http.post(path, json=CHAT)).status_code == 404
    assert engine.received == ()


async def test_operators_get_in_while_the_other_listener_is_full(running: Running) -> None:
    """An incident is when they are needed."""
    running.gateway.crowd.most = -100
    async with client(running) as http:
        with pytest.raises(httpx.HTTPError):
            await http.get("/healthz")
    async with httpx.AsyncClient(base_url=running.operators_url) as http:
        assert (await http.get("/admin/v1/queues")).status_code == 200


async def test_both_end_together_and_listeners_of_events_are_not_waited_for(
    engine: Emulator,
) -> None:
    """A stream that never ends by itself would hold up every deploy."""
    async with running_gateway(engine.url, listen__admin_port=0) as running:
        url = running.operators_url
        http = httpx.AsyncClient(base_url=url, timeout=20)
        async with http, http.stream("GET", "/admin/v1/events") as answer:
            assert answer.status_code == 200
            lines = answer.aiter_lines()
            assert await anext(lines) == "retry: 1000"
            running.server.should_exit = True
            async with asyncio.timeout(4):
                assert [line async for line in lines if line.startswith("event: l")] == []
        await eventually(lambda: not running.server.operators_state.connections)
    assert running.gateway.operators.happenings.listeners == 0
    async with httpx.AsyncClient(base_url=url) as http:
        with pytest.raises(httpx.ConnectError):
            await http.get("/healthz")


async def test_a_port_that_is_taken_ends_the_start(running: Running) -> None:
    """Half a gateway, of which operators see nothing, would be worse than none."""
    taken = int(running.operators_url.rpartition(":")[2])
    values = {"replicas": ["http://127.0.0.1:9"], "listen.port": 0, "listen.admin_port": taken}
    gateway = Gateway(load_settings(config=None, environ={}, overrides=values))
    config = server_config(gateway, host="127.0.0.1", port=0)
    config.loop = "none"
    with pytest.raises(SystemExit) as caught:
        await GatewayServer(config, gateway)._serve()
    assert caught.value.code == 3
