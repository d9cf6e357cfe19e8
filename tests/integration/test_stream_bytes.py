"""Event streams in every framing that engines and networks produce, through a real gateway."""

from collections.abc import AsyncIterator

import pytest

from tests.support.gateway import Running, client, eventually, running_gateway
from tests.support.raw_engine import SSE_HEAD, RawEngine, chunked, running_raw_engine

BODY = {"model": "raw", "messages": [], "stream": True}
EVENT = 'data: {"choices":[{"delta":{"content":"北京🙂"}}]}\n\n'.encode()
DONE = b"data: [DONE]\n\n"
LAST = b"0\r\n\r\n"


@pytest.fixture
async def engine() -> AsyncIterator[RawEngine]:
    """An engine that says what the test tells it."""
    async with running_raw_engine() as raw:
        yield raw


@pytest.fixture
async def running(engine: RawEngine) -> AsyncIterator[Running]:
    """A gateway before it."""
    async with running_gateway(engine.url) as gateway:
        yield gateway


async def through(running: Running) -> bytes:
    """What the client reads, undecoded."""
    async with client(running) as http:
        answer = await http.post("/v1/chat/completions", json=BODY)
        assert answer.status_code == 200
        await eventually(lambda: running.in_flight == 0)
        return answer.content


@pytest.mark.parametrize(
    "body",
    [
        EVENT + DONE,
        EVENT.replace(b"\n\n", b"\r\n\r\n") + DONE.replace(b"\n\n", b"\r\n\r\n"),
        EVENT.replace(b"\n\n", b"\r\r") + DONE.replace(b"\n\n", b"\r\r"),
        EVENT.replace(b"data: ", b"data:") + DONE.replace(b"data: ", b"data:"),
        b": keep-alive\n\n: keep-alive\n\n" + EVENT + DONE,
        b"event: x\nid: 7\n" + EVENT + DONE,
        b'data: {"choices":[{"delta":{"content":"[DONE]"}}]}\n\n' + DONE,
        b'data: {"choices":[{"delta":{"content":"\\"error\\": no"}}]}\n\n' + DONE,
        b'data: {"choices":[],\ndata: "usage":{"prompt_tokens":1}}\n\n' + EVENT + DONE,
    ],
)
@pytest.mark.parametrize("cut", ["one write", "with the head", "every byte", "every 7 bytes"])
async def test_every_framing_passes_unchanged(
    engine: RawEngine, running: Running, body: bytes, cut: str
) -> None:
    """Rewriters that decode chunk by chunk have lost characters, events and whole answers."""
    size = {"every byte": 1, "every 7 bytes": 7}.get(cut, len(body))
    pieces = [chunked(body[start : start + size]) for start in range(0, len(body), size)]
    if cut == "with the head":
        engine.writes = [SSE_HEAD + pieces[0] + LAST]
    else:
        engine.writes = [SSE_HEAD, *pieces, LAST]
    assert await through(running) == body


async def test_a_stream_without_its_end_is_closed_with_an_error(
    engine: RawEngine, running: Running
) -> None:
    """A clean end without `[DONE]` looks like success to every SDK."""
    engine.writes = [SSE_HEAD, chunked(EVENT), LAST]
    content = await through(running)
    assert content.startswith(EVENT)
    assert content.endswith(DONE)
    assert content.count(b'"upstream_failed"') == 1


async def test_a_body_that_ends_with_the_connection_is_complete(
    engine: RawEngine, running: Running
) -> None:
    """HTTP/1.0 style answers have neither length nor chunks."""
    engine.closes = True
    engine.writes = [b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + EVENT + DONE]
    assert await through(running) == EVENT + DONE


async def test_what_is_not_http_is_an_upstream_failure(engine: RawEngine, running: Running) -> None:
    """Some other service listens there: 502, not a hung client."""
    engine.closes = True
    engine.writes = [b"SSH-2.0-OpenSSH_9.2\r\n\r\n"]
    async with client(running) as http:
        answer = await http.post("/v1/chat/completions", json=BODY)
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "upstream_failed")


@pytest.mark.parametrize("body", [b"not json", b'{"error":"quotes \\" and \\n"}', b"", b"[]", b"7"])
async def test_an_engine_error_of_any_shape_becomes_ours(
    engine: RawEngine, running: Running, body: bytes
) -> None:
    """A hand-built error frame was once not valid JSON when the message held quotes."""
    head = b"HTTP/1.1 422 Unprocessable Entity\r\ncontent-length: %d\r\n\r\n" % len(body)
    engine.writes = [head + body]
    async with client(running) as http:
        answer = await http.post("/v1/chat/completions", json=BODY)
    assert answer.status_code == 422
    assert isinstance(answer.json()["error"]["message"], str)
