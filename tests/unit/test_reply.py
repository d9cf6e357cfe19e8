"""What goes back to a client: headers once, bytes, and at most one terminal error."""

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import pytest

from gateway.api.reply import Reply
from gateway.api.shapes import CHUNKS, MESSAGE, RESPONSE, Shape
from gateway.core.messages import Reason
from gateway.errors import BadRequestError, RefusedError, UpstreamFailedError


class Wire:
    """What was sent, as a client would see it."""

    def __init__(self, shape: Shape = CHUNKS) -> None:
        self.messages: list[MutableMapping[str, Any]] = []
        self.reply = Reply(self.send, b"id-1", shape)

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """ASGI's send."""
        assert not self.is_finished, "something is sent after the end"
        assert message["type"] == ("http.response.body" if self.messages else "http.response.start")
        self.messages.append(message)

    @property
    def is_finished(self) -> bool:
        """Whether the server has been told that the answer is complete."""
        return len(self.messages) > 1 and not self.messages[-1]["more_body"]

    @property
    def status(self) -> int:
        """The status sent."""
        return int(self.messages[0]["status"])

    @property
    def headers(self) -> dict[bytes, bytes]:
        """The headers sent; none twice."""
        pairs = self.messages[0]["headers"]
        assert len(dict(pairs)) == len(pairs)
        return dict(pairs)

    @property
    def body(self) -> bytes:
        """All of the body so far."""
        return b"".join(message["body"] for message in self.messages[1:])


@pytest.fixture
def wire() -> Wire:
    """A client."""
    return Wire()


async def test_a_stream_says_that_nothing_may_hold_it_back(wire: Wire) -> None:
    """nginx keeps an event stream to its end unless it is told."""
    await wire.reply.begin_stream()
    await wire.reply.write(b"data: 1\n\n")
    await wire.reply.finish(b"data: [DONE]\n\n")
    assert wire.status == 200
    assert wire.headers == {
        b"x-request-id": b"id-1",
        b"content-type": b"text/event-stream; charset=utf-8",
        b"cache-control": b"no-cache",
        b"x-accel-buffering": b"no",
    }
    assert wire.body == b"data: 1\n\ndata: [DONE]\n\n"
    assert wire.is_finished


async def test_headers_are_sent_once(wire: Wire) -> None:
    """A comment may have sent them before the engine answered."""
    wire.reply.add_header(b"x-early", b"1")
    await wire.reply.queued(3, 4.26)
    wire.reply.add_header(b"x-late", b"1")
    await wire.reply.begin_stream(b"text/event-stream")
    await wire.reply.begin(418, [])
    assert wire.status == 200
    assert wire.headers[b"x-early"] == b"1"
    assert b"x-late" not in wire.headers
    assert wire.body == b": queued position=3 eta_s=4.3\n\n"


async def test_a_comment_has_no_id_and_says_when_the_wait_is_unknown(wire: Wire) -> None:
    """After an `id:` field openai-python takes every comment for an empty event, and fails."""
    await wire.reply.queued(1, None)
    assert wire.body == b": queued position=1 eta_s=unknown\n\n"


@pytest.mark.parametrize("streams", [True, False])
async def test_before_the_headers_an_error_keeps_its_status(wire: Wire, streams: bool) -> None:
    """A 200 that says it is an error is retried by nobody."""
    wire.reply.streams = streams
    wire.reply.add_header(b"x-fairgate-tier", b"high")
    await wire.reply.fail(RefusedError(Reason.QUEUE_FULL, 2.6))
    assert wire.status == 429
    assert wire.headers == {
        b"x-request-id": b"id-1",
        b"x-fairgate-tier": b"high",
        b"content-type": b"application/json",
        b"content-length": b"%d" % len(wire.body),
        b"retry-after": b"3",
        b"retry-after-ms": b"2600",
    }
    assert json.loads(wire.body)["error"]["code"] == "over_capacity"
    assert wire.reply.status == 429
    assert wire.is_finished


