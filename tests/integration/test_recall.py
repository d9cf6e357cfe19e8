"""A request that waits inside one engine is moved, and its client sees one clean answer."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest

from gateway.core.messages import Decision, Event, Granted, Recalled
from gateway.emulator.options import EmulatorOptions
from gateway.emulator.server import running_emulator
from gateway.upstream.connection import Connection
from tests.support.gateway import Running, client, eventually, running_gateway
from tests.support.held_engine import DONE, EVENT, Held, HeldEngine, running_held_engine
from tests.support.recalling import NOTHING, Prompted

ANSWER = b'{"object":"chat.completion","usage":{"prompt_tokens":1,"completion_tokens":1}}'
CLEAN = (EVENT % 1 + EVENT % 2 + DONE).decode()
Reply = asyncio.Task[httpx.Response]


class Scene:
    """A gateway before engines whose answers the test gives."""

    def __init__(self, running: Running, http: httpx.AsyncClient, *engines: HeldEngine) -> None:
        self.running = running
        self.scheduler = running.gateway.scheduler
        self.prompted = Prompted(self.scheduler)
        running.gateway.dispatcher.scheduler = self.prompted  # type: ignore[assignment]  # all that is used of it
        self.engines = engines
        self.replies: list[Reply] = []
        self._http = http

    def ask(self, *, streams: bool = True, tier: str = "standard", **headers: str) -> Reply:
        """A client asks."""
        body = {"model": "raw", "messages": [], "stream": streams}
        headers = {"x-fairgate-tier": tier, **headers}
        post = self._http.post("/v1/chat/completions", json=body, headers=headers)
        self.replies.append(asyncio.get_running_loop().create_task(post))
        return self.replies[-1]

    async def asked(self, *, streams: bool = True, tier: str = "standard") -> tuple[Reply, Held]:
        """The same, and wait until an engine has it."""
        before = [held for engine in self.engines for held in engine.asked]
        reply = self.ask(streams=streams, tier=tier)
        await eventually(lambda: sum(len(each.asked) for each in self.engines) > len(before))
        (held,) = [h for each in self.engines for h in each.asked if h not in before]
        return reply, held

    async def running_stream(self) -> Held:
        """A stream that an engine has begun, of a client that never ends it."""
        _, held = await self.asked()
        held.begin()
        held.event()
        replicas = self.scheduler.replicas.values()
        await eventually(lambda: not any(each.ledger.unstarted for each in replicas))
        return held

    def engine_of(self, held: Held) -> HeldEngine:
        """Where it was sent."""
        return next(engine for engine in self.engines if held in engine.asked)

    def recall(self) -> None:
        """The scheduler wants all back that it granted."""
        for request_id, (_, replica) in self.scheduler.granted.items():
            self.prompted.next.append(Recalled(request_id, replica.name))
        self.running.gateway.dispatcher.tell(NOTHING)

    @property
    def told(self) -> list[str]:
        """What the scheduler heard of requests, in order."""
        kinds = [type(event).__name__ for event in self.prompted.told]
        return [kind for kind in kinds if not kind.startswith("Replica") and kind != "Woke"]

    async def assert_all_is_free(self) -> None:
        """Nothing is left in the books."""
        await eventually(lambda: self.running.in_flight == 0)
        assert not self.running.gateway.dispatcher._waiters
        for replica in self.scheduler.replicas.values():
            ledger = replica.ledger
            assert (ledger.sequences, ledger.in_flight, ledger.kv_tokens) == (0, 0, 0)
            assert ledger.unstarted_sequences == 0

    async def moves(self) -> str:
        """The counter of moves, as operators see it."""
        text = (await self._http.get("/metrics")).text
        return next(line for line in text.splitlines() if line.startswith("fairgate_migrations"))


@asynccontextmanager
async def scene(*slots: int, **overrides: Any) -> AsyncIterator[Scene]:
    """A gateway before one engine for each number of `slots`."""
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        engines = [await enter(running_held_engine(count)) for count in slots]
        replicas = [{"url": engine.url, "max_num_seqs": engine.slots} for engine in engines]
        running = await enter(running_gateway(*replicas, wait_ready=True, **overrides))
        stage = Scene(running, await enter(client(running)), *engines)
        try:
            yield stage
        finally:
            for reply in stage.replies:
                reply.cancel()
            await asyncio.gather(*stage.replies, return_exceptions=True)


async def answer(held: Held, *, streams: bool = True) -> None:
    """The engine answers as it should."""
    if not streams:
        held.answer(ANSWER)
        return
    held.begin()
    held.event(1)
    held.event(2)
    held.finish()


async def finish_all(*held: Held) -> None:
    """Streams that were under way end."""
    for each in held:
        each.finish()
    await asyncio.gather(*[each.is_left.wait() for each in held])


def text_of(reply: httpx.Response) -> str:
    """A stream without its comments."""
    assert reply.status_code == 200
    events = reply.text.split("\n\n")
    return "\n\n".join(event for event in events if not event.startswith(": "))


@pytest.mark.parametrize(
    ("slots", "streams", "has_headers"),
    [(1, True, True), (2, True, True), (2, True, False), (2, False, False), (1, False, False)],
)
async def test_what_waits_inside_an_engine_is_moved_to_one_that_is_free(
    slots: int, streams: bool, has_headers: bool
) -> None:
    """It would stand behind others while a GPU idles; its client must notice nothing of it."""
    async with scene(slots, slots) as stage:
        streams_there = [await stage.running_stream() for _ in range(2 * slots)]
        reply, queued = await stage.asked(streams=streams)
        source = stage.engine_of(queued)
        (target,) = [engine for engine in stage.engines if engine is not source]
        if has_headers:
            queued.begin()
        await finish_all(*[held for held in streams_there if held in target.asked])
        await eventually(lambda: len(target.asked) == slots + 1)
        moved = target.asked[-1]
        await asyncio.wait_for(queued.is_left.wait(), 1.0)
        assert moved.body == queued.body
        assert moved.id != queued.id
        await answer(moved, streams=streams)
        answered = await reply
        if streams:
            assert answered.text == CLEAN
        else:
            assert answered.content == ANSWER
        assert answered.headers["x-fairgate-replica"].endswith(str(target.port))
        assert stage.told.count("RecallDone") == 1
        assert await stage.moves() == 'fairgate_migrations_total{kind="queued"} 1.0'
        await finish_all(*[held for held in streams_there if held in source.asked])
        await stage.assert_all_is_free()


@pytest.mark.parametrize("has_headers", [True, False])
async def test_the_slot_is_free_only_after_the_engine_was_left(
    monkeypatch: pytest.MonkeyPatch, has_headers: bool
) -> None:
    """Told sooner, the scheduler would send the next one beside what still runs there."""
    async with scene(1) as stage:
        reply, held = await stage.asked()
        if has_headers:
            held.begin()
        await asyncio.sleep(0.05)
        lost_after: list[list[str]] = []
        monkeypatch.setattr(Connection, "connection_lost", lambda *_: lost_after.append(stage.told))
        stage.recall()
        await eventually(lambda: len(stage.engines[0].asked) == 2)
        assert lost_after == [["Arrived"]]
        assert stage.told == ["Arrived", "RecallDone"]
        monkeypatch.undo()
        await answer(stage.engines[0].asked[1])
        assert text_of(await reply) == CLEAN


async def test_a_higher_tier_takes_the_place_of_what_waits_inside_the_engine() -> None:
    """The engine's own queue knows no tiers; who gave way is served later, and hears comments."""
    async with scene(1, keepalive_after_s=0.05) as stage:
        (engine,) = stage.engines
        running = await stage.running_stream()
        low, queued = await stage.asked()
        queued.begin()
        high, urgent = await stage.asked(tier="critical")
        await asyncio.wait_for(queued.is_left.wait(), 1.0)
        await asyncio.sleep(0.2)
        await finish_all(running)
        await answer(urgent)
        assert text_of(await high) == CLEAN
        await eventually(lambda: len(engine.asked) == 4)
        again = engine.asked[-1]
        assert again.body == queued.body
        assert again.id != queued.id
        await answer(again)
        answered = await low
        assert ": queued position=1" in answered.text
        assert text_of(answered) == CLEAN
        await stage.assert_all_is_free()


