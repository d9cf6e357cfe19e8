"""Answers that come compressed, twice measured or without end: undone in bounds, or broken."""

import asyncio
import gzip
from collections.abc import AsyncIterator

import pytest

from gateway.upstream.client import EngineClient
from gateway.upstream.connection import INFLATED_BYTES_MAX, Answer, UpstreamBrokenError
from gateway.upstream.replicas import ReplicaAddress
from tests.support.scripted import CHUNKED_HEAD, ScriptedServer, chunk, plain, scripted_server

BUFFER_BYTES = 64 << 10


class Tally:
    """A meter that counts."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    @property
    def size(self) -> int:
        return sum(self.sizes)

    def feed(self, data: bytes) -> None:
        self.sizes.append(len(data))


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    """An engine that plays a script."""
    async with scripted_server() as scripted:
        yield scripted


@pytest.fixture
async def client(server: ScriptedServer) -> AsyncIterator[EngineClient]:
    """Our side."""
    address = ReplicaAddress("r", server.url)
    engine = EngineClient(address, buffer_bytes_max=BUFFER_BYTES, clock=lambda: 0.0)
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


def packed_answer(packed: bytes) -> bytes:
    """A chunked answer that is compressed, in two chunks."""
    head = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ntransfer-encoding: chunked\r\n\r\n"
    half = len(packed) // 2
    return head + chunk(packed[:half]) + chunk(packed[half:]) + chunk(b"")


@pytest.mark.parametrize("cut_off", [1, 9, 15])
@pytest.mark.parametrize("then", ["keep", "close"])
async def test_a_compressed_body_that_ends_too_soon_is_an_error(
    server: ScriptedServer, client: EngineClient, cut_off: int, then: str
) -> None:
    """Its frame is whole, and half the answer is missing."""
    packed = gzip.compress(b"hello " * 100)[:-cut_off]
    server.will(packed_answer(packed), then="close" if then == "close" else "keep")
    ends: list[bool] = []
    answer = await send(client)
    answer.when_ended(ends.append)
    with pytest.raises(UpstreamBrokenError, match="too soon"):
        await whole(answer)
    assert ends == [False]


async def test_a_bomb_is_undone_no_faster_than_it_is_read(
    server: ScriptedServer, client: EngineClient
) -> None:
    """A hundred kilobytes would otherwise be a hundred megabytes in memory."""
    size = 100 << 20
    server.will(packed_answer(gzip.compress(b"\0" * size)))
    meter, told, most, read = Tally(), list[bool](), 0, 0
    answer = await send(client, meter)
    answer.when_ended(told.append)
    while data := await answer.read():
        read += len(data)
        most = max(most, len(data), meter.size - read)
        assert not told or meter.size == size
    assert read == meter.size == size
    assert most <= BUFFER_BYTES + INFLATED_BYTES_MAX
    assert max(meter.sizes) <= INFLATED_BYTES_MAX
    assert told == [True]


async def test_a_bomb_that_nobody_reads_does_not_hold_its_connection(
    server: ScriptedServer, client: EngineClient
) -> None:
    """The rest is undone when it is read, and closing it is no matter of the next exchange."""
    server.will(packed_answer(gzip.compress(b"\0" * (10 << 20))))
    first = await send(client)
    while not client._idle:  # noqa: ASYNC110 - nothing tells that a connection is idle
        await asyncio.sleep(0)
    server.will(CHUNKED_HEAD + chunk(b"a"), chunk(b"b"), chunk(b""))
    second = await send(client)
    assert len(await first.read()) > 0
    first.close()
    with pytest.raises(UpstreamBrokenError):
        await whole(first)
    assert await whole(second) == b"ab"
    assert [number for number, _ in server.requests] == [0, 0]


async def test_garbage_that_nobody_looked_at_until_it_was_read_is_an_error(
    server: ScriptedServer, client: EngineClient
) -> None:
    """It is found out in the middle of a read, long after the connection is gone."""
    packed = gzip.compress(b"\0" * (10 << 20))
    server.will(packed_answer(packed[:-8] + b"\1" * 8))
    told: list[bool] = []
    answer = await send(client)
    answer.when_ended(told.append)
    with pytest.raises(UpstreamBrokenError, match="cannot be read"):
        await whole(answer)
    assert told == [False]


@pytest.mark.parametrize("coding", [b"br", b"zstd", b"gzip, br", b"BR"])
async def test_a_coding_that_cannot_be_undone_is_passed_on(
    server: ScriptedServer, client: EngineClient, coding: bytes
) -> None:
    """The client may understand it, if it is told."""
    server.will(plain(b"\x0b\x02", b"Content-Encoding: " + coding))
    answer = await send(client)
    assert answer.content_encoding == coding
    assert await whole(answer) == b"\x0b\x02"


@pytest.mark.parametrize("coding", [b"identity", b"", b"GZIP"])
async def test_what_is_not_or_no_longer_compressed_names_no_coding(
    server: ScriptedServer, client: EngineClient, coding: bytes
) -> None:
    """A client that undoes it a second time reads garbage."""
    body = gzip.compress(b"hello") if coding == b"GZIP" else b"hello"
    server.will(plain(body, b"content-encoding: " + coding))
    answer = await send(client)
    assert answer.content_encoding is None
    assert await whole(answer) == b"hello"


@pytest.mark.parametrize(
    "headers",
    [
        b"content-length: 5\r\ncontent-length: 6\r\n",
        b"content-length: 5\r\ncontent-length: 5\r\n",
        b"content-length: 5\r\ntransfer-encoding: chunked\r\n",
        b"transfer-encoding: chunked\r\ncontent-length: 5\r\n",
        b"content-length: 5, 5\r\n",
        b"content-length: -1\r\n",
        b"content-length: +5\r\n",
        b"content-length: 5\r\ntransfer-encoding: identity\r\n",
        b"content-length : 5\r\n",
        b"content-length: 5\r\n folded: 6\r\n",
    ],
)
async def test_an_answer_with_two_lengths_is_broken(
    server: ScriptedServer, client: EngineClient, headers: bytes
) -> None:
    """Read one way here and another way behind us, it is two answers."""
    server.will(b"HTTP/1.1 200 OK\r\n" + headers + b"\r\n0\r\n\r\n", then="hang")
    with pytest.raises(UpstreamBrokenError):
        await asyncio.wait_for(whole(await send(client)), 5)
    await asyncio.wait_for(server.ended.get(), 5)


@pytest.mark.parametrize("rest", [b"HTTP/1.1 200 OK\r\n", plain(b"second"), b"\0", b"junk"])
async def test_what_follows_the_end_of_an_answer_is_nobodys(
    server: ScriptedServer, client: EngineClient, rest: bytes
) -> None:
    """Kept, it would be the answer to the next request."""
    server.will(plain(b"hello") + rest)
    assert await whole(await send(client)) == b"hello"
    assert await asyncio.wait_for(server.ended.get(), 5) == 0
    server.will(plain(b"next"))
    assert await whole(await send(client)) == b"next"


async def test_interim_answers_without_end_are_cut_off(
    server: ScriptedServer, client: EngineClient
) -> None:
    """Each is small, and all together are a head without end."""
    server.will(b"HTTP/1.1 102 Processing\r\n\r\n" * 5_000, then="hang")
    with pytest.raises(UpstreamBrokenError):
        await asyncio.wait_for(send(client), 5)


async def test_a_meter_that_fails_ends_the_exchange(
    server: ScriptedServer, client: EngineClient
) -> None:
    """A fault of ours must not leave a client waiting for ever."""

    class Faulty(Tally):
        def feed(self, data: bytes) -> None:
            raise ValueError("fault")

    told: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: told.append(context["message"]))
    server.will(CHUNKED_HEAD, chunk(b"x"), then="hang")
    with pytest.raises(UpstreamBrokenError):
        await asyncio.wait_for(whole(await send(client, Faulty())), 5)
    assert len(told) == 1


async def test_what_one_read_brings_is_metered_and_passed_on_as_one_piece(
    server: ScriptedServer, client: EngineClient
) -> None:
    """Each piece costs a write to the client."""
    server.will(CHUNKED_HEAD + chunk(b"ab") + chunk(b"cd") + chunk(b"e") + chunk(b""))
    meter = Tally()
    answer = await send(client, meter)
    assert await answer.read() == b"abcde"
    assert meter.sizes == [5]
    assert answer.is_complete
