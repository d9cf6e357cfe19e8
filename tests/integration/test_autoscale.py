"""Advice that is followed: over real engines that sleep, a real store, and a real receiver."""

import asyncio
import hmac
import json
from collections.abc import AsyncIterator
from hashlib import sha256
from typing import Any

import pytest

from gateway.admin.advice_webhook import SIGNATURE, TIMESTAMP
from gateway.emulator.faults import FaultKind
from gateway.emulator.options import EmulatorOptions
from gateway.emulator.server import Emulator, running_emulator
from tests.support.gateway import eventually, running_gateway
from tests.support.operating import Operated, operated

ENGINE = EmulatorOptions(profile="instant", sleep_mode=True, max_num_seqs=4)
MODEL = "emulated"
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
WITHIN_S = 30.0
SECRET = "hook-secret"
QUICK: dict[str, Any] = {"scaling__min": 1, "scaling__hold_s": 0.0, "scaling__cooldown_s": 0.0}
"""Advice that follows the load at once."""


class Receiver:
    """Whoever is told of advice."""

    def __init__(self) -> None:
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One message a connection."""
        lines = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")[1:]
        headers = {name: value for name, _, value in (line.partition(": ") for line in lines)}
        self.got.append((headers, await reader.readexactly(int(headers["content-length"]))))
        writer.write(b"HTTP/1.1 204 No Content\r\nconnection: close\r\n\r\n")
        writer.close()


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    """It listens."""
    found = Receiver()
    server = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    async with server:
        found.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/advice"
        yield found


def autoscale(hook: str | None = None, **section: Any) -> dict[str, Any]:
    """Settings of it, quick enough for a test."""
    found: dict[str, Any] = {"drain": True, "drain_after_s": 0.5, **section}
    if hook is not None:
        found["webhook"] = {"url": hook, "secret_env": "HOOK_SECRET"}
    return {"autoscale": found, **QUICK}


def is_asleep(engine: Emulator) -> bool:
    """Whether it sleeps."""
    return engine.faults.is_active(FaultKind.ASLEEP)


async def replicas(at: Operated) -> dict[str, bool]:
    """By name, who is drained."""
    told = await at.call("GET", "/replicas", 200)
    return {each["name"]: each["is_drained"] for each in told["data"]}


async def test_an_idle_fleet_shrinks_sleeps_and_comes_back_for_work(receiver: Receiver) -> None:
    """A night costs one engine, and the first hour of work finds all of them awake."""
    async with running_emulator(ENGINE) as one, running_emulator(ENGINE) as two:
        options = autoscale(receiver.url, sleep=True)
        environ = {"HOOK_SECRET": SECRET}
        async with operated(one.url, two.url, environ=environ, **options) as at:
            await eventually(lambda: is_asleep(one) or is_asleep(two), WITHIN_S)
            drained = await replicas(at)
            assert sorted(drained.values()) == [False, True], "never below the minimum"
            told = await at.call("GET", f"/scale/target?model={MODEL}", 200)
            assert (told["target"], told["usable"]) == (1, 1)
            answer = await at.http.post("/v1/chat/completions", json=CHAT)
            assert answer.status_code == 200, "who is left answers"
            entries = (await at.call("GET", "/audit?kind=replica", 200))["data"]
            assert entries[0]["who"] == "autoscale"
            await _grow(at)
            await eventually(lambda: not (is_asleep(one) or is_asleep(two)), WITHIN_S)
            pool = at.running.gateway.scheduler.pools[0]
            await eventually(lambda: all(each.is_usable for each in pool.replicas.values()))
            metrics = (await at.admin.get("/metrics")).text
            assert 'fairgate_autoscale_deeds_total{deed="sleep",outcome="done"} 1.0' in metrics
            await eventually(lambda: len(receiver.got) >= 2, WITHIN_S)
    headers, body = receiver.got[0]
    signed = hmac.new(SECRET.encode(), headers[TIMESTAMP].encode() + b"." + body, sha256)
    assert headers[SIGNATURE] == f"sha256={signed.hexdigest()}"
    news = json.loads(body)
    assert (news["object"], news["models"], news["replicas"]) == ("scale.advised", [MODEL], 1)
    assert news["remove"] in drained


async def _grow(at: Operated) -> None:
    """An operator wants two at least: that is advice too."""
    document, match = await at.policy()
    scaling = {**document["scaling"], "min": 2}
    await at.call("PUT", "/policy", 200, json=document | {"scaling": scaling}, headers=match)


async def test_the_target_is_a_number_before_there_is_advice() -> None:
    """A scaler that finds null there stops scaling."""
    async with running_emulator(ENGINE) as engine, operated(engine.url) as at:
        told = await at.call("GET", f"/scale/target?model={MODEL}", 200)
        assert type(told["target"]) is int
        assert told["target"] >= 1
        await at.call("GET", "/scale/target?model=none", 404)
        await at.call("GET", "/scale/target", 400)


async def test_a_model_without_replicas_still_has_a_number() -> None:
    """Scaled to none, the scaler must go on asking."""
    models = [{"name": "none-yet", "replicas": [{"url": "http://127.0.0.1:1"}]}]
    async with operated(wait_ready=False, models=models) as at:
        told = await at.call("GET", "/scale/target?model=none-yet", 200)
        assert (told["target"], told["usable"]) == (0, 0)


async def test_a_gateway_alone_acts_and_switched_off_it_does_not() -> None:
    """The default must never take an engine from anybody."""
    async with (
        running_emulator(ENGINE) as one,
        running_emulator(ENGINE) as two,
        running_gateway(one.url, two.url, **QUICK) as running,
    ):
        pool = running.gateway.scheduler.pools[0]
        await eventually(lambda: pool.advisor.advised == 1, WITHIN_S)
        await asyncio.sleep(1.5)
        assert all(each.is_usable for each in pool.replicas.values())
