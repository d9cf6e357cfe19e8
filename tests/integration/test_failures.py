"""Engines that break: before the first event somebody else answers, after it the client hears."""

import asyncio
import json
from collections.abc import AsyncIterator
from functools import partial

import httpx
import pytest

from gateway.api.routes import CHAT as CHAT_ROUTE
from gateway.api.watch import give_up_stalled
from gateway.core.replica import Replica
from gateway.emulator.options import EmulatorOptions
from gateway.emulator.server import Emulator, running_emulator
from gateway.runtime.stalls import STALL_S, is_stalled
from tests.support.asks import Ask
from tests.support.gateway import Running, client, eventually, running_gateway
from tests.support.house import house

FAST = EmulatorOptions(profile="instant", max_num_seqs=4)
CHAT = {"model": "emulated", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}


@pytest.fixture
async def engines() -> AsyncIterator[tuple[Emulator, Emulator]]:
    """Two engines that serve the same model."""
    async with running_emulator(FAST) as one, running_emulator(FAST) as other:
        yield one, other


@pytest.fixture
async def running(engines: tuple[Emulator, Emulator]) -> AsyncIterator[Running]:
    """A gateway before both."""
    async with running_gateway(*(engine.url for engine in engines)) as gateway:
        yield gateway


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("fault", ["die-before", "error-500", "draining"])
async def test_what_breaks_before_the_first_event_is_tried_elsewhere(
    engines: tuple[Emulator, Emulator], running: Running, fault: str, streams: bool
) -> None:
    """An engine that crashes or drains must not cost a request that it had not answered."""
    engines[0].faults.inject(fault)
    async with client(running) as http:
        answers = await asyncio.gather(
            *(http.post("/v1/chat/completions", json={**CHAT, "stream": streams}) for _ in range(6))
        )
    assert {answer.status_code for answer in answers} == {200}
    assert all(not _errors(answer) for answer in answers)
    await eventually(lambda: running.in_flight == 0)


@pytest.mark.parametrize(
    ("fault", "streams"), [("busy*2", True), ("busy*2", False), ("busy-race*2", True)]
)
async def test_a_busy_engine_is_backpressure_and_not_an_error(fault: str, streams: bool) -> None:
    """The client waits a little longer and never learns; no breaker, no lost place."""
    async with (
        running_emulator(FAST) as engine,
        running_gateway(engine.url) as running,
        client(running) as http,
    ):
        engine.faults.inject(fault)
        answer = await http.post("/v1/chat/completions", json={**CHAT, "stream": streams})
        assert answer.status_code == 200
        assert not _errors(answer)
        assert len(engine.received) == 3
        assert running.in_flight == 0


@pytest.mark.parametrize("fault", ["die-midstream:3", "close-midstream:3"])
async def test_a_stream_that_dies_ends_with_one_error_event_and_done(
    engines: tuple[Emulator, Emulator], running: Running, fault: str
) -> None:
    """openai-python takes a stream that merely ends for a success."""
    for engine in engines:
        engine.faults.inject(fault)
    async with client(running) as http:
        answer = await http.post("/v1/chat/completions", json={**CHAT, "stream": True})
    events = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    assert answer.status_code == 200
    assert events[-1] == "[DONE]"
    assert events.count("[DONE]") == 1
    assert [code for event in events[:-1] if (code := _code(event))] == ["upstream_failed"]
    await eventually(lambda: running.in_flight == 0)


async def test_an_engines_own_error_event_passes_and_is_no_success(
    engines: tuple[Emulator, Emulator], running: Running
) -> None:
    """`[DONE]` follows an engine crash too: it is not counted as done."""
    for engine in engines:
        engine.faults.inject("error-midstream:3")
    async with client(running) as http:
        answer = await http.post("/v1/chat/completions", json={**CHAT, "stream": True})
        metrics = (await http.get("/metrics")).text
    assert answer.text.count("[DONE]") == 1
    assert len(_errors(answer)) == 1
    assert 'requests_total{outcome="done"' not in metrics


async def test_a_plain_answer_cut_in_half_is_tried_elsewhere(
    engines: tuple[Emulator, Emulator], running: Running
) -> None:
    """Nothing of it had reached the client."""
    engines[0].faults.inject("die-midstream:1")
    async with client(running) as http:
        for _ in range(3):
            answer = await http.post("/v1/chat/completions", json=CHAT)
            assert answer.json()["usage"]["completion_tokens"] == 8


