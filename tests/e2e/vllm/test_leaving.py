"""Real engines that leave, stand still, or are drained: their streams are complete all the same.

A vLLM that is asked to end leaves its streams hanging without a word, or refuses new requests with
a 500, by its own `--shutdown-timeout`; one whose core stands still calls itself healthy.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic

import httpx
import pytest

from gateway.core.messages import DrainAsked
from gateway.upstream.replicas import replica_name
from tests.e2e.vllm.conftest import Say
from tests.e2e.vllm.engines import Replica, running_replicas
from tests.e2e.vllm.test_continuation import (
    FLAGS,
    PATIENT,
    SLOTS,
    STREAMS,
    TOKENS,
    TOKENS_BEFORE,
    Reading,
    all_of,
    asked,
    ready,
)
from tests.support.breaking import Heard
from tests.support.gateway import Running, client, eventually, running_gateway
from tests.support.ports import free_port

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1_800)]

STALL_S_MAX = 30.0
"""No stream may stand still for longer, on processors that others use too."""


@asynccontextmanager
async def house(*flags: str) -> AsyncIterator[tuple[Running, list[Replica], list[Heard]]]:
    """Two engines behind a gateway that continues, and what they say to sixteen requests."""
    with running_replicas(free_port(), free_port(), flags=(*FLAGS, *flags)) as replicas:
        async with httpx.AsyncClient(base_url=replicas[0].url, timeout=300) as direct:
            whole = await all_of(direct, [asked(number) for number in range(STREAMS)])
        found = [{"url": each.url, "max_num_seqs": SLOTS} for each in replicas]
        async with running_gateway(*found, wait_ready=False, **PATIENT) as running:
            await ready(running)
            yield running, replicas, whole


@asynccontextmanager
async def reading(running: Running) -> AsyncIterator[tuple[list[Reading], "asyncio.Task[object]"]]:
    """Sixteen streams in the middle of their answers."""
    readings = [asked(number) for number in range(STREAMS)]
    async with client(running) as http:
        http.timeout = httpx.Timeout(300)
        task: asyncio.Task[object] = asyncio.create_task(all_of(http, readings))
        await eventually(lambda: all(each.events > TOKENS_BEFORE for each in readings), 120)
        assert all(each.events < TOKENS for each in readings), "too late to break any"
        yield readings, task
        await task
    await eventually(lambda: running.in_flight == 0)


def judged(readings: list[Reading], whole: list[Heard]) -> tuple[int, float]:
    """(how many were continued, the longest time without an event); all are what they must be."""
    continued = 0
    for reading, other in zip(readings, whole, strict=True):
        heard = Heard(reading.got.decode())
        heard.check_is(other)
        continued += bool(heard.comments)
    return continued, max(each.longest_gap_s for each in readings)


async def test_an_engine_that_is_asked_to_end_leaves_nobody_hanging(say: Say) -> None:
    """It keeps the connections, says nothing more, and would do so for ever."""
    async with house() as (running, replicas, whole):
        async with reading(running) as (readings, _):
            replicas[1].terminate()
        continued, gap_s = judged(readings, whole)
    say(f"SIGTERM: {STREAMS} of {STREAMS} complete, {continued} continued, gap {gap_s:.1f} s")
    assert continued > 0
    assert gap_s < STALL_S_MAX


async def test_an_engine_that_ends_slowly_gives_no_client_its_500(say: Say) -> None:
    """What it has it finishes; what comes it refuses, and somebody else can take it."""
    async with house("--shutdown-timeout", "30") as (running, replicas, whole):
        async with reading(running) as (readings, _), client(running) as http:
            http.timeout = httpx.Timeout(300)
            replicas[1].terminate()
            more = [asked(number) for number in range(STREAMS)]
            await all_of(http, more)
        continued, gap_s = judged(readings, whole)
        judged(more, whole)
    # What it does not finish in time goes on elsewhere, and may have to wait for a slot there.
    say(f"SIGTERM, 30 s: {2 * STREAMS} complete, {continued} continued, gap {gap_s:.1f} s, no 500")


async def test_a_core_that_stands_still_is_taken_out_and_comes_back(say: Say) -> None:
    """Its /health is 200 all the time; its streams must go on elsewhere, once."""
    async with house() as (running, replicas, whole):
        usable = running.gateway.scheduler.replicas
        name = replica_name(replicas[1].url)
        async with reading(running) as (readings, _):
            replicas[1].freeze_core()
            frozen_at = monotonic()
            await eventually(lambda: usable[name].circuit.reason is not None, 60)
            out_s = monotonic() - frozen_at
        continued, gap_s = judged(readings, whole)
        replicas[1].thaw_core()
        thawed_at = monotonic()
        await eventually(lambda: usable[name].circuit.reason is None, 60)
        back_s = monotonic() - thawed_at
        async with reading(running) as (again, _):
            pass
        judged(again, whole)
        assert {each.replica for each in again} == {replica_name(each.url) for each in replicas}
    say(
        f"SIGSTOP of a core: out after {out_s:.1f} s, {STREAMS} complete, {continued} continued,"
        f" gap {gap_s:.1f} s; back {back_s:.1f} s after SIGCONT"
    )
    assert continued > 0
    assert gap_s < STALL_S_MAX


async def test_replicas_are_drained_one_after_the_other_under_load(say: Say) -> None:
    """An upgrade of a fleet: no request fails, and no token is doubled or missing."""
    served = 0
    async with house() as (running, replicas, whole), client(running) as http:
        http.timeout = httpx.Timeout(300)
        stop = asyncio.Event()

        async def keep_asking(number: int) -> int:
            count = 0
            while not stop.is_set():
                (await asked(number).read(http)).check_is(whole[number])
                count += 1
            return count

        async with asyncio.TaskGroup() as tasks:
            asking = [tasks.create_task(keep_asking(number)) for number in range(STREAMS)]
            for replica in replicas:
                name = replica_name(replica.url)
                await asyncio.sleep(2.0)
                running.gateway.dispatcher.tell(DrainAsked(name, draining=True))
                ledger = running.gateway.scheduler.replicas[name].ledger
                await eventually(lambda ledger=ledger: not ledger.grants, 120)  # type: ignore[misc]  # bound now
                running.gateway.dispatcher.tell(DrainAsked(name, draining=False))
            stop.set()
        served = sum(task.result() for task in asking)
        await eventually(lambda: running.in_flight == 0)
    say(f"drained one after the other: {served} streams, all the same to the token, none failed")
    assert served >= 2 * STREAMS
