"""Event streams in every framing that engines and networks produce, through a real gateway."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx
import pytest
import pytest_asyncio

from gateway.api.routes import CHAT, MESSAGES, RESPONSES, TRANSCRIPTIONS
from tests.support.asks import Ask, ends_of
from tests.support.gateway import Running, client, eventually, running_gateway
from tests.support.raw_engine import SSE_HEAD, RawEngine, chunked, running_raw_engine

pytestmark = pytest.mark.asyncio(loop_scope="module")

TEXT = '北京🙂 [DONE] data: [DONE] \\"error\\": \\"usage\\": é'
EVENT = (
    f'data: {{"id":"1","model":"raw","choices":[{{"delta":{{"content":"{TEXT}"}}}}]}}\n\n'.encode()
)
LAST_EVENT = b'data: {"id":"1","model":"raw","choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
USAGE = b'data: {"id":"1","model":"raw","choices":[],"usage":{"prompt_tokens":3}}\n\n'
DONE = b"data: [DONE]\n\n"
LAST = b"0\r\n\r\n"


def named(name: str, data: str) -> bytes:
    """An event with a name, as both other vendors' streams have."""
    return f"event: {name}\ndata: {data}\n\n".encode()


RESPONSE_EVENTS = (
    named(
        "response.created", '{"response":{"id":"resp_1","model":"raw"},"type":"response.created"}'
    )
    + named(
        "response.output_text.delta", f'{{"delta":"{TEXT}","type":"response.output_text.delta"}}'
    )
    + named(
        "response.completed",
        '{"response":{"id":"resp_1","model":"raw","usage":{"input_tokens":3,"output_tokens":1}},'
        '"type":"response.completed"}',
    )
)
MESSAGE_EVENTS = (
    named("message_start", '{"type":"message_start","message":{"model":"raw","content":[]}}')
    + named("ping", '{"type":"ping"}')
    + named("content_block_delta", f'{{"type":"content_block_delta","delta":{{"text":"{TEXT}"}}}}')
    + named("message_delta", '{"type":"message_delta","usage":{"output_tokens":1}}')
    + named("message_stop", '{"type":"message_stop"}')
)


@dataclass(frozen=True)
class Stream:
    """What an engine says on one route."""

    ask: Ask
    body: bytes

    def __str__(self) -> str:
        return self.ask.route.name


STREAMS = (
    Stream(Ask(CHAT, streams=True), EVENT + LAST_EVENT + USAGE + DONE),
    Stream(Ask(TRANSCRIPTIONS, streams=True), EVENT + LAST_EVENT + USAGE + DONE),
    Stream(Ask(RESPONSES, streams=True), RESPONSE_EVENTS),
    Stream(Ask(MESSAGES, streams=True), MESSAGE_EVENTS),
)
CUTS = {"one write": 0, "every byte": 1, "every 7 bytes": 7, "every 50 bytes": 50}
FRAMINGS = {
    "as it is": lambda body: body,
    "CRLF": lambda body: body.replace(b"\n", b"\r\n"),
    "CR": lambda body: body.replace(b"\n", b"\r"),
    "no space": lambda body: body.replace(b"data: ", b"data:").replace(b"event: ", b"event:"),
    "comments": lambda body: b": keep-alive\n\n" + body.replace(b"\n\n", b"\n\n: x\n\n"),
    "ids": lambda body: b"retry: 1\nid: 7\n" + body,
    "two lines of data": lambda body: body.replace(b',"model"', b',\ndata: "model"'),
}
"""An event that is changed leaves with its data in one line, so the last one says less there."""
every_stream = pytest.mark.parametrize("stream", STREAMS, ids=str)
every_framing = pytest.mark.parametrize("framing", FRAMINGS)
every_cut = pytest.mark.parametrize("cut", CUTS)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[RawEngine]:
    """An engine that says what the test tells it, for all tests of this file."""
    async with running_raw_engine() as raw:
        yield raw


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(engine: RawEngine) -> AsyncIterator[Running]:
    """A gateway before it, with an alias for its model."""
    models = [{"name": "raw", "aliases": ["alias"], "replicas": [engine.url]}]
    async with running_gateway(models=models, wait_ready=False) as gateway:
        await eventually(lambda: gateway.gateway.scheduler.replicas)
        yield gateway


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def http(running: Running) -> AsyncIterator[httpx.AsyncClient]:
    """A client of that gateway; one is enough, and is not cheap to make."""
    async with client(running) as plain:
        yield plain


def answers(engine: RawEngine, *writes: bytes, closes: bool = False) -> None:
    """From now on this is written for each request."""
    engine.writes, engine.closes = writes, closes


def says(engine: RawEngine, body: bytes, cut: str = "one write") -> None:
    """From now on this stream is the answer, cut like that."""
    size = CUTS[cut] or len(body)
    pieces = [chunked(body[start : start + size]) for start in range(0, len(body), size)]
    answers(engine, SSE_HEAD, *pieces, LAST)


async def ask_for(http: httpx.AsyncClient, ask: Ask, **fields: object) -> httpx.Response:
    """The answer to `ask`, with these fields changed."""
    headers = {"content-type": ask.content_type}
    body = ask.body(**{"model": "raw", **fields})
    return await http.post(ask.route.path, content=body, headers=headers)


