"""Streams whose replica fails after their first byte, and what their clients notice of it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.api.exchange import Exchange
from gateway.core.breaker import Circuit
from gateway.core.messages import Event, Finished, Outcome, Usage
from gateway.telemetry.record import SettledRequest
from tests.support.breaking import CHAT, COMPLETIONS, ON, Heard, Site, body, site, told
from tests.support.gateway import client, eventually
from tests.support.token_engine import (
    CONTEXT_TOKENS,
    MODEL,
    Break,
    How,
    answer,
    prompt_of,
    running_token_engine,
)

PATHS = (CHAT, COMPLETIONS)
USAGE = {"stream_options": {"include_usage": True}}


@pytest.fixture
async def two() -> AsyncIterator[Site]:
    """Two replicas; the second one is whole."""
    async with site() as found:
        yield found


def whole(path: str, asked: dict[str, Any], group: int = 1) -> Heard:
    """The same stream from an engine itself."""
    return Heard(b"".join(answer(path, asked, group)).decode())


def breaking(found: Site, *breaks: Break) -> None:
    """The next streams break off so, wherever they are; no replica rests from earlier ones."""
    shared = list(breaks)
    for engine in found.engines:
        engine.breaks = shared
    scheduler = found.running.gateway.scheduler
    for replica in scheduler.replicas.values():
        replica.circuit = Circuit()
        scheduler.touch(replica)


def at_an_event(path: str, asked: dict[str, Any], how: How = "close") -> Break:
    """A break between two events, where an engine is sent the client's own request."""
    return Break(sum(map(len, answer(path, asked, 1)[:7])), how)


def ends(path: str, asked: dict[str, Any], group: int = 1) -> list[int]:
    """Where the events of the stream end that the gateway is told."""
    stream = told(path, asked, group)
    return [at + 2 for at in range(len(stream)) if stream.startswith(b"\n\n", at)]


@pytest.mark.parametrize("path", PATHS)
async def test_a_stream_that_does_not_break_is_the_engines_own_byte_for_byte(
    two: Site, path: str
) -> None:
    """Who switches it on would otherwise pay with every stream for the few that break."""
    for fields in ({}, USAGE, {"return_token_ids": True}):
        asked = body(path, **fields)
        heard = await two.heard(path, asked)
        assert heard.stream == whole(path, asked).stream


@pytest.mark.parametrize(("how", "group"), [("close", 1), ("error", 1), ("end", 1), ("close", 3)])
@pytest.mark.parametrize("path", PATHS)
async def test_a_stream_goes_on_wherever_between_events_it_broke(
    path: str, group: int, how: How
) -> None:
    """A reader of a long answer would lose it for one machine of many."""
    asked = body(path, **USAGE)
    async with site(group=group) as found:
        for at in ends(path, asked, group)[:-1]:
            breaking(found, Break(at, how))
            heard = await found.heard(path, asked)
            heard.check_is(whole(path, asked, group))


@pytest.mark.parametrize("fields", [{}, USAGE, {"return_token_ids": True}])
@pytest.mark.parametrize("path", PATHS)
async def test_a_stream_goes_on_at_whatever_byte_it_broke(
    two: Site, path: str, fields: dict[str, Any]
) -> None:
    """Networks do not break at the ends of events, nor of characters."""
    asked = body(path, max_tokens=8, **fields)
    for at in range(1, len(told(path, asked)), 67):
        breaking(two, Break(at))
        (await two.heard(path, asked)).check_is(whole(path, asked))


@pytest.mark.parametrize("path", PATHS)
async def test_it_goes_on_again_and_again_and_says_so_once_each(path: str) -> None:
    """A rolling restart meets the same long stream on each of its replicas."""
    async with site(4) as found:
        asked = body(path, **USAGE)
        first = ends(path, asked)[6]
        breaking(found, Break(first), Break(1_400), Break(900))
        heard = await found.heard(path, asked)
        heard.check_is(whole(path, asked))
        assert len(heard.comments) == 3
        *before, done = [line for line in heard.lines if line][-4:]
        assert all(line.startswith(": continued replica=127.0.0.1-") for line in before)
        assert done == "data: [DONE]"
        assert 'fairgate_migrations_total{kind="continued"} 3.0' in await found.metrics()


