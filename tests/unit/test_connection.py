"""One exchange on one connection: how bodies are framed, how they break, and who is told."""

import asyncio
import gzip
import zlib
from collections.abc import AsyncIterator

import pytest

from gateway.upstream.client import EngineClient
from gateway.upstream.connection import HEADER_BYTES_MAX, Answer, UpstreamBrokenError
from gateway.upstream.replicas import ReplicaAddress
from tests.support.scripted import CHUNKED_HEAD, ScriptedServer, chunk, plain, scripted_server

BUFFER_BYTES = 64 << 10


class Tally:
    """A meter that counts."""

    def __init__(self) -> None:
        self.size = 0

    def feed(self, data: bytes) -> None:
        self.size += len(data)


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    """An engine that plays a script."""
    async with scripted_server() as scripted:
        yield scripted


@pytest.fixture
async def client(server: ScriptedServer) -> AsyncIterator[EngineClient]:
    """Our side."""
    engine = EngineClient(
        ReplicaAddress("r", server.url), buffer_bytes_max=BUFFER_BYTES, clock=lambda: 0.0
    )
    yield engine
    engine.close()


async def send(client: EngineClient, meter: Tally | None = None) -> Answer:
    """A request whose answer nobody meters."""
    return await client.send(b"/v1/x", b"{}", meter=meter or Tally())


async def whole(answer: Answer) -> bytes:
    """The body to its end."""
    chunks = []
    while data := await answer.read():
        chunks.append(data)
    return b"".join(chunks)


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    ("text", "then"),
    [
        (plain(b"hello"), "keep"),
        (plain(b""), "keep"),
        (plain(b"hello", b"connection: close"), "close"),
        (CHUNKED_HEAD + chunk(b"hel") + chunk(b"lo") + chunk(b""), "keep"),
        (CHUNKED_HEAD + b"5;name=value\r\nhello\r\n0\r\ntrailer: x\r\n\r\n", "keep"),
        (b"HTTP/1.1 200 OK\r\n\r\nhello", "close"),
        (b"HTTP/1.0 200 OK\r\ncontent-type: text/plain\r\n\r\nhello", "close"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + plain(b"hello"), "keep"),
        (b"HTTP/1.1 103 Early Hints\r\nlink: a\r\n\r\n" + plain(b"hello"), "keep"),
        (plain(b"hello", b"upgrade: h2c", b"connection: upgrade, keep-alive"), "keep"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", "keep"),
    ],
)
async def test_a_body_is_read_however_it_is_framed(
    server: ScriptedServer, client: EngineClient, text: bytes, then: str, size: int
) -> None:
    """Engines and the proxies before them frame bodies in all of these ways."""
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    server.will(*pieces, then="close" if then == "close" else "keep")
    meter = Tally()
    answer = await send(client, meter)
    expected = b"hello" if b"hel" in text else b""
    assert await whole(answer) == expected
    assert answer.is_complete
    assert meter.size == len(expected)
    assert answer.header(b"link") is None


async def test_headers_are_found_whatever_their_case(
    server: ScriptedServer, client: EngineClient
) -> None:
    """The relay looks for `content-type`, engines write `Content-Type`."""
    server.will(plain(b"", b"Content-Type: a/b", b"X-Twice: 1", b"x-twice: 2", status=b"418 Tea"))
    answer = await send(client)
    assert answer.status == 418
    assert answer.header(b"content-type") == b"a/b"
    assert answer.header(b"x-twice") == b"1"
    assert answer.header(b"x-none") is None


async def test_the_request_is_one_well_formed_message(
    server: ScriptedServer, client: EngineClient
) -> None:
    """A wrong length or a doubled header makes an engine answer 400, or read another's body."""
    server.will(plain(b""))
    await client.send(b"/v1/x", b'{"a":1}', headers=b"content-type: a/b\r\n", meter=Tally())
    head, _, body = server.requests[0][1].partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0] == b"POST /v1/x HTTP/1.1"
    assert sorted(lines[1:]) == [
        b"accept-encoding: identity",
        b"content-length: 7",
        b"content-type: a/b",
        b"host: 127.0.0.1:%d" % server.port,
        b"user-agent: fairgate",
    ]
    assert body == b'{"a":1}'


