"""How requests go out: large bodies in pieces, and engines that stop listening meanwhile."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator

import pytest

from gateway.upstream.client import EngineClient
from gateway.upstream.connection import Answer
from gateway.upstream.pieces import PIECE_BYTES_MAX
from gateway.upstream.replicas import ReplicaAddress
from tests.support.scripted import CHUNKED_HEAD, ScriptedServer, chunk, plain, scripted_server


class Deaf:
    """A meter that counts nothing."""

    def feed(self, data: bytes) -> None:
        return


class Form:
    """A body that is made while it is sent, and counts how often."""

    def __init__(self, count: int, size: int = 1 << 16) -> None:
        self.count = count
        self.piece = b"x" * size
        self.begun = 0
        self.made = 0
        self.closed = 0

    @property
    def length(self) -> int:
        return self.count * len(self.piece)

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        self.begun += 1
        try:
            for _ in range(self.count):
                self.made += 1
                yield self.piece
                await asyncio.sleep(0)
        finally:
            self.closed += 1


@pytest.fixture
async def server() -> AsyncIterator[ScriptedServer]:
    """An engine that plays a script."""
    async with scripted_server() as scripted:
        yield scripted


@pytest.fixture
async def client(server: ScriptedServer) -> AsyncIterator[EngineClient]:
    """Our side."""
    address = ReplicaAddress("r", server.url)
    engine = EngineClient(address, buffer_bytes_max=1 << 16, clock=lambda: 50.0)
    yield engine
    engine.close()


async def read_all(answer: Answer) -> bytes:
    """The body to its end."""
    chunks = []
    while data := await answer.read():
        chunks.append(data)
    return b"".join(chunks)


async def exchange(client: EngineClient, body: bytes | Form = b"{}") -> bytes:
    """A request and its whole answer."""
    return await read_all(await client.send(b"/x", body, meter=Deaf()))


def carriers(server: ScriptedServer) -> list[int]:
    """Which connection carried each request."""
    return [number for number, _ in server.requests]


@pytest.mark.parametrize("count", [0, 1, 40])
async def test_a_body_in_pieces_arrives_whole(
    server: ScriptedServer, client: EngineClient, count: int
) -> None:
    """A wrong length makes the engine wait for ever, or read the next request as a file."""
    form = Form(count)
    for _ in range(2):
        server.will(plain(b"ok"))
        assert await exchange(client, form) == b"ok"
    assert carriers(server) == [0, 0]
    for _, request in server.requests:
        head, _, body = request.partition(b"\r\n\r\n")
        assert b"content-length: %d" % form.length in head
        assert body == form.piece * count
    assert form.closed == form.begun == 2


async def test_large_bytes_arrive_whole(server: ScriptedServer, client: EngineClient) -> None:
    """A long prompt is sent piece by piece, so that all other streams go on."""
    body = bytes(range(256)) * (PIECE_BYTES_MAX // 100)
    server.will(plain(b"ok"))
    assert await exchange(client, body) == b"ok"
    assert server.requests[0][1].partition(b"\r\n\r\n")[2] == body


async def test_an_engine_that_takes_nothing_is_sent_no_more(
    server: ScriptedServer, client: EngineClient
) -> None:
    """All of a long file would pile up in memory, for each of its readers."""
    form = Form(10_000)
    server.will(early=True, then="deaf")
    sending = asyncio.get_running_loop().create_task(client.send(b"/x", form, meter=Deaf()))
    made = -1
    while made != form.made or not made:
        made = form.made
        await asyncio.sleep(0.05)
    assert made < 1_000
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    assert form.closed == 1


@pytest.mark.parametrize("status", [b"413 Too Large", b"401 Unauthorized", b"307 Elsewhere"])
@pytest.mark.parametrize("count", [3, 10_000])
async def test_an_engine_that_refuses_before_it_has_all_is_heard(
    server: ScriptedServer, client: EngineClient, status: bytes, count: int
) -> None:
    """Its reason would be lost, and the rest of the file sent for nothing."""
    form = Form(count)
    server.will(plain(b"no", status=status), then="hang", early=True)
    answer = await client.send(b"/x", form, meter=Deaf())
    assert answer.status == int(status[:3])
    assert await read_all(answer) == b"no"
    assert form.made < 1_000
    assert form.closed == 1
    if count == 10_000:
        server.will(plain(b"ok"))
        assert await exchange(client) == b"ok"
        assert carriers(server) == [0, 1], "the rest would be read as the next request"


async def test_an_answer_that_begins_early_does_not_cut_the_request_off(
    server: ScriptedServer, client: EngineClient
) -> None:
    """Some engines send their headers at once; only a refusal ends the upload."""
    form = Form(3)
    server.will(CHUNKED_HEAD, chunk(b"a"), chunk(b""), early=True, then="hang")
    assert await exchange(client, form) == b"a"
    assert form.made == 3


@pytest.mark.parametrize("then", ["close", "reset"])
async def test_an_upload_on_a_connection_that_the_engine_closed_is_sent_again(
    server: ScriptedServer, client: EngineClient, then: str
) -> None:
    """As any other request; it begins at its beginning."""
    server.will(plain(b"a"))
    await exchange(client)
    server.will(then="reset" if then == "reset" else "close", early=True)
    server.will(plain(b"b"))
    form = Form(100)
    assert await exchange(client, form) == b"b"
    assert form.begun == form.closed == 2
    assert server.requests[-1][1].endswith(b"\r\n\r\n" + form.piece * 100)


async def test_an_upload_that_cannot_be_read_ends_the_exchange(
    server: ScriptedServer, client: EngineClient
) -> None:
    """The engine would wait for the rest."""

    class Broken(Form):
        async def pieces(self) -> AsyncGenerator[bytes, None]:
            yield self.piece
            raise OSError("disk")

    server.will(then="hang", early=True)
    with pytest.raises(OSError, match="disk"):
        await client.send(b"/x", Broken(5), meter=Deaf())
    assert await asyncio.wait_for(server.ended.get(), 5) == 0


async def test_a_get_has_no_body(server: ScriptedServer, client: EngineClient) -> None:
    """A length where none belongs makes some servers wait for it."""
    server.will(plain(b"a"))
    server.will(plain(b"b"))
    assert await read_all(await client.send(b"/v1/x", method=b"GET", meter=Deaf())) == b"a"
    assert await read_all(await client.send(b"/v1/x", meter=Deaf())) == b"b"
    (_, get), (_, post) = server.requests
    assert get.startswith(b"GET /v1/x HTTP/1.1\r\n")
    assert b"content-length" not in get
    assert b"content-length: 0\r\n" in post
    assert carriers(server) == [0, 0]


async def test_an_engine_that_was_heard_is_known_to_be_there(
    server: ScriptedServer, client: EngineClient
) -> None:
    """A busy engine that answers no probe is not taken for dead."""
    assert client.heard_at is None
    server.will(plain(b"a"))
    await exchange(client)
    assert client.heard_at == 50.0
