"""Compressed bodies undone piece by piece, bombs and fragments included."""

import gzip
import zlib

import pytest

from gateway.upstream.inflate import Inflation

BODY = b"hello " * 1_000


def raw_deflate(body: bytes) -> bytes:
    """Deflate without any header, as some servers send it under that name."""
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(body) + packer.flush()


def undone(inflation: Inflation, packed: bytes, size: int, bytes_max: int = 1 << 20) -> bytes:
    """All that comes of `packed`, pushed in pieces of `size`."""
    body = b""
    for start in range(0, len(packed), size):
        inflation.push(packed[start : start + size])
        while inflation.is_pending:
            piece = inflation.pull(bytes_max)
            assert len(piece) <= bytes_max
            body += piece
    return body


@pytest.mark.parametrize("bytes_max", [1, 7, 1 << 20])
@pytest.mark.parametrize("size", [1, 2, 3, 10_000])
@pytest.mark.parametrize(
    ("coding", "packed"),
    [
        (b"gzip", gzip.compress(BODY, mtime=0)),
        (b"x-gzip", gzip.compress(BODY, mtime=0)),
        (b"gzip", gzip.compress(BODY[:3_000], mtime=0) + gzip.compress(BODY[3_000:], mtime=0)),
        (b"gzip", gzip.compress(BODY, mtime=0) + b"\0" * 5),
        (b"deflate", zlib.compress(BODY)),
        (b"deflate", raw_deflate(BODY)),
        (b"deflate", gzip.compress(BODY, mtime=0)),
        (b"gzip", zlib.compress(BODY)),
    ],
)
def test_a_body_is_undone_however_it_is_cut(
    coding: bytes, packed: bytes, size: int, bytes_max: int
) -> None:
    """A byte lost or doubled at a seam would be an answer nobody gave."""
    inflation = Inflation(coding)
    assert undone(inflation, packed, size, bytes_max) == BODY
    assert inflation.is_whole


@pytest.mark.parametrize("end", [1, 2, 10, 12, -9, -1])
def test_a_body_that_is_cut_short_is_not_whole(end: int) -> None:
    """Half an answer must not pass for a whole one."""
    inflation = Inflation(b"gzip")
    undone(inflation, gzip.compress(BODY, mtime=0)[:end], 5)
    assert not inflation.is_whole
    assert Inflation(b"gzip").is_whole, "an empty body has nothing to miss"


def test_a_bomb_goes_off_in_small_pieces() -> None:
    """A thousand bytes for one: undone at once it would fill the memory."""
    packed = gzip.compress(b"\0" * (64 << 20))
    inflation = Inflation(b"gzip")
    inflation.push(packed)
    size = 0
    while inflation.is_pending:
        piece = inflation.pull(1 << 18)
        assert len(piece) <= 1 << 18
        size += len(piece)
    assert size == 64 << 20
    assert inflation.is_whole


@pytest.mark.parametrize(
    ("coding", "packed"),
    [
        (b"gzip", b"hello"),
        (b"deflate", b"\xff\xff\xff"),
        (b"gzip", gzip.compress(BODY, mtime=0)[:-8] + b"\0" * 8),
        (b"gzip", gzip.compress(BODY, mtime=0) + b"junk"),
        (b"gzip", gzip.compress(BODY, mtime=0)[:20] + b"\xff" * 20),
    ],
)
def test_what_is_not_compressed_is_an_error(coding: bytes, packed: bytes) -> None:
    """Passed on as it is it would be read as garbage."""
    with pytest.raises(zlib.error):
        undone(Inflation(coding), packed, 10_000)