async def test_a_plain_answer_whose_headers_came_is_not_taken_back() -> None:
    """The engine has done the work already."""
    async with scene(2, 2) as stage:
        streams_there = [await stage.running_stream() for _ in range(4)]
        reply, queued = await stage.asked(streams=False)
        (target,) = [engine for engine in stage.engines if queued not in engine.asked]
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        queued.writer.write(head % len(ANSWER))
        await asyncio.sleep(0.05)
        await finish_all(*[held for held in streams_there if held in target.asked])
        await eventually(lambda: "RecallTooLate" in stage.told)
        queued.writer.write(ANSWER)
        queued.writer.close()
        assert (await reply).content == ANSWER
        assert stage.told.count("RecallTooLate") == 1
        assert "RecallDone" not in stage.told
        assert len(target.asked) == 2
        await finish_all(*[held for held in streams_there if held not in target.asked])
        await stage.assert_all_is_free()


async def test_a_stream_whose_first_token_came_is_not_taken_back() -> None:
    """Its client has seen the beginning; a second one would be glued to it."""
    async with scene(1) as stage:
        reply, held = await stage.asked()
        held.begin()
        held.event(1)
        await eventually(lambda: "FirstToken" in stage.told)
        stage.recall()
        held.event(2)
        held.finish()
        assert text_of(await reply) == CLEAN
        assert stage.told == ["Arrived", "FirstToken", "RecallTooLate", "Finished"]
        await stage.assert_all_is_free()


