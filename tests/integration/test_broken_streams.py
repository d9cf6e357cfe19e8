"""Streams and answers that end where they should not: what the client is left with."""

import json
from collections.abc import AsyncIterator

import httpx
import pytest

from gateway.api.whole import HELD_BYTES_MAX
from gateway.core.messages import Event, Finished, Outcome, Usage
from tests.support.gateway import Running, client, eventually, running_gateway
from tests.support.raw_engine import SSE_HEAD, RawEngine, chunked, running_raw_engine
from tests.support.sse_reference import payloads_of

BODY = {"model": "raw", "messages": [], "stream": True}
EVENT = b'data: {"id":"1","model":"raw","choices":[{"delta":{"content":"x"}}]}\n\n'
ERROR = b'data: {"error":{"message":"no memory","code":500}}\n\n'
DONE = b"data: [DONE]\n\n"
LAST = b"0\r\n\r\n"
ALIASED = [{"name": "raw", "aliases": ["alias"]}]


@pytest.fixture
async def engine() -> AsyncIterator[RawEngine]:
    """An engine that says what the test tells it."""
    async with running_raw_engine() as raw:
        yield raw


@pytest.fixture
async def running(engine: RawEngine) -> AsyncIterator[Running]:
    """A gateway before it, with an alias for its model."""
    models = [{**ALIASED[0], "replicas": [engine.url]}]
    async with running_gateway(models=models, wait_ready=False) as gateway:
        await eventually(lambda: gateway.gateway.scheduler.replicas)
        yield gateway


async def streamed(running: Running, **fields: object) -> str:
    """The text of a stream that must begin well."""
    async with client(running) as http:
        answer = await http.post("/v1/chat/completions", json={**BODY, **fields})
    assert answer.status_code == 200
    await eventually(lambda: running.in_flight == 0)
    return answer.text


@pytest.mark.parametrize("model", ["raw", "alias"])
@pytest.mark.parametrize("ends_well", [True, False])
@pytest.mark.parametrize("half", [b"", b'data: {"choices":[{"del', b"data: {}\n", b": keep-al"])
async def test_an_error_is_an_event_of_its_own_wherever_the_stream_broke(
    engine: RawEngine, running: Running, half: bytes, ends_well: bool, model: str
) -> None:
    """Glued to half an event it would be lost with it."""
    engine.writes = [SSE_HEAD, chunked(EVENT), chunked(half) if half else b""]
    if ends_well:
        engine.writes = [*engine.writes, LAST]
    else:
        engine.closes = True
    text = await streamed(running, model=model)
    first, error, done = payloads_of(text.encode())
    assert json.loads(first)["choices"], "of what broke off nothing is left"
    assert json.loads(error)["error"]["code"] == "upstream_failed"
    assert done == b"[DONE]"
    assert text.count("\n\n") == 3
    assert text.endswith("\n\n")


CUTS = (1, 5, 6, 40, len(EVENT) - 2, len(EVENT) - 1)


@pytest.mark.parametrize("wants_usage", [True, False])
@pytest.mark.parametrize("cut", CUTS)
async def test_half_an_event_is_never_told(
    engine: RawEngine, running: Running, cut: int, wants_usage: bool
) -> None:
    """Clients would fail over its JSON, and never read the error that follows."""
    engine.writes = [SSE_HEAD, chunked(EVENT), chunked(EVENT + EVENT[:cut])]
    engine.closes = True
    text = await streamed(running, stream_options={"include_usage": wants_usage})
    assert text.startswith((EVENT + EVENT).decode())
    error, done = payloads_of(text.encode())[2:]
    assert json.loads(error)["error"]["code"] == "upstream_failed"
    assert done == b"[DONE]"
    assert text.count("\n\n") == 4


NAMED = (
    ("/v1/responses", b'event: response.output_text.delta\ndata: {"delta":"x"}\n\n'),
    ("/v1/messages", b'event: content_block_delta\ndata: {"delta":{"text":"x"}}\n\n'),
)


@pytest.mark.parametrize(("path", "event"), NAMED)
@pytest.mark.parametrize("half", [b"event: response", b"event: ping\n", b'event: x\ndata: {"a'])
async def test_half_a_named_event_lends_its_name_to_no_error(
    engine: RawEngine, running: Running, path: str, event: bytes, half: bytes
) -> None:
    """An error that is called `ping` is passed over."""
    engine.writes = [SSE_HEAD, chunked(event), chunked(event[:9]), chunked(event[9:] + half)]
    engine.closes = True
    async with client(running) as http:
        answer = await http.post(path, json={**BODY, "input": "x", "max_tokens": 9})
    assert answer.text.startswith((event + event).decode())
    rest = answer.text.removeprefix((event + event).decode())
    assert rest.startswith("event: error\ndata: {")
    assert rest.count("event:") == 1
    await eventually(lambda: running.in_flight == 0)


async def test_a_whole_stream_is_whole_however_its_connection_ended(
    engine: RawEngine, running: Running
) -> None:
    """An error behind `[DONE]` would make a failure of an answer that is complete."""
    engine.writes = [SSE_HEAD, chunked(EVENT), chunked(DONE)]
    engine.closes = True
    assert await streamed(running) == (EVENT + DONE).decode()


