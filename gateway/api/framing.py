"""How an answer's headers and body look on the wire (RFC 9112)."""

from collections.abc import Iterable, Sequence


class Head:
    """The header lines of one answer, and what they say of its body."""

    __slots__ = ("closes", "length", "lines")

    def __init__(self, headers: Iterable[Sequence[bytes]]) -> None:
        """Names in lower case. Raises ValueError for a header that would be more than a line."""
        self.closes = False
        """Whether the connection ends with the answer."""
        self.length: int | None = None
        """The content-length; None where none is given."""
        parts: list[bytes] = []
        count = 0
        for name, value in headers:
            if name == b"content-length":
                self.length = int(value)
            elif name == b"connection" and b"close" in value.lower():
                self.closes = True
            parts += (name, b": ", value, b"\r\n")
            count += 1
        self.lines = b"".join(parts)
        if self.lines.count(b"\n") != count or self.lines.count(b"\r") != count:
            raise ValueError("a header must not hold a line break")


def chunk(body: bytes) -> bytes:
    """Some of a chunked body; nothing for nothing, which would end it."""
    return b"%x\r\n%b\r\n" % (len(body), body) if body else b""


LAST_CHUNK = b"0\r\n\r\n"
