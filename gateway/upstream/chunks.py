"""Chunks of a body as most engines write them, one for each event (RFC 9112, 7.1).

Such a chunk is known by its length, without a parser; any other one is the parser's.
"""

from typing import Final

# Compiled code looks up by its name, each time, whatever is not Final.
USUAL_BYTES_MAX: Final = 2_048
"""A longer chunk takes the longer way."""
CR: Final = 13
LF: Final = 10
CRLF: Final = b"\r\n"
SIZE_LINES: Final[tuple[bytes, ...]] = tuple(b"%x\r\n" % size for size in range(USUAL_BYTES_MAX))
"""What a chunk begins with, by the size of its body."""


def _beginnings() -> tuple[bytes, ...]:
    """The size line by the length of the whole chunk; empty where no chunk is so long."""
    found = [b""] * (USUAL_BYTES_MAX + 1)
    for size, line in enumerate(SIZE_LINES):
        length = len(line) + size + len(CRLF)
        if size and length <= USUAL_BYTES_MAX:
            found[length] = line
    return tuple(found)


_BEGINNINGS: Final = _beginnings()


def body_of_usual(data: bytes) -> bytes:
    """The body, where `data` is one whole chunk as usual; empty for whatever else it is.

    Usual: as `chunk` writes it, with a size in lower case and without extensions.
    """
    length = len(data)
    if length > USUAL_BYTES_MAX:
        return b""
    line = _BEGINNINGS[length]
    start = len(line)
    if not start or data[:start] != line or data[length - 1] != LF or data[length - 2] != CR:
        return b""
    return data[start : length - 2]


def chunk(body: bytes) -> bytes:
    """Some of a chunked body; nothing for nothing, which would end it."""
    size = len(body)
    if not size:
        return b""
    if size < USUAL_BYTES_MAX:
        return SIZE_LINES[size] + body + CRLF
    return b"%x\r\n%b\r\n" % (size, body)
