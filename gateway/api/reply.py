"""What goes back to one client: headers once, bytes, and at most one terminal error.

Before the headers are out an error is a JSON answer with its own status; after that it is one
error event on a stream, and an aborted connection on a plain answer.
"""

from typing import Protocol

from gateway.api.disconnect import Send
from gateway.api.openai import retry_headers
from gateway.api.shapes import CHUNKS, Shape
from gateway.errors import GatewayError

Pairs = list[tuple[bytes, bytes]]

EVENT_STREAM = b"text/event-stream; charset=utf-8"
JSON_TYPE = b"application/json"
STREAM_HEADERS = ((b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no"))
"""Without them nginx would hold a stream back until its end."""
BLANK_LINES = (b"\n\n", b"\r\n\r\n", b"\r\r")
"""What ends an event."""


DIRECT = "fairgate.direct"
"""Key of the scope under which the server's `Direct` stands, if it has one."""


class Direct(Protocol):
    """A server that takes bytes without being awaited."""

    def answer(self, status: int, headers: Pairs, body: bytes) -> bool:
        """Send a whole answer. False: not now, the client is slow with what went before."""

    def push(self, data: bytes, framed: bytes = b"") -> bool:
        """Send it; `framed` is the same as a chunk, where there is one already.

        False: it is on its way, but the client is slow.
        """

    async def drained(self) -> None:
        """Wait until the client has taken enough for more, or left."""

    def unsent(self) -> int:
        """Bytes that the client has not taken yet."""

    def abort(self) -> None:
        """Leave the client, which loses what it has not taken."""


class Reply:
    """The answer to one request."""

    __slots__ = (
        "_headers", "_is_alone", "_send", "_sent", "_shape", "direct", "has_started",
        "is_finished", "status", "streams",
    )  # fmt: skip

    def __init__(
        self,
        send: Send,
        request_id: bytes,
        shape: Shape = CHUNKS,
        direct: Direct | None = None,
    ) -> None:
        self._send = send
        self.direct = direct
        """For what need not be awaited; None where the server has no such way."""
        # Who stands between, a middleware, may have headers to add.
        self._is_alone = direct is not None and getattr(send, "__self__", None) is direct
        self._shape = shape
        self._headers: Pairs = [(b"x-request-id", request_id)]
        if shape.id_header != b"x-request-id":
            self._headers.append((shape.id_header, request_id))
        self._sent = BLANK_LINES[0]
        """The latest bytes of the body."""
        self.streams = False
        """Set once it is known that the client asked for a stream."""
        self.has_started = False
        self.is_finished = False
        self.status = 0

    def add_header(self, name: bytes, value: bytes) -> None:
        """Add a header to what is sent first; without effect once that is out."""
        self._headers.append((name, value))

    async def whole(self, status: int, headers: Pairs, body: bytes) -> None:
        """Send all of an answer, unless a comment already began it."""
        headers.append((b"content-length", b"%d" % len(body)))
        direct = self.direct
        if (
            direct is not None
            and self._is_alone
            and not self.has_started
            and direct.answer(status, self._headers + headers, body)
        ):
            self.has_started = self.is_finished = True
            self.status = status
            return
        await self.begin(status, headers)
        await self.finish(body)

    async def begin(self, status: int, headers: Pairs) -> None:
        """Send status and headers, unless a comment already did."""
        if self.has_started:
            return
        self.has_started = True
        self.status = status
        await self._send(
            {"type": "http.response.start", "status": status, "headers": self._headers + headers}
        )

    async def write(self, data: bytes) -> None:
        """Send some of the body."""
        self._sent = data
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    def push(self, data: bytes, framed: bytes = b"") -> bool:
        """Send some of the body now; False: `direct.drained` should be awaited before more."""
        assert self.direct is not None
        self._sent = data
        return self.direct.push(data, framed)

    async def finish(self, data: bytes = b"") -> None:
        """Send the last of the body."""
        self.is_finished = True
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    async def begin_stream(self, content_type: bytes = EVENT_STREAM) -> None:
        """Send the headers of an event stream."""
        await self.begin(200, [(b"content-type", content_type), *STREAM_HEADERS])

    async def queued(self, position: int, eta_s: float | None) -> None:
        """Tell a streaming client where it stands; keeps proxies and clients from giving up."""
        await self.begin_stream()
        await self.write(self._shape.waits(position, eta_s))

    def cut(self) -> None:
        """End without an end: the client takes nothing, so nothing can be told."""
        self.is_finished = True
        if self.direct is not None:
            self.direct.abort()

    async def fail(self, error: GatewayError) -> None:
        """End with an error, in the form that the state of the answer still allows."""
        if self.is_finished:
            return
        if not self.has_started:
            headers = [(b"content-type", JSON_TYPE), *retry_headers(error)]
            await self.whole(error.status, headers, self._shape.error_body(error))
        elif self.streams:
            # Glued to an event that broke off, the error would be lost with it.
            gap = b"" if self._sent.endswith(BLANK_LINES) else BLANK_LINES[0]
            await self.finish(gap + self._shape.error_event(error))
        else:
            # An unfinished answer makes the server cut the connection: the only sign left.
            self.is_finished = True