async def test_the_rest_is_asked_for_with_the_ids_and_what_is_left_of_the_limit(two: Site) -> None:
    """Twice the answer, or another one, would be as bad as none."""
    asked = body(CHAT, min_tokens=15, top_k=3, add_generation_prompt=True)
    breaking(two, Break(ends(CHAT, asked)[8]))
    await two.heard(CHAT, asked)
    ((path, rest),) = [
        each for engine in two.engines for each in engine.asked if "prompt" in each[1]
    ]
    ids, prompt = rest["prompt"], prompt_of(asked)
    kept = len(ids) - len(prompt)
    assert path == COMPLETIONS
    assert ids[: len(prompt)] == prompt
    assert 0 < kept <= 8
    assert rest["max_tokens"] == 20 - kept
    assert rest["min_tokens"] == 15 - kept
    assert (rest["top_k"], rest["temperature"], rest["model"]) == (3, 0, MODEL)
    assert rest["return_token_ids"] is rest["stream_options"]["include_usage"] is True
    assert not rest.keys() & {"messages", "add_generation_prompt", "max_completion_tokens"}


@pytest.mark.parametrize("path", PATHS)
async def test_without_a_limit_the_rest_has_the_room_that_the_whole_had(
    two: Site, path: str
) -> None:
    """A chat would end after the 16 tokens of a completion, or run over its context."""
    asked = body(path)
    del asked["max_tokens"]
    breaking(two, Break(ends(path, asked)[5]))
    heard = await two.heard(path, asked)
    heard.check_is(whole(path, asked))
    if path == CHAT:
        assert heard.choices[-1]["finish_reason"] == "length"
        prompt = len(prompt_of(asked))
        asks = [each for engine in two.engines for _, each in engine.asked]
        (rest,) = [each for each in asks if "prompt" in each]
        assert rest["max_tokens"] == CONTEXT_TOKENS - len(rest["prompt"])
        assert len(rest["prompt"]) > prompt


async def test_an_answer_that_was_complete_is_ended_here(two: Site) -> None:
    """Asked for more, another replica would go on behind the end."""
    for fields in (USAGE, {}):
        asked = body(CHAT, **fields)
        for at in ends(CHAT, asked)[-3:-1]:
            for how in ("close", "error"):
                breaking(two, Break(at, how))
                (await two.heard(CHAT, asked)).check_is(whole(CHAT, asked))
    assert all("prompt" not in each for engine in two.engines for _, each in engine.asked)
    assert 'outcome="done"' in await two.metrics()


async def test_the_model_keeps_the_name_its_client_used() -> None:
    """Half an answer from another model looks like a mistake of the client's."""
    async with running_token_engine() as one, running_token_engine() as other:
        models = [{"name": MODEL, "aliases": ["alias"], "replicas": [one.url, other.url]}]
        async with site(0, models=models, wait_ready=False) as found:
            usable = found.running.gateway.scheduler.replicas
            await eventually(lambda: sum(each.is_usable for each in usable.values()) == 2)
            one.breaks = other.breaks = [Break(1_500)]
            asked = body(CHAT, model="alias", service_tier="auto")
            heard = await found.heard(CHAT, asked)
    assert {chunk["model"] for chunk in heard.chunks} == {"alias"}
    assert {chunk["service_tier"] for chunk in heard.chunks} == {"default"}
    assert heard.text == whole(CHAT, {**asked, "model": MODEL}).text


@pytest.mark.parametrize("path", PATHS)
async def test_usage_in_every_event_goes_on_counting(two: Site, path: str) -> None:
    """A client that shows the tokens so far would see them begin anew."""
    options = {"include_usage": True, "continuous_usage_stats": True}
    asked = body(path, stream_options=options)
    breaking(two, Break(ends(path, asked)[10]))
    heard = await two.heard(path, asked)
    assert heard.text == whole(path, asked).text
    counts = [each["usage"]["completion_tokens"] for each in heard.chunks]
    assert counts == sorted(counts)
    assert heard.usages == whole(path, asked).usages


