"""Reading an engine's error: no more of it than helps anybody."""

import pytest

from gateway.api.passing import ERROR_BODY_BYTES_MAX, error_body_of
from gateway.upstream.connection import Connection, UpstreamBrokenError
from gateway.upstream.sse import PlainMeter
from gateway.upstream.takers import Heard
from tests.support.raw_engine import chunked
from tests.support.sockets import Socket

HEAD = b"HTTP/1.1 500 Internal Server Error\r\ntransfer-encoding: chunked\r\n\r\n"


async def error_of(*pieces: bytes, ends: bool = True) -> bytes:
    """What is read of an error that comes in these pieces."""
    connection = Connection(
        buffer_bytes_max=1 << 30, on_idle=lambda *_: None, heard=Heard(), clock=lambda: 0.0
    )
    connection.connection_made(Socket())
    answer = connection.begin(b"POST", PlainMeter(lambda: 0.0))
    connection.data_received(HEAD)
    for piece in pieces:
        connection.data_received(chunked(piece))
    if ends:
        connection.data_received(b"0\r\n\r\n")
    else:
        connection.connection_lost(None)
    return await error_body_of(answer)


async def test_an_error_is_read_whole_however_it_is_cut() -> None:
    """Half of it is no JSON, and the client would be shown its beginning as text."""
    assert await error_of(b'{"error"', b':{"message"', b':"no"}}') == b'{"error":{"message":"no"}}'
    assert await error_of() == b""


async def test_an_endless_error_is_read_to_a_bound() -> None:
    """Proxies have answered with 100 MB of HTML, and held up all streams by it."""
    piece = b"x" * 10_000
    assert await error_of(*[piece] * 1_000) == (piece * 10)[:ERROR_BODY_BYTES_MAX]


async def test_an_error_that_breaks_off_is_a_broken_answer() -> None:
    """So the request is tried elsewhere, as after any other break."""
    with pytest.raises(UpstreamBrokenError):
        await error_of(b'{"error"', ends=False)