async def test_what_is_longer_than_may_be_held_is_closed_before_the_error(
    engine: RawEngine, running: Running
) -> None:
    """It was passed on as it came; glued to it, the error would be lost."""
    long = b'data: {"choices":[' + b" " * (3 * HELD_BYTES_MAX // 2)
    engine.writes = [SSE_HEAD, chunked(EVENT), chunked(long)]
    engine.closes = True
    text = await streamed(running, stream_options={"include_usage": True})
    _, half, error, done = payloads_of(text.encode())
    assert half.startswith(b'{"choices":[ ')
    assert json.loads(error)["error"]["code"] == "upstream_failed"
    assert done == b"[DONE]"


def ends_of(running: Running, monkeypatch: pytest.MonkeyPatch) -> list[Finished]:
    """What the scheduler is told of ends from now on."""
    ends: list[Finished] = []
    dispatcher = running.gateway.dispatcher
    tell = dispatcher.tell

    def listening(event: Event) -> None:
        if isinstance(event, Finished):
            ends.append(event)
        tell(event)

    monkeypatch.setattr(dispatcher, "tell", listening)
    return ends


async def test_a_client_that_leaves_is_charged_for_what_was_produced(
    engine: RawEngine, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken for a failure of the engine's, leaving before the end would make all tokens free."""
    ends = ends_of(running, monkeypatch)
    engine.writes = [SSE_HEAD, chunked(EVENT), chunked(EVENT)]
    async with (
        client(running) as http,
        http.stream("POST", "/v1/chat/completions", json=BODY) as answer,
    ):
        text = b""
        async for data in answer.aiter_bytes():
            text += data
            if text == EVENT + EVENT:
                break
    await eventually(lambda: ends)
    assert [end.outcome for end in ends] == [Outcome.CANCELLED]
    assert ends[0].usage == Usage(output_tokens=2)


async def test_a_stream_that_ends_without_done_is_no_success(
    engine: RawEngine, running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it produced so far would be learnt as the usual length of this user's answers."""
    ends = ends_of(running, monkeypatch)
    engine.writes = [SSE_HEAD, chunked(EVENT), LAST]
    await streamed(running)
    assert [end.outcome for end in ends] == [Outcome.FAILED]
    async with client(running) as http:
        metrics = (await http.get("/metrics")).text
    assert 'requests_total{outcome="upstream_failed",tier="standard"} 1.0' in metrics
    assert 'outcome="done"' not in metrics


async def test_an_engines_error_event_without_done_is_completed(
    engine: RawEngine, running: Running
) -> None:
    """Clients wait for `[DONE]`; a second error on top would hide the first."""
    engine.writes = [SSE_HEAD, chunked(EVENT), chunked(ERROR), LAST]
    text = await streamed(running)
    assert text == (EVENT + ERROR + DONE).decode()


async def test_done_followed_by_a_comment_is_done(engine: RawEngine, running: Running) -> None:
    """A keep-alive that crosses the end in one packet must not turn success into failure."""
    body = EVENT + DONE + b": keep-alive\n\n"
    engine.writes = [SSE_HEAD + chunked(body) + LAST]
    assert await streamed(running) == body.decode()


async def test_a_long_plain_answer_that_breaks_off_is_cut_and_not_ended(
    engine: RawEngine, running: Running
) -> None:
    """Half a JSON text with a clean end would be taken for the whole."""
    head = b"HTTP/1.1 200 OK\r\ncontent-length: 9000000\r\n\r\n"
    engine.writes = [head, b'{"x":"', *[b"x" * 100_000] * 20]
    engine.closes = True
    async with client(running) as http:
        with pytest.raises(httpx.RemoteProtocolError):
            await http.post("/v1/chat/completions", json={"model": "raw", "messages": []})
    await eventually(lambda: running.in_flight == 0)


async def test_a_body_too_deep_for_most_parsers_is_renamed_all_the_same(
    engine: RawEngine, running: Running
) -> None:
    """Whether it makes sense is the engine's to say; the fault would be found after the grant."""
    engine.writes = [b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"]
    body = b'{"model":"alias","messages":' + b"[" * 400 + b"]" * 400 + b"}"
    async with client(running) as http:
        answer = await http.post("/v1/chat/completions", content=body)
    assert answer.status_code == 200
    await eventually(lambda: running.in_flight == 0)


@pytest.mark.parametrize("said", [b"", b": keep-alive\n\n"])
async def test_a_stream_that_ends_before_it_began_is_an_error_with_a_status(
    engine: RawEngine, running: Running, said: bytes
) -> None:
    """The 200 of an engine says little; what ends without a word can still be told as a failure."""
    engine.writes = [SSE_HEAD, chunked(said) if said else b"", LAST]
    async with client(running) as http:
        answer = await http.post("/v1/chat/completions", json=BODY)
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_failed")
    await eventually(lambda: running.in_flight == 0)