@pytest.mark.parametrize("then", ["close", "reset"])
@pytest.mark.parametrize(
    ("said", "is_fresh"),
    [
        (b"", True),
        (b"HTTP/1.1 20", False),
        (b"HTTP/1.1 200 OK\r\ncontent-le", False),
        (b"HTTP/1.1 100 Continue\r\n\r\n", False),
    ],
)
async def test_a_connection_that_ends_before_the_head_says_whether_anything_had_come(
    server: ScriptedServer, client: EngineClient, said: bytes, is_fresh: bool, then: str
) -> None:
    """What an engine had begun to answer must not be sent to it again unseen."""
    server.will(said, then="reset" if then == "reset" else "close")
    with pytest.raises(UpstreamBrokenError) as broken:
        await send(client)
    if then == "close":  # a reset may overtake what was said before it
        assert broken.value.is_fresh is is_fresh


@pytest.mark.parametrize("then", ["close", "reset"])
@pytest.mark.parametrize(
    "text",
    [
        plain(b"hello")[:-2],
        CHUNKED_HEAD + chunk(b"hel"),
        CHUNKED_HEAD + chunk(b"hello")[:4],
        CHUNKED_HEAD + b"Transfer",
    ],
)
async def test_a_body_that_breaks_off_is_an_error_and_never_an_end(
    server: ScriptedServer, client: EngineClient, text: bytes, then: str
) -> None:
    """Half an answer that passes for a whole one is the worst of outcomes."""
    server.will(text, then="reset" if then == "reset" else "close")
    ends: list[bool] = []

    async def read() -> None:
        answer = await send(client)
        answer.when_ended(ends.append)
        await whole(answer)

    with pytest.raises(UpstreamBrokenError) as broken:
        await read()
    assert not broken.value.is_fresh
    assert ends in ([False], [])


async def test_a_reset_is_no_end_of_a_body_that_ends_with_its_connection(
    server: ScriptedServer, client: EngineClient
) -> None:
    """Only an orderly close says that nothing is missing."""
    server.will(b"HTTP/1.1 200 OK\r\n\r\nhello", then="hang")
    answer = await send(client)
    assert await answer.read() == b"hello"
    server.reset()
    with pytest.raises(UpstreamBrokenError):
        await answer.read()


@pytest.mark.parametrize(
    "said",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\x16\x03\x01\x02\x00",
        b"HTTP/1.1 200 OK\r\ncontent-length: many\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        CHUNKED_HEAD + b"no number\r\n",
    ],
)
async def test_what_is_not_http_ends_the_exchange(
    server: ScriptedServer, client: EngineClient, said: bytes
) -> None:
    """Something else listens on the engine's port: the client gets a 502, not silence."""
    server.will(said, then="hang")
    with pytest.raises(UpstreamBrokenError):
        await whole(await send(client))
    await asyncio.wait_for(server.ended.get(), 5)


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\n" + b"x-many: 0123456789\r\n" * 5_000,
        b"HTTP/1.1 200 OK\r\nx-long: " + b"x" * (2 * HEADER_BYTES_MAX),
        b"HTTP/1.1 200 " + b"O" * (2 * HEADER_BYTES_MAX),
        b"HTTP/1.1 200 OK\r\n" + b"x" * (2 * HEADER_BYTES_MAX),
    ],
    ids=["many", "long value", "long status line", "long name"],
)
async def test_a_head_without_end_is_cut_off(
    server: ScriptedServer, client: EngineClient, head: bytes
) -> None:
    """A broken engine must not fill the gateway's memory."""
    server.will(head, then="hang")
    with pytest.raises(UpstreamBrokenError):
        await asyncio.wait_for(send(client), 5)
    await asyncio.wait_for(server.ended.get(), 5)


@pytest.mark.parametrize("size", [1, 7, 10_000])
@pytest.mark.parametrize("coding", ["gzip", "deflate"])
async def test_a_compressed_body_is_undone(
    server: ScriptedServer, client: EngineClient, coding: str, size: int
) -> None:
    """It was not asked for; metered as it comes, no usage would be found in it."""
    body = b"hello " * 100
    packed = gzip.compress(body) if coding == "gzip" else zlib.compress(body)
    text = plain(packed, b"content-encoding: " + coding.encode())
    server.will(*[text[start : start + size] for start in range(0, len(text), size)])
    meter = Tally()
    answer = await send(client, meter)
    assert await whole(answer) == body
    assert meter.size == len(body)


async def test_a_body_that_is_not_what_its_coding_says_is_an_error(
    server: ScriptedServer, client: EngineClient
) -> None:
    """Passed on as it is it would be read as garbage."""
    server.will(plain(b"hello", b"content-encoding: gzip"), then="hang")
    with pytest.raises(UpstreamBrokenError):
        await whole(await send(client))


