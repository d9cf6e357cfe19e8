"""The only replica dies and comes back: who was let in is served, who comes meanwhile is told."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from gateway.api.routes import CHAT
from gateway.emulator.options import EmulatorOptions
from tests.support.asks import Ask
from tests.support.gateway import eventually
from tests.support.house import House, house

DEMO = EmulatorOptions(profile="demo", speed=2.0, max_num_seqs=4)
PLAIN, STREAM = Ask(CHAT, streams=False), Ask(CHAT, streams=True)
AT_ONCE_S = 1.0
"""Generous for a loaded machine."""
SERVED_WITHIN_S = 20.0
Asked = asyncio.Task[httpx.Response]


def ask(alone: House, of: Ask, **headers: str) -> Asked:
    """A request that takes the engine a third of a second."""
    body: dict[str, Any] = {**of.fields, "max_tokens": 30}
    return asyncio.create_task(alone.http.post(of.route.path, json=body, headers=headers))


def die(alone: House) -> None:
    """The process is gone, and all its connections."""
    (tap,) = alone.taps
    tap.refuse()
    for writer in list(tap._wires.values()):
        writer.transport.abort()


@asynccontextmanager
async def crowded(**overrides: object) -> AsyncIterator[tuple[House, list[Asked]]]:
    """A gateway before one engine of four slots, and ten plain requests."""
    async with house(DEMO, replica={"max_num_seqs": 4}, **overrides) as alone:
        asked = [ask(alone, PLAIN) for _ in range(10)]
        await eventually(lambda: alone.engines[0].engine.running == 4)
        await eventually(lambda: alone.running.in_flight == len(asked))
        yield alone, asked
        for each in asked:
            each.cancel()
        await asyncio.wait(asked)


async def lost(alone: House) -> None:
    """It is known that nobody listens."""
    (replica,) = alone.running.gateway.scheduler.replicas.values()
    await eventually(lambda: replica.is_lost)


@pytest.mark.parametrize("sees_loss", [True, False])
async def test_what_was_let_in_outlasts_a_restart_of_the_only_replica(sees_loss: bool) -> None:
    """Four ran, six waited, some were let go to a dead engine: each is a client's answer."""
    async with crowded() as (alone, asked):
        die(alone)
        if sees_loss:
            await lost(alone)
        asked += [ask(alone, PLAIN) for _ in range(2) if not sees_loss]
        await asyncio.sleep(0.3)
        await alone.taps[0].listen()
        answers = await asyncio.wait_for(asyncio.gather(*asked), SERVED_WITHIN_S)
        assert [answer.status_code for answer in answers] == [200] * len(asked)
        await eventually(lambda: not alone.running.in_flight)


async def test_whoever_comes_while_there_is_no_replica_is_told_at_once() -> None:
    """A balancer before several gateways can still send it elsewhere."""
    async with crowded() as (alone, asked):
        die(alone)
        await lost(alone)
        for of in (PLAIN, STREAM):
            answer = await asyncio.wait_for(ask(alone, of), AT_ONCE_S)
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_replica")
            assert int(answer.headers["retry-after"]) >= 1
        assert not any(each.done() for each in asked)


async def test_a_stream_that_has_not_begun_hears_that_it_waits() -> None:
    """Its client must not take the outage for a dead connection."""
    async with house(DEMO, keepalive_after_s=0.1) as alone:
        alone.engines[0].faults.inject("stall:0*1")
        asked = ask(alone, STREAM)
        await eventually(alone.is_owed)
        die(alone)
        await lost(alone)
        await asyncio.sleep(0.4)
        await alone.taps[0].listen()
        answer = await asyncio.wait_for(asked, SERVED_WITHIN_S)
        assert answer.status_code == 200
        assert ": queued position=1" in answer.text
        assert '"error"' not in answer.text
        assert answer.text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize(
    ("overrides", "headers"),
    [
        ({"retries": {"continuation_wait_s": 0.5}}, {}),
        ({"retries": {"continuation_wait_s": 0}}, {}),
        ({}, {"x-fairgate-patience-s": "1"}),
    ],
    ids=["the bound", "no wait at all", "its patience"],
)
async def test_what_failed_waits_no_longer_than_it_may(
    overrides: dict[str, Any], headers: dict[str, str]
) -> None:
    """A replica that never comes back must not keep its clients for ever."""
    async with house(DEMO, **overrides) as alone:
        asked = ask(alone, PLAIN, **headers)
        await eventually(lambda: alone.engines[0].engine.running)
        die(alone)
        answer = await asyncio.wait_for(asked, 5.0)
        assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_failed")
        await eventually(lambda: not alone.running.in_flight)


async def test_an_engine_that_was_there_all_the_time_is_not_asked_twice() -> None:
    """It would fail the same request again, and its client would wait for that."""
    async with house(DEMO) as alone:
        alone.engines[0].faults.inject("die-before")
        answer = await asyncio.wait_for(ask(alone, PLAIN), 5.0)
        assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_failed")
        assert len(alone.taps[0].seen) == 1