async def test_a_token_that_crosses_the_recall_reaches_nobody() -> None:
    """Shown to the client it would stand before the whole answer of the other engine."""
    async with scene(1) as stage:
        reply, held = await stage.asked()
        held.begin()
        await asyncio.sleep(0.05)
        held.event(7)
        stage.recall()
        await eventually(lambda: len(stage.engines[0].asked) == 2)
        await answer(stage.engines[0].asked[1])
        assert text_of(await reply) == CLEAN
        assert stage.told == ["Arrived", "RecallDone", "FirstToken", "Finished"]
        await stage.assert_all_is_free()


class RecallsEachOnce(Prompted):
    """Wants each request back as soon as it was granted: in the same breath, or a turn later."""

    def __init__(self, stage: Scene, *, at_once: bool) -> None:
        super().__init__(stage.scheduler)
        self._stage = stage
        self._at_once = at_once
        self._seen: set[str] = set()

    def handle(self, event: Event, now: float) -> list[Decision]:
        """See `Scheduler.handle`."""
        decisions = super().handle(event, now)
        for decision in list(decisions):
            if isinstance(decision, Granted) and decision.request_id not in self._seen:
                self._seen.add(decision.request_id)
                if self._at_once:
                    decisions.append(Recalled(decision.request_id, decision.replica))
                else:
                    asyncio.get_running_loop().call_soon(self._stage.recall)
        return decisions


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("streams", [True, False])
async def test_recalled_before_it_is_sent_or_while_connecting_it_is_sent_once(
    streams: bool, at_once: bool
) -> None:
    """Nothing has reached an engine yet that could be aborted there."""
    async with scene(1) as stage:
        stage.prompted = RecallsEachOnce(stage, at_once=at_once)
        stage.running.gateway.dispatcher.scheduler = stage.prompted  # type: ignore[assignment]  # all that is used of it
        reply, held = await stage.asked(streams=streams)
        await answer(held, streams=streams)
        assert (await reply).status_code == 200
        assert len(stage.engines[0].asked) == 1
        assert stage.told.count("RecallDone") == 1
        await stage.assert_all_is_free()


async def gone(reply: Reply) -> None:
    """The client closes its connection."""
    reply.cancel()
    await asyncio.wait([reply])


@pytest.mark.parametrize("streams", [True, False])
async def test_a_client_that_leaves_while_it_waits_again_is_gone(streams: bool) -> None:
    """Released once more, it would run for nobody."""
    async with scene(1) as stage:
        running = await stage.running_stream()
        low, queued = await stage.asked(streams=streams)
        high, urgent = await stage.asked(tier="critical")
        await asyncio.wait_for(queued.is_left.wait(), 1.0)
        assert len(stage.scheduler.waiting) == 1
        await gone(low)
        await eventually(lambda: not stage.scheduler.waiting)
        await finish_all(running)
        await answer(urgent)
        assert text_of(await high) == CLEAN
        assert len(stage.engines[0].asked) == 3
        await stage.assert_all_is_free()


