"""A chunked answer has the same body however it is framed, and however the network cuts it."""

import asyncio
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gateway.upstream.chunks import body_of_usual, chunk
from gateway.upstream.connection import Answer, Connection
from gateway.upstream.takers import Heard
from tests.support.raw_engine import chunked
from tests.support.sockets import Socket

HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
ENDS = (b"0\r\n\r\n", b"0\r\ntrailer: x\r\n\r\n", b"000;a=b\r\n\r\n")
BODIES = st.binary(min_size=1, max_size=40) | st.sampled_from(
    [b"\r\n", b"5\r\nhello\r\n", b"0\r\n\r\n", b"d", b"x" * 2_045, b"data: {}\n\n"]
)


class Unmetered:
    """A meter that looks at nothing."""

    def feed(self, data: bytes) -> None:
        """Whatever."""


class Taken:
    """What a sink got: each piece, and the chunk that it was."""

    def __init__(self) -> None:
        self.pieces: list[tuple[bytes, bytes]] = []

    def take(self, data: bytes, framed: bytes) -> bool:
        """Always room for more."""
        self.pieces.append((data, framed))
        return True


def in_any_framing(body: bytes, kind: int) -> bytes:
    """`body` as a chunk, as engines write it or as they might."""
    size = b"%x" % len(body)
    match kind:
        case 1:
            return b"%b\r\n%b\r\n" % (size.upper(), body)
        case 2:
            return b"0%b\r\n%b\r\n" % (size, body)
        case 3:
            return b"%b;name=value\r\n%b\r\n" % (size, body)
        case _:
            return chunked(body)


async def played(reads: list[bytes]) -> tuple[Taken, Answer, Connection]:
    """What becomes of an answer that comes in these reads."""
    connection = Connection(
        buffer_bytes_max=1 << 20, on_idle=lambda *_: None, heard=Heard(), clock=lambda: 0.0
    )
    connection.connection_made(Socket())
    answer, taken = connection.begin(b"x", Unmetered()), Taken()
    connection.data_received(HEAD)
    pouring = asyncio.get_running_loop().create_task(answer.pour(taken.take))
    await asyncio.sleep(0)
    for data in reads:
        connection.data_received(data)
    await pouring
    return taken, answer, connection


@given(
    st.lists(st.tuples(BODIES, st.sampled_from([0, 0, 0, 1, 2, 3])), min_size=1, max_size=8),
    st.sampled_from(ENDS),
    st.lists(st.integers(0, 400), max_size=8),
    st.booleans(),
)
def test_the_body_is_the_same_however_it_is_cut(
    parts: list[tuple[bytes, int]], end: bytes, cuts: list[int], is_aligned: bool
) -> None:
    """What passes the parser by must not confuse it, nor lose a byte or its place."""
    chunks = [in_any_framing(body, kind) for body, kind in parts]
    whole = b"".join(chunks) + end
    places = {min(cut, len(whole)) for cut in cuts}
    if is_aligned:
        places |= {sum(map(len, chunks[:count])) for count in range(len(chunks) + 1)}
    borders = sorted(places | {0, len(whole)})
    taken, answer, connection = asyncio.run(played([whole[a:b] for a, b in pairwise(borders)]))
    assert b"".join(data for data, _ in taken.pieces) == b"".join(body for body, _ in parts)
    assert answer.is_complete
    assert not connection.is_closed, "it serves the next exchange"
    for data, framed in taken.pieces:
        assert framed in (b"", chunk(data)), "it must be what we would write ourselves"


@given(st.binary(max_size=60) | BODIES.map(chunked))
def test_what_is_known_as_a_chunk_is_one(data: bytes) -> None:
    """It goes to the client as it came."""
    body = body_of_usual(data)
    assert not body or chunk(body) == data
