"""What happens, told over a socket as it happens."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from gateway.admin import event_stream, events
from gateway.core.messages import DrainAsked, ScaleAdvised
from tests.support.gateway import Running, client, eventually, running_gateway
from tests.support.raw_client import exchange
from tests.support.raw_engine import running_raw_engine

EVENTS = "/admin/v1/events"


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    """A gateway without anything behind it."""
    async with running_gateway("http://127.0.0.1:9", wait_ready=False) as gateway:
        yield gateway


@asynccontextmanager
async def listening(running: Running, **headers: str) -> AsyncIterator[AsyncIterator[Any]]:
    """The events of one connection, as (id, kind, what there is to say)."""
    async with (
        client(running) as http,
        http.stream("GET", EVENTS, headers={k.replace("_", "-"): v for k, v in headers.items()})
        as answer,
    ):  # fmt: skip
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["x-accel-buffering"] == "no"
        yield parsed(answer)


async def parsed(answer: httpx.Response) -> AsyncIterator[tuple[str | None, str, Any]]:
    """What the stream says."""
    fields: dict[str, str] = {}
    async for line in answer.aiter_lines():
        name, _, value = line.partition(": ")
        if line:
            fields[name] = value
        elif "event" in fields:
            yield fields.get("id"), fields["event"], json.loads(fields["data"])
            fields = {}


async def test_what_becomes_of_replicas_and_advice_is_heard(running: Running) -> None:
    """A console that polls shows what was; this shows what is."""
    gateway = running.gateway
    async with asyncio.timeout(10), listening(running) as heard:
        await eventually(lambda: gateway.operators.happenings.listeners)
        gateway.operators.advised(ScaleAdvised(frozenset({"m"}), 3))
        kinds = [(await anext(heard))[1:] for _ in range(1)]
        while kinds[-1][0] != "scale.advised":
            kinds.append((await anext(heard))[1:])
        said = kinds[-1][1]
        assert (said["models"], said["replicas"], said["remove"]) == (["m"], 3, None)
        assert said["at"] > 1.7e9
    await eventually(lambda: not gateway.operators.happenings.listeners)


async def test_a_drained_replica_is_told_to_who_listens_and_to_who_comes_again() -> None:
    """The one who drained it is rarely the one who watches."""
    async with (
        running_raw_engine() as engine,
        running_gateway(engine.url) as running,
        asyncio.timeout(20),
    ):
        gateway = running.gateway
        name = next(iter(gateway.scheduler.replicas))
        await eventually(lambda: gateway.operators.happenings._ring)
        async with listening(running) as heard:
            await eventually(lambda: gateway.operators.happenings.listeners)
            gateway.dispatcher.tell(DrainAsked(name))
            ident, kind, said = await anext(heard)
            while kind != "replica.draining":
                ident, kind, said = await anext(heard)
            assert said["replica"] == name
        assert ident is not None
        gateway.operators.happenings.publish("meanwhile", {})
        async with listening(running, last_event_id=ident) as heard:
            assert (await anext(heard))[1] == "meanwhile"
        async with listening(running, last_event_id="other-7") as heard:
            assert (await anext(heard))[1] == "lagged"


async def test_silence_has_a_heartbeat_without_an_id(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An id would make who comes again miss what came between."""
    monkeypatch.setattr(events, "HEARTBEAT_S", 0.05)
    async with asyncio.timeout(10), listening(running) as heard:
        while True:
            ident, kind, _ = await anext(heard)
            if kind == "heartbeat":
                break
        assert ident is None


async def test_who_reads_too_slowly_is_told_and_dropped(running: Running) -> None:
    """Its buffer is full: what it would show is no longer what is so."""
    happenings = running.gateway.operators.happenings
    async with asyncio.timeout(10), listening(running) as heard:
        await eventually(lambda: happenings.listeners)
        for _ in range(events.BUFFER + 1):
            happenings.publish("x", {})
        kinds = [kind async for _, kind, _ in heard]
        assert kinds[-1] == "lagged"
        assert len(kinds) <= 3, "what had been written when it lagged, and no more"
    assert happenings.listeners == 0


async def test_who_takes_nothing_at_all_is_left(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A terminal that was stopped keeps its connection for ever."""
    monkeypatch.setattr(event_stream, "SEND_S", 0.05)
    happenings = running.gateway.operators.happenings
    host, port = running.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port), limit=1)
    writer.write(f"GET {EVENTS} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
    await eventually(lambda: happenings.listeners)
    async with asyncio.timeout(20):
        while happenings.listeners:
            happenings.publish("x", {"text": "x" * 500_000})
            await asyncio.sleep(0.005)
    writer.transport.abort()


async def test_only_so_many_listen(running: Running) -> None:
    """Each event costs something for each of them."""
    happenings = running.gateway.operators.happenings
    listeners = [happenings.listen(None) for _ in range(events.LISTENERS_MAX)]
    asked = f"GET {EVENTS} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
    answer = await exchange(running.url, asked.encode())
    assert (answer.status, answer.json["error"]["code"]) == (503, "over_capacity")
    for listener in listeners:
        happenings.leave(listener)
