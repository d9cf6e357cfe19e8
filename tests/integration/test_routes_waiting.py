"""Streams of every route that wait for a slot: signs of life, then one answer or one error."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import httpx

from gateway.emulator.options import EmulatorOptions
from tests.support.asks import STREAMS, Ask, ends_of, last_error_in
from tests.support.gateway import eventually
from tests.support.house import House, asking, house

SLOW = EmulatorOptions(profile="demo", speed=4, max_num_seqs=1)
BLOCKERS = 3
"""Streams that keep the slot and all that may wait inside the engine."""
WAITS = re.compile(
    rb": queued position=\d+ eta_s=(?:[\d.]+|unknown)\n\n"
    rb'|event: ping\ndata: \{"type":"ping"\}\n\n'
)


@asynccontextmanager
async def all_waiting(
    built: House,
) -> AsyncIterator[tuple[AsyncExitStack, list["asyncio.Task[httpx.Response]"]]]:
    """What blocks the engine, and a request for each stream that was told that it waits."""
    scheduler = built.running.gateway.scheduler
    async with AsyncExitStack() as blocking, asyncio.TaskGroup() as tasks:
        for _ in range(BLOCKERS):
            await blocking.enter_async_context(asking(built, STREAMS[0], STREAMS[0].long()))
        await eventually(lambda: built.running.in_flight == BLOCKERS)
        asked = [tasks.create_task(built.post(ask)) for ask in STREAMS]
        await eventually(lambda: len(scheduler.waiting) >= len(STREAMS))
        await asyncio.sleep(0.1)  # several times the interval of the signs
        yield blocking, asked


def after_waits(ask: Ask, answer: httpx.Response) -> bytes:
    """What follows the signs of life, of which there must have been some."""
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    rest = WAITS.sub(b"", answer.content)
    waits = answer.content[: len(answer.content) - len(rest)]
    assert waits + rest == answer.content, "they all come before the answer"
    assert waits.count(b"event: ping\n" if ask.route.is_anthropic else b": queued ") >= 2
    return rest


async def test_a_stream_that_waited_gets_the_engines_bytes_after_its_signs_of_life() -> None:
    """Clients and proxies give up on silence, and none may take a sign for a part of the answer."""
    async with house(SLOW, replica={"max_num_seqs": 1}, keepalive_after_s=0.02) as built:
        async with all_waiting(built) as (blocking, asked):
            await blocking.aclose()
            answers = await asyncio.gather(*asked)
        said = {seen.target: seen.answer for seen in built.seen[-len(STREAMS) :]}
        for ask, answer in zip(STREAMS, answers, strict=True):
            assert after_waits(ask, answer) == said[ask.route.path]
            assert ends_of(ask, answer.content) == ["done"]
        await eventually(lambda: built.running.in_flight == 0)


async def test_a_stream_that_is_refused_after_its_signs_of_life_ends_with_one_error() -> None:
    """Its 200 is out: the event is all that can still tell it."""
    async with house(SLOW, replica={"max_num_seqs": 1}, keepalive_after_s=0.02) as built:
        async with all_waiting(built) as (blocking, asked):
            built.running.gateway.close()
            answers = await asyncio.gather(*asked)
            await blocking.aclose()
        for ask, answer in zip(STREAMS, answers, strict=True):
            stream = after_waits(ask, answer)
            assert last_error_in(ask, stream)["code"] == "draining"
            assert ends_of(ask, stream)[0] == "error"
        refused = {record.route for record in built.settled if record.outcome == "draining"}
        assert refused == {ask.route.name for ask in STREAMS}
        assert len(built.seen) <= BLOCKERS, "no engine heard of them"
        await eventually(lambda: built.running.in_flight == 0)