async def test_a_reader_that_falls_behind_stops_the_reading(
    server: ScriptedServer, client: EngineClient
) -> None:
    """One client that reads nothing would otherwise hold a whole stream in memory."""
    piece = chunk(b"x" * 65_000)
    pieces = 400
    server.will(CHUNKED_HEAD, *[piece] * pieces, chunk(b""))
    meter = Tally()
    answer = await send(client, meter)
    await asyncio.sleep(0.1)
    held = meter.size
    assert BUFFER_BYTES < held < BUFFER_BYTES + (1 << 20), "one read of the socket at most"
    await asyncio.sleep(0.05)
    assert meter.size == held, "nothing is read while nobody takes"
    assert len(await whole(answer)) == 65_000 * pieces
    assert answer.is_complete


async def test_an_answer_that_nobody_has_read_yet_does_not_stop_the_next_one(
    server: ScriptedServer,
) -> None:
    """A slow client's rest would stall whoever is given the same connection after it."""
    address = ReplicaAddress("r", server.url)
    client = EngineClient(address, buffer_bytes_max=100, clock=lambda: 0.0)
    server.will(CHUNKED_HEAD + chunk(b"x" * 1000) + chunk(b""))
    server.will(plain(b"next"))
    first = await send(client)
    ended = asyncio.get_running_loop().create_future()
    first.when_ended(ended.set_result)
    await asyncio.wait_for(ended, 5)
    second = await asyncio.wait_for(send(client), 5)
    assert await whole(second) == b"next"
    assert [number for number, _ in server.requests] == [0, 0]
    assert len(await whole(first)) == 1000


@pytest.mark.parametrize("after", ["head", "data", "nothing"])
async def test_closing_an_answer_closes_the_socket(
    server: ScriptedServer, client: EngineClient, after: str
) -> None:
    """The engine stops generating only when it sees the connection end."""
    said = {"head": CHUNKED_HEAD, "data": CHUNKED_HEAD + chunk(b"x"), "nothing": b""}[after]
    server.will(said, then="hang")
    if after == "nothing":
        task = asyncio.get_running_loop().create_task(send(client))
        while not server.requests:  # noqa: ASYNC110 - the script has no event for it
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    else:
        answer = await send(client)
        answer.close()
        with pytest.raises(UpstreamBrokenError):
            await whole(answer)
    assert await asyncio.wait_for(server.ended.get(), 5) == 0


async def test_a_reader_that_waits_learns_that_the_answer_was_closed(
    server: ScriptedServer, client: EngineClient
) -> None:
    """It would wait for ever."""
    server.will(CHUNKED_HEAD, then="hang")
    answer = await send(client)
    reading = asyncio.get_running_loop().create_task(answer.read())
    await asyncio.sleep(0)
    answer.close()
    with pytest.raises(UpstreamBrokenError):
        await reading


@pytest.mark.parametrize(
    ("text", "then", "ends"),
    [
        (CHUNKED_HEAD + chunk(b"x") + chunk(b""), "keep", [True]),
        (b"HTTP/1.1 200 OK\r\n\r\nx", "close", [True]),
        (CHUNKED_HEAD + chunk(b"x"), "close", [False]),
        (CHUNKED_HEAD + chunk(b"x") + b"junk", "hang", [False]),
    ],
)
@pytest.mark.parametrize("early", [True, False])
async def test_the_end_is_told_once_whenever_one_asks(
    server: ScriptedServer, client: EngineClient, text: bytes, then: str, ends: list[bool],
    early: bool,
) -> None:  # fmt: skip
    """Told twice, a slot would be given back twice; never told, it would be lost."""
    head, rest = text.split(b"\r\n\r\n", 1)
    told: list[bool] = []
    server.will(head + b"\r\n\r\n", rest, then="hang" if then == "hang" else "close")
    answer = await send(client)
    if early:
        answer.when_ended(told.append)
    try:
        await whole(answer)
    except UpstreamBrokenError:
        assert ends == [False]
    if not early:
        answer.when_ended(told.append)
    answer.close()
    await asyncio.sleep(0.01)
    assert told == ends


async def test_the_end_is_told_before_the_reader_has_caught_up(
    server: ScriptedServer, client: EngineClient
) -> None:
    """The slot belongs to the engine's work, not to the speed of the client."""
    server.will(CHUNKED_HEAD, chunk(b"x" * 100), chunk(b""))
    answer = await send(client)
    told = asyncio.get_running_loop().create_future()
    answer.when_ended(told.set_result)
    assert await asyncio.wait_for(told, 5) is True
    assert answer.has_data
    assert await whole(answer) == b"x" * 100
