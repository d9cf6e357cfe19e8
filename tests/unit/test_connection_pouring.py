"""A stream that passes without a turn of the loop: to whom its bytes go, and when that ends."""

import asyncio
import gzip

import pytest

from gateway.upstream.connection import Answer, Connection, UpstreamBrokenError
from gateway.upstream.takers import Heard
from tests.support.sockets import Socket

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n%b\r\n"
END = b"0\r\n\r\n"


def chunk(data: bytes) -> bytes:
    """One chunk of a body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


class Tally:
    """A meter that counts."""

    def __init__(self) -> None:
        self.size = 0

    def feed(self, data: bytes) -> None:
        """Count."""
        self.size += len(data)


class Poured:
    """An answer whose bytes are poured into a list, and how the pouring went."""

    def __init__(self, *, room: int = 1_000, header: bytes = b"") -> None:
        """`room`: how many pieces are taken before the taker is full."""
        self.socket, self.meter = Socket(), Tally()
        self.connection = Connection(
            buffer_bytes_max=64, on_idle=lambda *_: None, heard=Heard(), clock=lambda: 0.0
        )
        self.connection.connection_made(self.socket)
        self.answer: Answer = self.connection.begin(b"x", self.meter)
        self.connection.data_received(HEAD % header)
        self.taken: list[bytes] = []
        self.framed: list[bytes] = []
        self._room = room
        self.task = asyncio.get_running_loop().create_task(self.answer.pour(self._take))

    def _take(self, data: bytes, framed: bytes) -> bool:
        self.taken.append(data)
        self.framed.append(framed)
        return len(self.taken) < self._room

    def arrives(self, data: bytes) -> None:
        """The engine sends this."""
        self.connection.data_received(data)


async def poured(**options: object) -> Poured:
    """One that has begun to pour."""
    found = Poured(**options)  # type: ignore[arg-type]  # free keywords
    await asyncio.sleep(0)
    return found


async def test_what_arrives_is_handed_on_in_the_same_turn() -> None:
    """A turn of the loop for each token is half of what a token costs."""
    stream = await poured()
    stream.arrives(chunk(b"one") + chunk(b"two"))
    stream.arrives(chunk(b"three"))
    assert stream.taken == [b"onetwo", b"three"]
    assert stream.meter.size == 11
    assert not stream.task.done()
    stream.arrives(chunk(b"last") + END)
    await stream.task
    assert stream.taken[-1] == b"last"
    assert await stream.answer.read() == b""
    assert stream.answer.is_complete


async def test_a_chunk_by_itself_is_handed_on_as_it_came_too() -> None:
    """To frame each token anew costs more than to count it."""
    stream = await poured()
    for data in (chunk(b"one"), chunk(b"two"), chunk(b"three") + chunk(b"four"), chunk(b"five")):
        stream.arrives(data)
    assert stream.taken == [b"one", b"two", b"threefour", b"five"]
    # The parser saw the first one, since it must see where the head ends; two are no chunk.
    assert stream.framed == [b"", chunk(b"two"), b"", chunk(b"five")]
    stream.arrives(END)
    await stream.task
    assert stream.answer.is_complete


async def test_a_chunk_in_the_middle_of_one_is_text() -> None:
    """A model that writes about HTTP must not derail its own stream."""
    stream = await poured()
    stream.arrives(chunk(b"one"))
    whole = chunk(b"say " + chunk(b"two"))
    stream.arrives(whole[:6])
    stream.arrives(whole[6:-2])
    stream.arrives(whole[-2:] + chunk(b"three")[:1])
    stream.arrives(chunk(b"three")[1:])
    stream.arrives(chunk(b"four") + END)
    await stream.task
    assert b"".join(stream.taken) == b"onesay " + chunk(b"two") + b"threefour"
    assert stream.answer.is_complete


async def test_nothing_passes_the_parser_by_before_the_next_answer_has_its_head() -> None:
    """An engine that talks out of turn is not believed."""
    stream = await poured()
    stream.arrives(chunk(b"one") + END)
    await stream.task
    answer = stream.connection.begin(b"y", stream.meter)
    stream.arrives(chunk(b"two"))
    with pytest.raises(UpstreamBrokenError):
        await answer.head()


async def test_a_taker_that_is_full_ends_it_and_the_rest_waits() -> None:
    """A client that reads slowly must not fill the memory."""
    stream = await poured(room=2)
    for piece in (b"one", b"two", b"three"):
        stream.arrives(chunk(piece))
    await stream.task
    assert stream.taken == [b"one", b"two"]
    assert await stream.answer.read() == b"three"
    for _ in range(10):
        stream.arrives(chunk(b"x" * 10))
    assert stream.connection.is_paused
    await stream.answer.pour(stream._take)
    assert len(stream.taken) == 2, "what waits is read first"


async def test_a_break_is_told_by_the_next_read() -> None:
    """Half a stream must never pass for a whole one."""
    stream = await poured()
    stream.arrives(chunk(b"one"))
    stream.connection.connection_lost(None)
    await stream.task
    with pytest.raises(UpstreamBrokenError):
        await stream.answer.read()
    await stream.answer.pour(stream._take)
    assert stream.taken == [b"one"]


async def test_whoever_stops_waiting_gets_nothing_more() -> None:
    """Bytes that arrive after a client left must not be written to the next one."""
    stream = await poured()
    stream.task.cancel()
    await asyncio.wait([stream.task])
    stream.arrives(chunk(b"late"))
    assert stream.taken == []
    assert await stream.answer.read() == b"late"


async def test_a_compressed_stream_is_poured_undone() -> None:
    """Some proxies compress whatever they are told."""
    stream = await poured(header=b"content-encoding: gzip\r\n")
    stream.arrives(chunk(gzip.compress(b"hello " * 40, mtime=0)) + END)
    await stream.task
    assert b"".join(stream.taken) == b"hello " * 40
    assert not any(stream.framed), "the chunk that came holds something else"
    assert stream.answer.is_complete