async def test_when_all_replicas_fail_the_last_error_is_told(
    engines: tuple[Emulator, Emulator], running: Running
) -> None:
    """502 with the reason, not a patience that runs out."""
    for engine in engines:
        engine.faults.inject("error-500")
    async with client(running) as http:
        answer = await http.post("/v1/chat/completions", json=CHAT)
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_failed")
    assert [len(engine.received) for engine in engines] == [1, 1]


async def test_a_killed_replica_loses_nothing_that_had_not_started(
    engines: tuple[Emulator, Emulator], running: Running
) -> None:
    """The acceptance: two replicas, one dies under load, all that waited is served."""
    async with client(running) as http:
        calls = [
            asyncio.create_task(http.post("/v1/chat/completions", json={**CHAT, "stream": True}))
            for _ in range(60)
        ]
        await eventually(lambda: len(engines[0].received) > 5)
        engines[0].faults.inject("refuse", "die-before")
        answers = await asyncio.gather(*calls)
    assert {answer.status_code for answer in answers} == {200}
    assert not any(_errors(answer) for answer in answers)
    await eventually(lambda: running.in_flight == 0)


@pytest.mark.parametrize("streams", [True, False])
async def test_a_frozen_engine_is_given_up_by_its_counters(streams: bool) -> None:
    """`/health` says 200 all the while, and the connection stays open: only progress tells."""
    ask = Ask(CHAT_ROUTE, streams=streams)
    async with house(FAST) as alone:
        alone.engines[0].faults.inject("freeze")
        answer = asyncio.create_task(alone.post(ask))
        await eventually(alone.is_owed)
        (replica,) = alone.running.gateway.scheduler.replicas.values()
        await eventually(lambda: replica.vital.progressed_at is not None)
        alone.clock.lead_s += STALL_S
        refused = await answer
        assert (refused.status_code, refused.json()["error"]["code"]) == (504, "upstream_timeout")
        alone.engines[0].faults.clear()
        await alone.settle()
        served = await alone.post(ask)
    assert served.status_code == 200


async def progress_since(replica: Replica, instant: float) -> None:
    """Wait until the engine is seen to have done something after `instant`."""
    await eventually(lambda: (replica.vital.progressed_at or 0.0) > instant)


async def test_an_engine_that_is_slow_with_one_request_has_not_stalled() -> None:
    """A long prompt says nothing for long; cutting it off would throw away what was computed."""
    ask = Ask(CHAT_ROUTE, streams=True)
    async with house(FAST, replica={"max_num_seqs": 4}) as alone:
        alone.engines[0].faults.inject("stall:0")
        silent = asyncio.create_task(alone.post(ask))
        await eventually(alone.is_owed)
        alone.engines[0].faults.clear()
        gateway = alone.running.gateway
        (replica,) = gateway.scheduler.replicas.values()
        for _ in range(3):
            alone.clock.lead_s += STALL_S / 2
            jumped_at = gateway.clock()
            assert (await alone.post(ask)).status_code == 200
            await progress_since(replica, jumped_at)
            judge = partial(is_stalled, gateway.scheduler)
            give_up_stalled(gateway.relay, judge, gateway.clock())
        assert not silent.done()
        silent.cancel()


async def test_what_waits_is_refused_when_the_gateway_closes() -> None:
    """Waiters left hanging would hold their clients until a timeout."""
    slow = EmulatorOptions(profile="demo", max_num_seqs=1)
    async with running_emulator(slow) as engine:
        replica = {"url": engine.url, "max_num_seqs": 1}
        async with running_gateway(replica) as running, client(running) as http:
            calls = [
                asyncio.create_task(http.post("/v1/chat/completions", json=CHAT)) for _ in range(5)
            ]
            await eventually(lambda: len(running.gateway.scheduler.waiting) == 3)
            running.gateway.close()
            answers = await asyncio.gather(*calls)
            late = await http.post("/v1/chat/completions", json=CHAT)
    assert sorted(answer.status_code for answer in answers) == [200, 200, 503, 503, 503]
    assert late.json()["error"]["code"] == "draining"


def _code(event: str) -> str | None:
    content = json.loads(event)
    return content["error"]["code"] if "error" in content else None


def _errors(answer: httpx.Response) -> list[str]:
    """Error events in a stream, or the error of a plain answer."""
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
    return [line for line in lines or [answer.text] if '"error"' in line[:12]]