async def test_after_the_headers_a_stream_ends_with_one_error_event_and_done(wire: Wire) -> None:
    """Clients take a stream that just ends for a success."""
    wire.reply.streams = True
    await wire.reply.queued(1, None)
    await wire.reply.fail(RefusedError(Reason.PATIENCE_SPENT, 5.0))
    _, event, done, rest = wire.body.decode().split("\n\n")
    assert json.loads(event.removeprefix("data: "))["error"]["code"] == "patience_spent"
    assert (done, rest) == ("data: [DONE]", "")
    assert wire.is_finished


async def test_an_error_is_valid_json_whatever_its_message_holds(wire: Wire) -> None:
    """A hand-built frame breaks at the first quote, and its newline ends the event."""
    message = 'a "quote"\n\ndata: [DONE]\n\n\\ \x00 北京'
    wire.reply.streams = True
    await wire.reply.begin_stream()
    await wire.reply.fail(UpstreamFailedError(message))
    first = wire.body.split(b"\n\n")[0].removeprefix(b"data: ")
    assert json.loads(first)["error"]["message"] == message


async def test_an_error_after_part_of_an_event_is_an_event_of_its_own(wire: Wire) -> None:
    """Glued to half a line it would be lost, and the client would wait for what never comes."""
    wire.reply.streams = True
    await wire.reply.begin_stream()
    await wire.reply.write(b'data: {"choices":[{"del')
    await wire.reply.fail(UpstreamFailedError("broke off"))
    half, error, done, _ = wire.body.split(b"\n\n")
    assert half == b'data: {"choices":[{"del'
    assert json.loads(error.removeprefix(b"data: "))["error"]["code"] == "upstream_failed"
    assert done == b"data: [DONE]"


async def test_a_plain_answer_that_breaks_off_is_left_unfinished(wire: Wire) -> None:
    """The cut connection is the only sign that is left: half a JSON text with a clean end lies."""
    await wire.reply.begin(200, [(b"content-length", b"100")])
    await wire.reply.write(b'{"half":')
    await wire.reply.fail(UpstreamFailedError("broke off"))
    assert wire.body == b'{"half":'
    assert not wire.is_finished
    assert wire.reply.is_finished


@pytest.mark.parametrize("streams", [True, False])
async def test_nothing_follows_the_end(wire: Wire, streams: bool) -> None:
    """A second answer would be read as the answer to the next request."""
    wire.reply.streams = streams
    await wire.reply.begin(200, [])
    await wire.reply.finish(b"{}")
    await wire.reply.fail(BadRequestError("late"))
    await wire.reply.fail(BadRequestError("later"))
    assert wire.body == b"{}"


async def test_an_anthropic_client_finds_the_id_where_it_looks_for_it() -> None:
    """On answers, streams and errors alike, beside the header that the gateway's own log names."""
    begins: tuple[Callable[[Reply], Awaitable[None]], ...] = (
        lambda reply: reply.begin(200, []),
        lambda reply: reply.begin_stream(),
        lambda reply: reply.queued(1, None),
        lambda reply: reply.fail(BadRequestError("no")),
    )
    for begin in begins:
        wire = Wire(MESSAGE)
        await begin(wire.reply)
        assert wire.headers[b"request-id"] == wire.headers[b"x-request-id"] == b"id-1"


@pytest.mark.parametrize(
    ("shape", "sign"),
    [(CHUNKS, b": queued "), (RESPONSE, b": queued "), (MESSAGE, b"event: ping\n")],
)
async def test_a_stream_waits_and_fails_in_the_words_of_its_route(
    shape: Shape, sign: bytes
) -> None:
    """One end, whichever it is."""
    wire = Wire(shape)
    wire.reply.streams = True
    await wire.reply.queued(1, None)
    assert wire.body.startswith(sign)
    waited = len(wire.body)
    await wire.reply.fail(UpstreamFailedError("broke off"))
    assert wire.body[waited:] == shape.error_event(UpstreamFailedError("broke off"))
    assert wire.is_finished


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
async def test_an_error_after_a_whole_event_adds_no_lines(wire: Wire, end: bytes) -> None:
    """Whatever ends the lines of the engine."""
    wire.reply.streams = True
    await wire.reply.begin_stream()
    await wire.reply.write(b"data: 1" + end)
    await wire.reply.fail(UpstreamFailedError("broke off"))
    assert wire.body.startswith(b"data: 1" + end + b"data: {")
