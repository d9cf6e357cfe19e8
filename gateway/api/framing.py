"""How an answer's headers and body look on the wire (RFC 9112)."""

from http import HTTPStatus


class Head:
    """The header lines of one answer, and what they say of its body."""

    __slots__ = ("closes", "length", "lines")

    def __init__(self, headers: list[tuple[bytes, bytes]]) -> None:
        """Names in lower case. Raises ValueError for a header that would be more than a line."""
        self.closes = False
        """Whether the connection ends with the answer."""
        self.length = -1
        """The content-length; -1 where none is given."""
        for name, value in headers:
            if name == b"content-length":
                self.length = int(value)
            elif name == b"connection" and value.lower().find(b"close") >= 0:
                self.closes = True
        self.lines = header_lines(headers)


def header_lines(headers: list[tuple[bytes, bytes]]) -> bytes:
    """One line for each. Raises ValueError for a header that would be more than one."""
    parts: list[bytes] = []
    for name, value in headers:
        parts.append(name)
        parts.append(b": ")
        parts.append(value)
        parts.append(b"\r\n")
    lines = b"".join(parts)
    count = len(headers)
    if lines.count(b"\n") != count or lines.count(b"\r") != count:
        raise ValueError("a header must not hold a line break")
    return lines


def _status_line(status: int) -> bytes:
    try:
        phrase = HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    return f"HTTP/1.1 {status} {phrase}\r\n".encode("ascii")


STATUS_LINES = tuple(_status_line(status) for status in range(600))
"""By status."""


LAST_CHUNK = b"0\r\n\r\n"