@pytest.mark.parametrize("streams", [True, False])
async def test_a_client_that_leaves_around_its_recall_leaves_nothing_behind(streams: bool) -> None:
    """The two crossing each other is when slots are lost."""
    async with scene(2) as stage:
        for turns in range(8):
            reply, held = await stage.asked(streams=streams)
            if streams:
                held.begin()
            reply.cancel()
            for _ in range(turns):
                await asyncio.sleep(0)
            stage.recall()
            await asyncio.wait([reply])
            await stage.assert_all_is_free()
            await eventually(lambda: not stage.engines[0].here)


Refusing = Callable[[Scene], Coroutine[Any, Any, None]]


async def shut_down(stage: Scene) -> None:
    """The gateway is told to stop."""
    stage.running.gateway.close()


async def wait_long(stage: Scene) -> None:
    """Nothing becomes free in time."""


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize(
    ("happens", "status", "code"),
    [(shut_down, 503, "draining"), (wait_long, 429, "patience_spent")],
)
async def test_what_cannot_be_released_again_is_refused_like_any_other(
    happens: Refusing, status: int, code: str, streams: bool
) -> None:
    """Nothing was sent to the client yet, so it gets a whole error with its own status."""
    async with scene(1) as stage:
        running = await stage.running_stream()
        before = len(stage.engines[0].asked)
        low = stage.ask(streams=streams, **{"x-fairgate-patience-s": "0.6"})
        await eventually(lambda: len(stage.engines[0].asked) > before)
        high, urgent = await stage.asked(tier="critical")
        await eventually(lambda: stage.scheduler.waiting)
        await happens(stage)
        answered = await low
        assert (answered.status_code, answered.json()["error"]["code"]) == (status, code)
        await finish_all(running)
        await answer(urgent)
        assert text_of(await high) == CLEAN
        await stage.assert_all_is_free()


async def test_an_engine_that_breaks_off_is_no_recall() -> None:
    """Its failure counts, and the next attempt goes elsewhere."""
    async with scene(1, 1) as stage:
        reply, held = await stage.asked()
        broken = stage.engine_of(held)
        held.begin()
        await asyncio.sleep(0.05)
        held.writer.transport.abort()
        await eventually(lambda: sum(len(each.asked) for each in stage.engines) == 2)
        (other,) = [each for each in stage.engines if each is not broken]
        await answer(other.asked[0])
        assert text_of(await reply) == CLEAN
        assert "RecallDone" not in stage.told
        await stage.assert_all_is_free()


async def test_a_real_engine_forgets_what_was_taken_back() -> None:
    """It would compute the answer all the same, for nobody."""
    options = EmulatorOptions(profile="demo", max_num_seqs=2)
    body = {"model": "emulated", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    async with (
        running_emulator(options) as one,
        running_emulator(options) as other,
        running_gateway(
            *[{"url": each.url, "max_num_seqs": 2} for each in (one, other)]
        ) as running,
        client(running) as http,
    ):
        ask = asyncio.get_running_loop().create_task

        def post(tokens: int) -> Reply:
            return ask(http.post("/v1/chat/completions", json={**body, "max_tokens": tokens}))

        long = [post(4000) for _ in range(4)]
        await eventually(lambda: one.engine.running == other.engine.running == 2)
        last = post(5)
        await eventually(lambda: one.engine.waiting + other.engine.waiting == 1)
        source, target = (one, other) if one.engine.waiting else (other, one)
        scheduler = running.gateway.scheduler
        address = target.url.removeprefix("http://").replace(":", "-")
        there = [key for key, (_, each) in scheduler.granted.items() if each.name == address]
        for exchange, task in list(running.gateway.relay.open.items()):
            if exchange.request_id in there and task is not None:
                task.cancel()
        answered = await last
        assert answered.text.count("data: [DONE]") == 1
        assert answered.headers["x-fairgate-replica"] == address
        assert source.engine.waiting == 0
        for each in long:
            await gone(each)
        await eventually(lambda: running.in_flight == 0)