async def through(http: httpx.AsyncClient, ask: Ask, **fields: object) -> bytes:
    """What the client reads of a stream, undecoded."""
    answer = await ask_for(http, ask, **fields)
    assert answer.status_code == 200
    return answer.content


@every_cut
@every_framing
@every_stream
async def test_every_framing_passes_unchanged(
    engine: RawEngine, http: httpx.AsyncClient, stream: Stream, framing: str, cut: str
) -> None:  # fmt: skip
    """Rewriters that decode chunk by chunk have lost characters, events and whole answers."""
    body = FRAMINGS[framing](stream.body)
    says(engine, body, cut)
    assert await through(http, stream.ask) == body


@every_cut
@pytest.mark.parametrize("framing", [each for each in FRAMINGS if each != "two lines of data"])
@every_stream
async def test_under_an_alias_the_name_of_the_model_changes_and_nothing_else(
    engine: RawEngine, http: httpx.AsyncClient, stream: Stream, framing: str, cut: str
) -> None:  # fmt: skip
    """Half of the users want the name they asked for, and all want every other byte."""
    body = FRAMINGS[framing](stream.body)
    says(engine, body, cut)
    content = await through(http, stream.ask, model="alias")
    assert content == body.replace(b'"model":"raw"', b'"model":"alias"')


@every_cut
@every_framing
async def test_the_usage_that_only_the_gateway_asked_for_is_all_that_is_missing(
    engine: RawEngine, http: httpx.AsyncClient, framing: str, cut: str
) -> None:
    """A client that did not ask breaks on a chunk without choices."""
    says(engine, FRAMINGS[framing](EVENT + LAST_EVENT + USAGE + DONE), cut)
    expected = FRAMINGS[framing](EVENT + LAST_EVENT + DONE)
    content = await through(http, STREAMS[0].ask, stream_options=None)
    assert content.replace(b": x\n\n: x\n\n", b": x\n\n") == expected


@every_stream
async def test_a_stream_that_begins_and_ends_too_soon_is_closed_with_an_error(
    engine: RawEngine, http: httpx.AsyncClient, stream: Stream
) -> None:
    """A clean end without the last event looks like success to every SDK."""
    begun = stream.body[: stream.body.rindex(TEXT.encode()) + len(TEXT.encode())]
    whole = begun + stream.body[len(begun) :].partition(b"\n\n")[0] + b"\n\n"
    says(engine, whole)
    content = await through(http, stream.ask)
    assert content.startswith(whole)
    assert content.count(b'"upstream_failed"') >= 1
    assert "error" in ends_of(stream.ask, content)


async def test_a_body_that_ends_with_the_connection_is_complete(
    engine: RawEngine, http: httpx.AsyncClient
) -> None:
    """HTTP/1.0 style answers have neither length nor chunks."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    answers(engine, head + EVENT + DONE, closes=True)
    assert await through(http, STREAMS[0].ask) == EVENT + DONE


@every_stream
async def test_events_that_come_with_the_headers_are_not_lost(
    engine: RawEngine, http: httpx.AsyncClient, stream: Stream
) -> None:
    """A quick engine's whole answer is one packet."""
    answers(engine, SSE_HEAD + chunked(stream.body) + LAST)
    assert await through(http, stream.ask) == stream.body


@every_stream
async def test_what_is_not_http_is_an_upstream_failure(
    engine: RawEngine, http: httpx.AsyncClient, stream: Stream
) -> None:
    """Some other service listens there: 502, not a hung client."""
    answers(engine, b"SSH-2.0-OpenSSH_9.2\r\n\r\n", closes=True)
    answer = await ask_for(http, stream.ask)
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_failed")


@every_stream
@pytest.mark.parametrize("body", [b"not json", b'{"error":"quotes \\" and \\n"}', b"", b"[]", b"7"])
async def test_an_engine_error_of_any_shape_becomes_ours(
    engine: RawEngine, http: httpx.AsyncClient, stream: Stream, body: bytes
) -> None:
    """A hand-built error frame was once not valid JSON when the message held quotes."""
    head = b"HTTP/1.1 422 Unprocessable Entity\r\ncontent-length: %d\r\n\r\n" % len(body)
    answers(engine, head + body)
    answer = await ask_for(http, stream.ask)
    assert answer.status_code == 422
    assert isinstance(json.loads(answer.content)["error"]["message"], str)


MARK = b',"system_fingerprint":"vllm-1"'


@pytest.mark.parametrize("model", ["raw", "alias"])
async def test_each_of_several_choices_ends_as_the_engine_ends_it_unasked(
    engine: RawEngine, http: httpx.AsyncClient, model: str
) -> None:
    """vLLM marks the end of each choice; asked for the usage, it marks that chunk alone."""

    def end(choice: int, mark: bytes = b"") -> bytes:
        text = (
            b'data: {"id":"1","model":"raw","choices":[{"index":%d,"finish_reason":"stop"}]%b}\n\n'
        )
        return text % (choice, mark)

    usage = USAGE.replace(b"}}", b"}" + MARK + b"}")
    asked = EVENT + end(0) + EVENT + end(1) + usage + DONE
    unasked = EVENT + end(0, MARK) + EVENT + end(1, MARK) + DONE
    body = {"model": model, "messages": [], "stream": True, "n": 2}
    for expected in (None, unasked):
        says(engine, asked)
        answer = await http.post("/v1/chat/completions", json=body)
        left = answer.content.replace(b'"model":"alias"', b'"model":"raw"')
        assert expected is None or left == expected
