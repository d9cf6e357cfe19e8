"""One request is stuck on an engine that goes on with others: it is found, and nobody else is."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, cast

import httpx

from gateway.api.reply import Direct
from gateway.api.routes import CHAT
from gateway.core.breaker import STUCK_TO_TRIP
from gateway.core.messages import DrainAsked
from gateway.emulator.options import EmulatorOptions
from gateway.runtime.stalls import ABSENT_UNBEGUN_S, STALL_S
from tests.support.asks import Ask
from tests.support.breaking import ON, Heard
from tests.support.gateway import client, eventually, running_gateway
from tests.support.held_engine import HeldEngine
from tests.support.house import AheadClock, House, house

DEMO = EmulatorOptions(profile="demo", max_num_seqs=4)
Asked = asyncio.Task[httpx.Response]
STREAM = Ask(CHAT, streams=True)
PASSING_S = 0.12
"""Of real time for each step of the clock: a scrape, and a little more."""
FOUND_WITHIN_S = 10.0
NEIGHBOUR_TOKENS = 700
"""Fourteen seconds of output."""


def body(tokens: int) -> dict[str, Any]:
    """A stream of so many tokens, without chance."""
    return {**STREAM.fields, "max_tokens": tokens}


async def pass_time(clock: AheadClock, seconds: float, *, step_s: float = 0.5) -> None:
    """It becomes so much later, scrape by scrape."""
    for _ in range(round(seconds / step_s)):
        clock.lead_s += step_s
        await asyncio.sleep(PASSING_S)


@contextmanager
def only_first(pair: House) -> Iterator[None]:
    """Nothing new goes to the second engine inside the block."""
    name, tell = f"127.0.0.1-{pair.taps[1].port}", pair.running.gateway.dispatcher.tell
    tell(DrainAsked(name))
    yield
    tell(DrainAsked(name, draining=False))


@asynccontextmanager
async def neighbours(pair: House, fault: str) -> AsyncIterator[list[Asked]]:
    """[A long stream, another that `fault` struck], on the first of two engines."""
    engine, counters = pair.engines[0], pair.engines[0].engine.counters
    received, finished = len(engine.received), counters.finished
    with only_first(pair):
        engine.faults.inject(fault)
        struck = asyncio.create_task(pair.http.post(STREAM.route.path, json=body(20)))
        await eventually(lambda: counters.finished == finished + 1)
        assert engine.faults.cut is None
        long = asyncio.create_task(pair.http.post(STREAM.route.path, json=body(NEIGHBOUR_TOKENS)))
        await eventually(lambda: engine.engine.running)
        assert len(engine.received) == received + 2
    yield [long, struck]
    for each in (long, struck):
        each.cancel()
    await asyncio.wait((long, struck))


class TakesNothing:
    """A client that reads nothing until it is told to."""

    def __init__(self, direct: Direct) -> None:
        self._direct = direct
        self.reads = asyncio.Event()

    def push(self, data: bytes, framed: bytes = b"") -> bool:
        """As `Direct.push`."""
        return self._direct.push(data, framed) and self.reads.is_set()

    async def drained(self) -> None:
        """As `Direct.drained`."""
        await self.reads.wait()

    def unsent(self) -> int:
        """Always the same."""
        return 1


async def test_a_stuck_stream_ends_with_one_error_and_frees_its_slot() -> None:
    """Its client would wait for ever, and its slot be taken, beside others who are served."""
    async with house(DEMO, DEMO) as pair, neighbours(pair, "stall-keepalive:3*1") as (long, struck):
        await pass_time(pair.clock, STALL_S / 2)
        assert not struck.done()
        await pass_time(pair.clock, STALL_S / 2 + 2.0)
        answer = await asyncio.wait_for(struck, FOUND_WITHIN_S)
        assert answer.text.count('"error"') == 1
        assert "upstream_timeout" in answer.text
        assert answer.text.endswith("data: [DONE]\n\n")
        assert not long.done()
        scheduler = pair.running.gateway.scheduler
        assert len(scheduler.granted) == 1
        assert {each.circuit.reason for each in scheduler.replicas.values()} == {None}


async def test_a_request_that_is_stuck_before_it_began_is_answered_elsewhere() -> None:
    """Nothing had reached the client: it notices a delay."""
    async with house(DEMO, DEMO) as pair, neighbours(pair, "stall:0*1") as (long, struck):
        await pass_time(pair.clock, ABSENT_UNBEGUN_S + 4.0, step_s=2.0)
        answer = await asyncio.wait_for(struck, FOUND_WITHIN_S)
        assert answer.status_code == 200
        assert '"error"' not in answer.text
        assert answer.text.endswith("data: [DONE]\n\n")
        assert [len(engine.received) for engine in pair.engines] == [2, 1]
        assert not long.done()


async def test_a_stuck_stream_goes_on_elsewhere_where_its_tier_says_so() -> None:
    """It is what it would have been."""
    async with house(DEMO, DEMO, tiers=ON) as pair:
        asked = {**body(20), "stream_options": {"include_usage": True}}
        whole = Heard((await pair.http.post(STREAM.route.path, json=asked)).text)
        async with neighbours(pair, "stall:3*1") as (_, struck):
            await pass_time(pair.clock, STALL_S + 2.0)
            heard = Heard((await asyncio.wait_for(struck, FOUND_WITHIN_S)).text)
    heard.check_is(whole)
    assert any("continued" in each for each in heard.comments)


async def test_a_client_that_reads_nothing_is_not_taken_for_a_stuck_stream() -> None:
    """Its engine made the answer long ago, and counts it no more; others go on."""
    bounds = {"client_stall_s": 600, "stream_buffer": "1KiB"}
    async with house(DEMO, DEMO, bounds=bounds) as pair:
        engine, relay = pair.engines[0], pair.running.gateway.relay
        with only_first(pair):
            asked = asyncio.create_task(pair.http.post(STREAM.route.path, json=body(60)))
            await eventually(pair.is_passing)
            (slow,) = relay.open
            assert slow._reply.direct is not None
            lazy = TakesNothing(slow._reply.direct)
            slow._reply.direct = cast(Direct, lazy)
            await eventually(lambda: slow.writing_since is not None)
            await eventually(lambda: not engine.engine.running)
            long = asyncio.create_task(
                pair.http.post(STREAM.route.path, json=body(NEIGHBOUR_TOKENS))
            )
            await eventually(lambda: engine.engine.running)
        await pass_time(pair.clock, 3 * STALL_S, step_s=1.0)
        assert slow in relay.open
        assert len(pair.running.gateway.scheduler.granted) == 2, "its slot is not free, either"
        lazy.reads.set()
        answer = await asyncio.wait_for(asked, FOUND_WITHIN_S)
        assert '"error"' not in answer.text
        assert answer.text.endswith("data: [DONE]\n\n")
        long.cancel()
        await asyncio.wait([long])


class TwoRanks(HeldEngine):
    """Two data-parallel engines behind one address: one of them stands still."""

    def __init__(self) -> None:
        super().__init__(8)
        self.steps = 0
        self.frozen: list[int] = []
        """Requests, by their number, that came to the one that stands still."""
        self.counted = 0
        """Of those, what it counted when it stopped."""

    def _page(self, path: str) -> tuple[str, bytes]:
        if path != "/metrics":
            return super()._page(path)
        self.steps += 1
        frozen = [each for number, each in enumerate(self.asked) if number in self.frozen]
        moving = sum(each not in frozen for each in self.here)
        lines = "".join(
            f'vllm:num_requests_running{{engine="{rank}"}} {running}\n'
            f'vllm:num_requests_waiting{{engine="{rank}"}} 0\n'
            f'vllm:iteration_tokens_total_count{{engine="{rank}"}} {steps}\n'
            for rank, running, steps in ((0, moving, self.steps), (1, self.counted, 7))
        )
        return "200 OK", lines.encode()


@asynccontextmanager
async def two_ranks() -> AsyncIterator[TwoRanks]:
    """Such an engine, on a port of its own."""
    engine = TwoRanks()
    server = await asyncio.start_server(engine.serve, "127.0.0.1", 0)
    engine.port = server.sockets[0].getsockname()[1]
    try:
        yield engine
    finally:
        server.close()
        for held in engine.asked:
            held.writer.transport.abort()


async def speak(engine: TwoRanks, numbers: Callable[[], set[int]]) -> None:
    """These get a token again and again."""
    while True:
        for number in numbers():
            engine.asked[number].event()
        await asyncio.sleep(0.05)


async def test_what_runs_on_a_rank_that_stands_still_is_found_and_the_engine_rests() -> None:
    """Half of all clients would hang, and half of all new ones be sent after them."""
    clock = AheadClock()
    async with (
        two_ranks() as engine,
        running_gateway({"url": engine.url, "max_num_seqs": 4}, clock=clock) as running,
        client(running) as http,
    ):
        asked = {"model": "raw", "messages": [], "stream": True}
        posts = []
        for number in range(2 + STUCK_TO_TRIP):
            posts.append(asyncio.create_task(http.post("/v1/chat/completions", json=asked)))
            await eventually(lambda count=number + 1: len(engine.asked) == count)  # type: ignore[misc]  # a default
            engine.asked[number].begin()
            engine.asked[number].event()
        engine.frozen = list(range(2, 2 + STUCK_TO_TRIP))
        engine.counted = STUCK_TO_TRIP
        speaking = asyncio.create_task(speak(engine, lambda: {0, 1}))
        (replica,) = running.gateway.scheduler.replicas.values()
        await pass_time(clock, 2 * STALL_S + 5.0)
        for struck in posts[2:]:
            answer = await asyncio.wait_for(struck, FOUND_WITHIN_S)
            assert answer.text.count("upstream_timeout") == 1
        assert not posts[0].done()
        assert not posts[1].done()
        assert replica.circuit.reason == "stuck"
        assert replica.ledger.sequences == 2
        # What comes now goes to whichever rank the engine chooses, one at a time.
        tried = asyncio.create_task(http.post("/v1/chat/completions", json=asked))
        await pass_time(clock, 3.0)
        await eventually(lambda: len(engine.asked) == 3 + STUCK_TO_TRIP)
        engine.asked[-1].begin()
        engine.asked[-1].event()
        await eventually(lambda: replica.circuit.reason is None)
        speaking.cancel()
        for number in (0, 1, -1):
            engine.asked[number].finish()
        for each in (posts[0], posts[1], tried):
            assert (await asyncio.wait_for(each, FOUND_WITHIN_S)).text.endswith("data: [DONE]\n\n")