async def test_its_user_pays_for_what_was_produced_and_the_prompt_once(
    two: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure of ours would otherwise be free, or paid twice."""
    records: list[SettledRequest] = []
    finished: list[Finished] = []
    dispatcher = two.running.gateway.dispatcher
    tell = dispatcher.tell

    def listening(event: Event) -> None:
        if isinstance(event, Finished):
            finished.append(event)
        tell(event)

    monkeypatch.setattr(two.running.gateway.relay, "_settled", records.append)
    monkeypatch.setattr(dispatcher, "tell", listening)
    asked = body(COMPLETIONS)
    breaking(two, Break(ends(COMPLETIONS, asked)[9]))
    await two.heard(COMPLETIONS, asked)
    prompt = len(prompt_of(asked))
    (record,) = records
    assert record.usage == Usage(prompt_tokens=prompt, output_tokens=20)
    assert (record.outcome, record.continuations, record.attempts) == ("done", 1, 2)
    first, rest = finished
    assert (first.outcome, first.goes_on, rest.outcome) == (Outcome.FAILED, True, Outcome.DONE)
    assert first.usage == Usage(prompt_tokens=prompt, output_tokens=10)
    assert rest.usage is not None
    # What had no text yet was generated twice.
    assert 10 <= rest.usage.output_tokens <= 14


async def test_no_other_replica_is_waited_for_and_then_it_is_an_error() -> None:
    """A reader must not wait for ever, nor take half an answer for a whole one."""
    async with site(1, retries__continuation_wait_s=0.6, keepalive_after_s=0.2) as found:
        (engine,) = found.engines
        engine.breaks = [Break(1_500)]
        probes = found.running.gateway.fleet._members
        for member in probes.values():
            member.task.cancel()  # it is never seen to answer again
        heard = await found.heard(CHAT, body(CHAT))
    (error,) = heard.errors
    assert error["code"] == "upstream_failed"
    assert "none could take it in time" in error["message"]
    assert heard.lines.count("data: [DONE]") == 1
    assert any(": queued" in each for each in heard.comments)


async def test_a_replica_that_answers_again_may_go_on_with_what_it_broke() -> None:
    """Who has one replica would lose every stream to its restart."""
    async with site(1, retries__continuation_wait_s=10) as found:
        (engine,) = found.engines
        asked = body(CHAT)
        engine.breaks = [Break(1_500)]
        (await found.heard(CHAT, asked)).check_is(whole(CHAT, asked))


async def test_a_client_that_leaves_while_its_stream_looks_for_a_replica_holds_nothing() -> None:
    """A slot that never comes back is the commonest fault of gateways."""
    async with site(1, retries__continuation_wait_s=30) as found:
        (engine,) = found.engines
        engine.breaks = [Break(1_500)]
        for member in found.running.gateway.fleet._members.values():
            member.task.cancel()
        async with (
            client(found.running) as http,
            http.stream("POST", CHAT, json=body(CHAT)) as reply,
        ):
            async for _ in reply.aiter_bytes():
                break
            await eventually(lambda: engine.open == 0)
            await asyncio.sleep(0.05)
        await eventually(lambda: not found.running.gateway.relay.open)
        assert found.running.in_flight == 0


async def test_a_busy_fleet_is_waited_for_in_the_queue() -> None:
    """Another replica that is full would otherwise be as bad as none."""
    async with site(2, scheduling__limiter="static", scheduling__inflight_limit=1) as found:
        one, other = found.engines
        asked = body(CHAT)
        one.breaks = other.breaks = [Break(1_500, "hang")]
        held = asyncio.create_task(found.http.post(CHAT, json=asked))
        await eventually(lambda: one.open + other.open == 1)
        one.breaks = other.breaks = [Break(1_500)]
        heard = asyncio.create_task(found.http.post(CHAT, json=asked))
        await eventually(lambda: found.running.gateway.scheduler.waiting)
        held.cancel()
        reply = await heard
    Heard(reply.text).check_is(whole(CHAT, asked))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"presence_penalty": 0.5}, "penalties"),
        ({"seed": 7, "temperature": 1}, "seed"),
        ({"stop": ["ab"]}, "stop string"),
        ({"response_format": {"type": "json_object"}}, "format"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"logprobs": True}, "log probabilities"),
        ({"n": 2}, "more than one"),
    ],
)
async def test_what_cannot_be_continued_exactly_ends_with_an_error_that_says_why(
    two: Site, fields: dict[str, Any], words: str
) -> None:
    """Half an answer with a wrong other half is worse than half an answer."""
    asked = body(CHAT, **fields)
    breaking(two, at_an_event(CHAT, asked))
    heard = await two.heard(CHAT, asked)
    (error,) = heard.errors
    assert words in error["message"]
    assert heard.lines.count("data: [DONE]") == 1
    assert all("return_token_ids" not in each for engine in two.engines for _, each in engine.asked)


async def test_a_tier_without_it_sends_what_its_client_sent(two: Site) -> None:
    """What is switched off costs nothing and changes nothing."""
    async with site(tiers=[{**ON[0], "continuation": "off"}]) as found:
        breaking(found, at_an_event(CHAT, body(CHAT)))
        heard = await found.heard(CHAT, body(CHAT))
        assert "continued" not in heard.errors[0]["message"]
        sent = [each for engine in found.engines for _, each in engine.asked]
        assert all("return_token_ids" not in each for each in sent)


async def test_an_error_that_is_the_requests_own_fault_is_not_tried_elsewhere(two: Site) -> None:
    """Every replica would refuse it, one after the other."""
    breaking(two, Break(ends(CHAT, body(CHAT))[6], "refusal"))
    heard = await two.heard(CHAT, body(CHAT))
    assert [each["message"] for each in heard.errors] == ["EngineCore died"]
    assert sum(len(engine.asked) for engine in two.engines) == 1


async def test_a_cut_among_several_tokens_is_found_with_the_engines_help(two: Site) -> None:
    """Text would be doubled or lost inside a character."""
    asked = body(CHAT)
    asks = 0
    async with site(group=4) as found:
        for at in ends(CHAT, asked, 4)[:-3]:
            breaking(found, Break(at))
            (await found.heard(CHAT, asked)).check_is(whole(CHAT, asked, 4))
        asks = sum(path == "/detokenize" for engine in found.engines for path, _ in engine.asked)
        assert asks
        for engine in found.engines:
            engine.detokenizes = False
        breaking(found, Break(ends(CHAT, asked, 4)[3]))
        (error,) = (await found.heard(CHAT, asked)).errors
    assert "joined" in error["message"]


async def test_token_ids_that_were_shown_are_not_shown_again(two: Site) -> None:
    """A client that counts or decodes by ids would have some of them twice."""
    asked = body(CHAT, return_token_ids=True)
    for at in ends(CHAT, asked)[:-1]:
        breaking(two, Break(at), Break(at // 2 + 400))
        heard = await two.heard(CHAT, asked)
        heard.check_is(whole(CHAT, asked))


def exchange_of(found: Site) -> tuple[Exchange, "asyncio.Task[None]"]:
    """The one exchange that is open."""
    ((exchange, task),) = found.running.gateway.relay.open.items()
    assert task is not None
    return exchange, task


@pytest.mark.parametrize("count", [1, 2])
async def test_a_stream_can_be_moved_away_on_purpose(count: int) -> None:
    """An operator who drains a replica would wait for its longest stream, or break it."""
    async with site(count) as found:
        asked = body(CHAT)
        for engine in found.engines:
            engine.breaks = [Break(ends(CHAT, asked)[6], "hang")]
        reading = asyncio.create_task(found.heard(CHAT, asked))
        under_way = found.running.gateway.relay.open
        await eventually(lambda: any(each.output_tokens > 5 for each in under_way))
        exchange, task = exchange_of(found)
        for engine in found.engines:
            engine.breaks = []
        assert exchange.move_away(task)
        assert not exchange.move_away(task), "once is enough"
        heard = await reading
        heard.check_is(whole(CHAT, asked))
        where = heard.comments[-1].rpartition("=")[2]
        assert (where == exchange.replica) is (count == 1), "a replica that did nothing wrong"


async def test_what_cannot_be_continued_is_not_moved(two: Site) -> None:
    """Whoever chooses what to move must not break a stream by it."""
    asked = body(CHAT, presence_penalty=1)
    for engine in two.engines:
        engine.breaks = [Break(1_500, "hang")]
    async with client(two.running) as http, http.stream("POST", CHAT, json=asked):
        await eventually(lambda: two.running.gateway.relay.open)
        exchange, task = exchange_of(two)
        assert not exchange.move_away(task)
    await eventually(lambda: two.running.in_flight == 0)


async def test_a_stream_that_stalls_goes_on_elsewhere(two: Site) -> None:
    """An engine that hangs keeps its connections; its readers would wait for ever."""
    asked = body(CHAT)
    breaking(two, Break(ends(CHAT, asked)[6], "hang"))
    reading = asyncio.create_task(two.heard(CHAT, asked))
    under_way = two.running.gateway.relay.open
    await eventually(lambda: any(each.output_tokens > 5 for each in under_way))
    exchange, task = exchange_of(two)
    exchange.give_up(task)
    (await reading).check_is(whole(CHAT, asked))


async def test_an_answer_that_stalls_after_its_reason_is_ended(two: Site) -> None:
    """It is complete; only its usage did not come."""
    asked = body(CHAT, **USAGE)
    breaking(two, Break(ends(CHAT, asked)[-3], "hang"))
    reading = asyncio.create_task(two.heard(CHAT, asked))
    under_way = two.running.gateway.relay.open
    await eventually(lambda: any(each.output_tokens > 20 for each in under_way))
    exchange, task = exchange_of(two)
    assert not exchange.move_away(task)
    exchange.give_up(task)
    (await reading).check_is(whole(CHAT, asked))
