"""A client that sends a body in pieces, as a server hands them on, or goes before the last."""

from collections import deque
from collections.abc import MutableMapping
from typing import Any

BOUNDARY = b"----fairgate7MA4YWxk"
FORM_TYPE = b"multipart/form-data; boundary=" + BOUNDARY


class Sending:
    """The `receive` of one request."""

    def __init__(self, *pieces: bytes, leaves: bool = False) -> None:
        self._pieces = deque(pieces)
        self._leaves = leaves
        self.asked = 0

    async def __call__(self) -> MutableMapping[str, Any]:
        """The next piece."""
        self.asked += 1
        if not self._pieces:
            return {"type": "http.disconnect"}
        piece = self._pieces.popleft()
        more = bool(self._pieces) or self._leaves
        return {"type": "http.request", "body": piece, "more_body": more}


def cut(body: bytes, size: int) -> list[bytes]:
    """`body` in pieces of `size`."""
    return [body[start : start + size] for start in range(0, len(body), size)]


def part(name: str, value: bytes, *, filename: str | None = None, more: bytes = b"") -> bytes:
    """One part of a form, its opening boundary included."""
    file = b"" if filename is None else b'; filename="%b"' % filename.encode()
    head = b'--%b\r\nContent-Disposition: form-data; name="%b"%b\r\n%b\r\n'
    return head % (BOUNDARY, name.encode(), file, more) + value + b"\r\n"


def form(*parts: bytes) -> bytes:
    """A whole form."""
    return b"".join(parts) + b"--%b--\r\n" % BOUNDARY
