"""The client's side of a connection: what is written for an answer, and in how many writes."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, cast

import pytest
from uvicorn import Config
from uvicorn.server import ServerState

from gateway.api.disconnect import DEPARTURE, ClientLeftError, cancelled_when_client_leaves
from gateway.api.inbound import ClientConnection
from gateway.api.reply import DIRECT
from tests.support.sockets import Socket

Message = MutableMapping[str, Any]
App = Callable[[Any, Any, Any], Awaitable[None]]
GET = b"GET /a HTTP/1.1\r\nhost: x\r\n\r\n"


class Client:
    """A client of `app` on a connection that is looked at write by write."""

    def __init__(self, app: App) -> None:
        config = Config(
            cast(Any, app), http=cast(Any, ClientConnection), ws="none", log_config=None
        )
        config.load()
        self.socket = Socket()
        state = ServerState()
        self.connection = ClientConnection(config=config, server_state=state, app_state={})
        self.connection.connection_made(self.socket)

    async def send(self, data: bytes) -> list[bytes]:
        """Send bytes, let everything happen that can, and see what was written."""
        before = len(self.socket.writes)
        self.connection.data_received(data)
        await self.settle()
        return self.socket.writes[before:]

    async def settle(self) -> None:
        """Let everything happen that can."""
        for _ in range(20):
            await asyncio.sleep(0)

    def leave(self) -> None:
        """The connection ends."""
        self.socket.is_ended = True
        self.connection.connection_lost(None)


def answering(*messages: Message) -> App:
    """An application that sends these."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for message in messages:
            await send(dict(message))

    return app


def start(status: int = 200, *headers: tuple[bytes, bytes]) -> Message:
    """The beginning of an answer."""
    return {"type": "http.response.start", "status": status, "headers": list(headers)}


def body(data: bytes = b"", *, more: bool = False) -> Message:
    """Some of its body."""
    return {"type": "http.response.body", "body": data, "more_body": more}


def head_of(write: bytes) -> list[bytes]:
    """The lines of the head."""
    return write.partition(b"\r\n\r\n")[0].split(b"\r\n")


