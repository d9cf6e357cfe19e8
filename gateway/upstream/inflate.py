"""Undoing gzip and deflate piece by piece: what is small when packed may be huge when undone.

How much is undone at a time is the caller's decision; what it is used for is not known here.
"""

import zlib

GZIP_MAGIC = b"\x1f\x8b"
CODINGS = frozenset({b"gzip", b"x-gzip", b"deflate"})
"""Values of `content-encoding` that can be undone; anything else is passed on as it is."""


class Inflation:
    """One body that comes compressed. Push what arrives, pull what it means."""

    __slots__ = ("_coding", "_decoder", "_input", "_may_hold_more")

    def __init__(self, coding: bytes) -> None:
        assert coding in CODINGS
        self._coding = coding
        self._decoder: zlib._Decompress | None = None
        self._input = b""
        self._may_hold_more = False
        """Whether the last pull was cut off by its bound."""

    @property
    def is_pending(self) -> bool:
        """Whether a pull may return something."""
        if self._decoder is None:
            return len(self._input) >= len(GZIP_MAGIC)
        return bool(self._input) or self._may_hold_more

    @property
    def is_whole(self) -> bool:
        """Whether all that was pushed and pulled is a complete body; nothing at all is one too."""
        if self.is_pending:
            return False
        return self._decoder.eof if self._decoder is not None else not self._input

    def push(self, data: bytes) -> None:
        """Compressed bytes arrived."""
        self._input = self._input + data if self._input else data

    def pull(self, bytes_max: int) -> bytes:
        """At most `bytes_max` bytes of the body. Raises zlib.error for what is not compressed."""
        if self._decoder is None:
            self._decoder = self._begun()
        elif self._decoder.eof:
            return self._next_member()
        decoder = self._decoder
        data = decoder.decompress(self._input, bytes_max)
        self._may_hold_more = len(data) == bytes_max and not decoder.eof
        self._input = decoder.unused_data if decoder.eof else decoder.unconsumed_tail
        return data

    def _begun(self) -> "zlib._Decompress":
        """Of deflate there are two kinds in the world, with a header and without."""
        first = self._input[:2]
        has_header = first[0] & 0x0F == zlib.DEFLATED and int.from_bytes(first, "big") % 31 == 0
        if self._coding == b"deflate" and not has_header and first != GZIP_MAGIC:
            return zlib.decompressobj(-zlib.MAX_WBITS)
        return zlib.decompressobj(zlib.MAX_WBITS | 32)

    def _next_member(self) -> bytes:
        """What follows the end of the body: another member of a gzip file, or padding."""
        self._input = self._input.lstrip(b"\0")
        if not self._input:
            return b""
        if not GZIP_MAGIC.startswith(self._input[:2]):
            raise zlib.error("something follows the end of the compressed body")
        self._decoder = None
        return b""
