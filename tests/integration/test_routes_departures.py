"""A client that leaves, on every route and at every moment: its engine stops, its place is free.

Left out: leaving during an answer that an engine refuses or breaks off, which is over at once.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from gateway.emulator.options import EmulatorOptions
from tests.support.asks import EVERY, PLAIN, STREAMS, Ask
from tests.support.gateway import eventually
from tests.support.house import House, asking, house

pytestmark = pytest.mark.asyncio(loop_scope="module")

SLOW = EmulatorOptions(profile="demo", max_num_seqs=1, embeddings=True)
BLOCKER = STREAMS[0]
BLOCKERS = 3
"""Streams that keep the slot and all that may wait inside the engine."""
COMPUTED = tuple(ask for ask in PLAIN if ask.route.uses_gpu)
WAITING = tuple(ask for ask in EVERY if ask.route.decodes)
"""What generates nothing needs no slot, and never waits for one."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def slow_engine() -> AsyncIterator[House]:
    """A gateway before one slow engine with one slot, for all tests of this file."""
    async with house(SLOW, replica={"max_num_seqs": 1}) as built:
        yield built


@pytest.fixture
def alone(slow_engine: House) -> House:
    """The same, without faults, and nothing was asked of it yet."""
    slow_engine.forget()
    return slow_engine


async def assert_abandoned(house: House) -> None:
    """Nobody works on the only request any more, and it was neither a success nor a failure."""
    record = await house.settle()
    assert record.outcome == "cancelled"


@pytest.mark.parametrize("ask", COMPUTED, ids=str)
async def test_leaving_while_the_engine_computes_stops_it(alone: House, ask: Ask) -> None:
    """A GPU would go on for nobody, and the user's next request would wait behind it."""
    (engine,) = alone.engines
    engine.faults.inject("freeze")
    aborted = engine.engine.counters.aborted
    async with asking(alone, ask, ask.long()):
        await eventually(lambda: engine.engine.running + engine.engine.waiting)
    await assert_abandoned(alone)
    assert engine.engine.counters.aborted > aborted


@pytest.mark.parametrize("ask", STREAMS, ids=str)
async def test_leaving_in_the_middle_of_a_stream_stops_the_engine(alone: House, ask: Ask) -> None:
    """The commonest moment: the reader has seen enough; what it got is charged."""
    (engine,) = alone.engines
    aborted = engine.engine.counters.aborted
    async with asking(alone, ask, ask.long()) as reader:
        await reader.readuntil(b"\r\n\r\n")
        await reader.readuntil(b"\n\n")
        assert engine.engine.running == 1
    record = await alone.settle()
    assert record.outcome == "cancelled"
    assert record.usage is not None
    assert record.usage.output_tokens > 0
    assert engine.engine.counters.aborted == aborted + 1


@pytest.mark.parametrize("ask", EVERY, ids=str)
async def test_leaving_an_engine_that_stalls_frees_everything(alone: House, ask: Ask) -> None:
    """Whether it would ever have answered is nobody's business any more."""
    alone.engines[0].faults.inject(f"stall:{ask.begins_after}")
    async with asking(alone, ask, ask.body()):
        await eventually(alone.is_passing if ask.streams else alone.is_owed)
    await assert_abandoned(alone)
    assert not alone.seen[-1].is_answered


@pytest.mark.parametrize("ask", EVERY, ids=str)
async def test_leaving_while_a_busy_engine_is_waited_for_frees_the_place(
    alone: House, ask: Ask
) -> None:
    """The request is back in the queue; nothing of it may reach the engine again."""
    alone.engines[0].faults.inject("busy*1")
    async with asking(alone, ask, ask.body()):
        await eventually(alone.has_bounced)
    await assert_abandoned(alone)
    alone.end_rest()
    assert len(alone.seen) == 1


async def in_flight(house: House, count: int) -> None:
    """Wait until the scheduler holds so many requests."""
    await eventually(lambda: house.running.in_flight == count)


@pytest.mark.parametrize("ask", WAITING, ids=str)
async def test_leaving_the_queue_frees_the_place(alone: House, ask: Ask) -> None:
    """A dead waiter would be released into a slot that somebody else needs."""
    async with AsyncExitStack() as blocking:
        for count in range(BLOCKERS):
            await blocking.enter_async_context(asking(alone, BLOCKER, BLOCKER.long()))
            await in_flight(alone, count + 1)
        async with asking(alone, ask, ask.body()):
            await in_flight(alone, BLOCKERS + 1)
            assert alone.running.gateway.scheduler.waiting
        await eventually(lambda: alone.settled)
        (record,) = alone.settled
        assert (record.route, record.outcome) == (ask.route.name, "cancelled")
        assert (record.replica, record.usage) == ("", None)
        assert alone.running.in_flight == BLOCKERS
    await eventually(lambda: len(alone.settled) == 1 + BLOCKERS)
    del alone.settled[1:]
    await assert_abandoned(alone)
    bodies = {each.body for each in alone.seen}
    assert bodies <= {BLOCKER.long()}, "nothing of it had reached the engine"
