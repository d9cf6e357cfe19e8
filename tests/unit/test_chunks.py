"""Which chunks are known by their length alone, and that none is taken for what it is not."""

import pytest

from gateway.upstream.chunks import USUAL_BYTES_MAX, body_of_usual, chunk
from tests.support.raw_engine import chunked


def test_a_chunk_of_any_size_is_written_as_the_standard_says() -> None:
    """A wrong size breaks every stream behind it."""
    for size in (1, 9, 15, 16, 255, 256, 2_047, 2_048, 4_095, 4_096, 70_000):
        assert chunk(b"x" * size) == chunked(b"x" * size)
    assert chunk(b"") == b"", "an empty one would end the body"


def test_a_usual_chunk_is_known_whatever_its_size() -> None:
    """Each event that is not costs a parser's work."""
    known = [size for size in range(1, 3_000) if body_of_usual(chunk(b"x" * size)) == b"x" * size]
    longest = known[-1]
    assert known == list(range(1, longest + 1))
    assert len(chunk(b"x" * longest)) == USUAL_BYTES_MAX


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\r\n",
        b"0\r\n\r\n",
        b"5\r\nhell\r\n",
        b"5\r\nhellos\r\n",
        b"5\r\nhello\n\n",
        b"5\r\nhello\r\r",
        b"05\r\nhello\r\n",
        b"5;a=b\r\nhello\r\n",
        b"5\r\nhello\r\n0\r\n\r\n",
        b"5\r\nhello\r\n5\r\nhello\r\n",
        chunked(b"x" * 220).replace(b"dc", b"DC", 1),
        chunked(b"x" * 220)[:-1],
        chunked(b"x" * 220)[1:],
    ],
)
def test_whatever_else_is_the_parsers(data: bytes) -> None:
    """Half a chunk that passes for a whole one cuts an event in two."""
    assert body_of_usual(data) == b""


def test_a_chunk_in_a_chunk_is_text() -> None:
    """Models write about HTTP too."""
    inner = chunk(b"inner")
    assert body_of_usual(chunk(inner)) == inner