@pytest.fixture
def failures(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """What the server logs of an application that broke the rules."""
    caplog.set_level(logging.ERROR, "uvicorn.error")
    return caplog


async def test_a_whole_answer_is_one_write() -> None:
    """Each write more is a system call more for every request."""
    client = Client(answering(start(200, (b"content-length", b"2")), body(b"{}")))
    (write,) = await client.send(GET)
    assert write == b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
    assert not client.socket.is_ended


async def test_the_head_of_a_stream_leaves_with_its_first_event() -> None:
    """And each event afterwards is a chunk of its own, written at once."""
    client = Client(answering(start(), body(b"one", more=True), body(b"two", more=True), body()))
    first, *rest = await client.send(GET)
    assert first == b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n"
    assert rest == [b"3\r\ntwo\r\n", b"0\r\n\r\n"]


async def test_the_last_bytes_and_the_end_of_a_stream_are_one_write() -> None:
    """The error event that ends a stream, for one."""
    client = Client(answering(start(), body(b"one", more=True), body(b"end")))
    assert (await client.send(GET))[1:] == [b"3\r\nend\r\n0\r\n\r\n"]


async def test_an_empty_piece_lets_the_head_go_and_is_no_end() -> None:
    """An empty chunk would be read as the end of the body."""
    client = Client(answering(start(), body(more=True), body(more=True), body(b"x")))
    head, rest = await client.send(GET)
    assert head.endswith(b"\r\n\r\n")
    assert rest == b"1\r\nx\r\n0\r\n\r\n"


async def test_an_empty_stream_has_an_end() -> None:
    """Else the client would wait for it."""
    (write,) = await Client(answering(start(), body())).send(GET)
    assert write.endswith(b"chunked\r\n\r\n0\r\n\r\n")


async def test_a_head_has_no_body_and_keeps_its_length() -> None:
    """What follows would be read as the next answer."""
    head = GET.replace(b"GET", b"HEAD")
    client = Client(answering(start(200, (b"content-length", b"2")), body(b"{}")))
    assert await client.send(head * 2) == [b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"] * 2


@pytest.mark.parametrize("status", [204, 304])
async def test_a_status_without_a_body_announces_none(status: int) -> None:
    """A client takes a length or a coding there for the beginning of something."""
    (write,) = await Client(answering(start(status), body())).send(GET)
    assert b"transfer-encoding" not in write
    assert b"content-length" not in write
    assert write.endswith(b"\r\n\r\n")


@pytest.mark.parametrize("content", [b"{", b"{}}"])
async def test_a_body_of_another_length_than_announced_ends_the_connection(
    content: bytes, failures: pytest.LogCaptureFixture
) -> None:
    """On a kept connection the difference would be part of the next answer."""
    client = Client(answering(start(200, (b"content-length", b"2")), body(content)))
    written = b"".join(await client.send(GET))
    assert client.socket.is_ended
    assert not written.endswith(b"{}}")
    assert "content-length" in failures.text


async def test_a_header_cannot_hold_a_second_one(failures: pytest.LogCaptureFixture) -> None:
    """An engine's or a client's word could otherwise end the head."""
    for name, value in ((b"a", b"b\r\nc: d"), (b"a\r\nb", b"c"), (b"a", b"\r"), (b"a", b"\n")):
        client = Client(answering(start(200, (name, value)), body()))
        assert await client.send(GET) == []
        assert client.socket.is_ended


async def test_pipelined_requests_are_answered_in_order_one_at_a_time() -> None:
    """Answers have no names: the order is all that tells which is whose."""
    gates = {"/1": asyncio.Event(), "/2": asyncio.Event()}
    begun = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        begun.append(scope["path"])
        await gates[scope["path"]].wait()
        await send(start(200, (b"content-length", b"2")))
        await send(body(scope["path"].encode()))

    client = Client(app)
    both = GET.replace(b"/a", b"/1") + GET.replace(b"/a", b"/2")
    assert await client.send(both) == []
    assert begun == ["/1"]
    assert client.socket.is_reading_paused
    gates["/2"].set()
    await client.settle()
    assert client.socket.writes == []
    gates["/1"].set()
    await client.settle()
    assert [write[-2:] for write in client.socket.writes] == [b"/1", b"/2"]
    assert not client.socket.is_reading_paused


async def test_a_connection_serves_one_request_after_the_other() -> None:
    """Clients keep connections; a handshake for each request would be most of its cost."""
    client = Client(answering(start(200, (b"content-length", b"2")), body(b"{}")))
    first = await client.send(GET)
    assert await client.send(GET) == first
    assert not client.socket.is_ended


async def test_who_asks_for_the_end_of_the_connection_gets_it() -> None:
    """And is told so."""
    client = Client(answering(start(200, (b"content-length", b"2")), body(b"{}")))
    asks = GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    (write,) = await client.send(asks)
    assert head_of(write)[1:] == [b"content-length: 2", b"connection: close"]
    assert client.socket.is_ended


async def test_an_application_may_end_the_connection() -> None:
    """Said once, not twice."""
    headers = ((b"content-length", b"0"), (b"connection", b"Close"))
    client = Client(answering(start(500, *headers), body()))
    (write,) = await client.send(GET)
    assert head_of(write)[1:] == [b"content-length: 0", b"connection: Close"]
    assert client.socket.is_ended


async def test_an_old_client_gets_no_chunks() -> None:
    """HTTP/1.0 does not know them: their lengths would be part of what it reads."""
    client = Client(answering(start(), body(b"one", more=True), body(b"two")))
    writes = await client.send(GET.replace(b"1.1", b"1.0"))
    assert writes == [b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\none", b"two"]
    assert client.socket.is_ended


async def reading(scope: Any, receive: Any, send: Any) -> None:
    """Reads the body and says how long it was."""
    size, more = 0, True
    while more:
        message = await receive()
        size, more = size + len(message["body"]), message["more_body"]
    await send(start(200, (b"content-length", b"1")))
    await send(body(b"%d" % size))


POST = b"POST /a HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\n"


async def test_who_waits_with_its_body_is_told_to_send_it() -> None:
    """curl waits a second before it sends a large body without being asked."""
    client = Client(reading)
    assert await client.send(POST) == [b"HTTP/1.1 100 Continue\r\n\r\n"]
    (answer,) = await client.send(b"abc")
    assert answer.endswith(b"\r\n\r\n3")


async def test_who_is_refused_before_its_body_is_not_told_to_send_it() -> None:
    """That is what it waits for."""
    client = Client(answering(start(413, (b"content-length", b"0")), body()))
    (write,) = await client.send(POST)
    assert write.startswith(b"HTTP/1.1 413")


async def test_a_body_that_nobody_reads_is_not_taken_for_a_request() -> None:
    """It may look like one."""
    client = Client(answering(start(413, (b"content-length", b"0")), body()))
    whole = GET.replace(b"GET", b"POST").replace(b"\r\n\r\n", b"\r\ncontent-length: %d\r\n\r\n")
    assert len(await client.send(whole % len(GET) + GET)) == 1
    assert len(await client.send(GET)) == 1


async def test_a_slow_reader_is_waited_for() -> None:
    """What it does not take would otherwise fill the memory."""
    sent = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(start())
        for number in range(3):
            await send(body(b"%d" % number, more=True))
            sent.append(number)
        await send(body())

    client = Client(app)
    client.connection.pause_writing()
    assert await client.send(GET) == []
    client.connection.resume_writing()
    await client.settle()
    assert sent == [0, 1, 2]


async def test_a_slow_reader_that_leaves_ends_the_waiting() -> None:
    """Nobody waits for ever for what is never read."""
    ended = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(start())
        await send(body(b"x", more=True))
        await send(body())
        ended.set()

    client = Client(app)
    client.connection.pause_writing()
    await client.send(GET)
    client.leave()
    await client.settle()
    assert ended.is_set()
    assert client.socket.writes == []


async def test_a_client_that_leaves_ends_what_is_done_for_it() -> None:
    """At that very moment, without anybody asking."""
    outcomes = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        try:
            async with cancelled_when_client_leaves(receive, scope[DEPARTURE]):
                await asyncio.sleep(3600)
        except ClientLeftError:
            outcomes.append(scope["path"])

    client = Client(app)
    await client.send(GET + GET.replace(b"/a", b"/pipelined"))
    client.leave()
    await client.settle()
    assert outcomes == ["/a"], "the one that runs; the other one never began"


async def test_an_application_that_fails_before_it_answers_is_a_500(
    failures: pytest.LogCaptureFixture,
) -> None:
    """A connection that just ends looks like a network fault."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise ValueError("a fault")

    client = Client(app)
    (write,) = await client.send(GET)
    assert write.startswith(b"HTTP/1.1 500 ")
    assert client.socket.is_ended
    assert "a fault" in failures.text


@pytest.mark.parametrize(
    "messages",
    [
        [body(b"x")],
        [start(), start()],
        [start(200, (b"content-length", b"0")), body(), body()],
        [start(200, (b"content-length", b"0")), body(), start()],
    ],
)
async def test_an_application_that_breaks_the_order_is_found_out(
    messages: list[Message], failures: pytest.LogCaptureFixture
) -> None:
    """A second answer would be read as the answer to the next request."""
    client = Client(answering(*messages))
    assert len(await client.send(GET)) <= 1
    assert client.socket.is_ended
    assert failures.text


async def test_an_application_that_stops_in_the_middle_ends_the_connection(
    failures: pytest.LogCaptureFixture,
) -> None:
    """The cut is the only sign that the body is not whole."""
    client = Client(answering(start(), body(b"half", more=True)))
    (write,) = await client.send(GET)
    assert write.endswith(b"4\r\nhalf\r\n")
    assert client.socket.is_ended


async def test_what_need_not_wait_is_written_at_once_and_framed_alike() -> None:
    """Tokens that arrive pass through here without a turn of the loop."""
    seen: list[bool] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        direct = scope[DIRECT]
        await send(start())
        seen.append(direct.push(b"one"))
        seen.append(direct.push(b"three"))
        scope["fairgate.test"].set()
        await direct.drained()
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        seen.append(direct.push(b"late"))

    told = asyncio.Event()

    async def told_app(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "fairgate.test": told}, receive, send)

    client = Client(told_app)
    writes = await client.send(GET)
    assert writes[0].startswith(b"HTTP/1.1 200 OK\r\n")
    assert writes[0].endswith(b"\r\n\r\n3\r\none\r\n")
    assert writes[1:] == [b"5\r\nthree\r\n", b"0\r\n\r\n"]
    assert told.is_set()
    assert seen == [True, True, True]


async def test_a_chunk_that_is_there_is_written_where_chunks_are() -> None:
    """A client that knows no chunks would take its size for text."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send(start())
        for data, framed in ((b"one", b"3\r\none\r\n"), (b"three", b"5\r\nthree\r\n")):
            scope[DIRECT].push(data, framed)
        await send(body())

    first, second, _ = await Client(app).send(GET)
    assert (first.partition(b"\r\n\r\n")[2], second) == (b"3\r\none\r\n", b"5\r\nthree\r\n")
    first, second = await Client(app).send(GET.replace(b"/1.1", b"/1.0"))
    assert (first.partition(b"\r\n\r\n")[2], second) == (b"one", b"three")


async def test_a_slow_client_is_told_of_and_waited_for() -> None:
    """Without it a stream would fill the memory of its server."""
    steps: list[object] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        direct = scope[DIRECT]
        await send(start())
        client.connection.pause_writing()
        steps.append(direct.push(b"one"))
        await direct.drained()
        steps.append("drained")
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    client = Client(app)
    await client.send(GET)
    assert steps == [False]
    client.connection.resume_writing()
    await client.settle()
    assert steps == [False, "drained"]


async def test_nothing_is_pushed_to_a_client_that_left() -> None:
    """A write to a closed socket is an error for nobody."""
    parts: list[bool] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        direct = scope[DIRECT]
        await send(start())
        await send({"type": "http.response.body", "body": b"one", "more_body": True})
        assert (await receive())["type"] == "http.request"
        assert (await receive())["type"] == "http.disconnect"
        parts.append(direct.push(b"two"))

    client = Client(app)
    await client.send(GET)
    client.leave()
    await client.settle()
    assert parts == [True]


async def test_a_whole_answer_can_be_written_without_being_awaited() -> None:
    """Two coroutines and two messages less for every plain request."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert scope[DIRECT].answer(200, [(b"content-length", b"2")], b"{}")

    client = Client(app)
    (write,) = await client.send(GET)
    assert write == b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
    assert await client.send(GET) == [write], "the connection is kept"


async def test_a_whole_answer_waits_where_the_last_one_has_not_been_taken() -> None:
    """A client that pipelines and does not read would fill the memory."""
    told: list[bool] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        client.connection.pause_writing()
        told.append(scope[DIRECT].answer(200, [(b"content-length", b"2")], b"{}"))
        client.connection.resume_writing()
        await send(start(200, (b"content-length", b"2")))
        await send(body(b"{}"))

    client = Client(app)
    assert len(await client.send(GET)) == 1
    assert told == [False]


async def test_who_takes_too_long_for_a_body_is_cut_off() -> None:
    """A byte a minute would hold a connection, and what came of the body, for ever."""

    async def reads(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass

    client = Client(reads)
    await client.send(b"POST / HTTP/1.1\r\ncontent-length: 9\r\n\r\n{")
    client.connection.look(1.0, 300.0)
    client.connection.look(301.0, 300.0)
    assert not client.socket.is_ended
    client.connection.look(301.1, 300.0)
    assert client.socket.is_ended
    client.connection.connection_lost(None)
    await client.settle()


async def test_who_waits_for_an_answer_is_never_cut_off_for_it() -> None:
    """An answer may take an hour; so may the pause between two questions, up to the idle time."""
    release = asyncio.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await release.wait()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    client = Client(slow)
    await client.send(GET)
    for now in (0.0, 3_600.0, 7_200.0):
        client.connection.look(now, 300.0)
    release.set()
    await client.settle()
    for now in (7_300.0, 9_999.0):
        client.connection.look(now, 300.0)
    assert not client.socket.is_ended
    client.leave()
