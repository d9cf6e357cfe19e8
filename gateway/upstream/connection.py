"""One keep-alive HTTP/1.1 connection to an engine, one exchange at a time.

Bytes are handed on as they arrive. A reader that falls behind stops the reading of the socket
once `buffer_bytes_max` wait for it; the meter sees each chunk on arrival all the same.
"""

import asyncio
import zlib
from collections.abc import Callable
from typing import Protocol, cast

import httptools

HEADER_BYTES_MAX = 64 << 10
"""An answer whose headers are not complete after so many bytes ends the exchange."""


class UpstreamBrokenError(Exception):
    """The connection failed. `is_fresh` tells whether any byte of an answer had arrived."""

    def __init__(self, message: str, *, is_fresh: bool) -> None:
        super().__init__(message)
        self.is_fresh = is_fresh
        """True: nothing of an answer had arrived."""


class Inflater(Protocol):
    """What `zlib.decompressobj` returns, as far as it is used here."""

    def decompress(self, data: bytes, /) -> bytes:
        """The bytes that `data` completes."""


class Meter(Protocol):
    """Sees every body byte as it arrives."""

    def feed(self, data: bytes) -> None:
        """Take in the next bytes of the body."""


class Answer:
    """One response: status and headers first, then its body through `read`."""

    __slots__ = (
        "_chunks", "_connection", "_error", "_inflater", "_on_end", "_size", "_waiter", "headers",
        "is_complete", "meter", "status",
    )  # fmt: skip

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection
        self._chunks: list[bytes] = []
        self._size = 0
        self._waiter: asyncio.Future[None] | None = None
        self._error: UpstreamBrokenError | None = None
        self._inflater: Inflater | None = None
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        """Names in lower case, in the order received."""
        self.is_complete = False
        self.meter: Meter | None = None
        """Set before the head is awaited; sees the whole body."""
        self._on_end: Callable[[bool], None] | None = None

    def header(self, name: bytes) -> bytes | None:
        """The first value of a header, or None. `name` in lower case."""
        for known, value in self.headers:
            if known == name:
                return value
        return None

    async def read(self) -> bytes:
        """All bytes that have arrived, at least one; b"" at the end of the body.

        Raises UpstreamBrokenError when the connection ended before the body did.
        """
        while not self._chunks:
            if self._error is not None:
                raise self._error
            if self.is_complete:
                return b""
            await self._changed()
        data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        self._size = 0
        self._connection.resume()
        return data

    @property
    def has_data(self) -> bool:
        """Whether `read` would return bytes at once."""
        return bool(self._chunks)

    async def head(self) -> None:
        """Wait for status and headers. Raises UpstreamBrokenError."""
        while not self.status:
            if self._error is not None:
                raise self._error
            await self._changed()

    def when_ended(self, callback: Callable[[bool], None]) -> None:
        """Call `callback` once, synchronously, when the upstream ends; True: it ended well."""
        if self.is_complete or self._error is not None:
            callback(self.is_complete)
        else:
            self._on_end = callback

    def close(self) -> None:
        """Abandon the exchange: the engine sees the connection end and stops generating."""
        if not self.is_complete:
            self._connection.abort()

    def _changed(self) -> asyncio.Future[None]:
        self._waiter = asyncio.get_running_loop().create_future()
        return self._waiter

    # Called by the connection.

    def headed(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Status and headers are complete."""
        self.status = status
        self.headers = headers
        coding = (self.header(b"content-encoding") or b"identity").strip().lower()
        if coding in (b"gzip", b"deflate"):
            # It was told not to; what cannot be read cannot be metered, so it is undone.
            self._inflater = zlib.decompressobj(zlib.MAX_WBITS | 32)
        self._wake()

    def received(self, data: bytes) -> int:
        """Body bytes arrived; returns how many now wait for the reader."""
        if self._inflater is not None:
            data = self._inflater.decompress(data)
            if not data:
                return self._size
        if self.meter is not None:
            self.meter.feed(data)
        self._chunks.append(data)
        self._size += len(data)
        self._wake()
        return self._size

    def ended(self, error: UpstreamBrokenError | None) -> None:
        """The body is complete, or `error` cut it off."""
        if self.is_complete or self._error is not None:
            return
        self._error = error
        self.is_complete = error is None
        if self._on_end is not None:
            self._on_end(self.is_complete)
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Connection(asyncio.Protocol):
    """The protocol of one connection; also the callback target of the parser."""

    def __init__(
        self,
        *,
        buffer_bytes_max: int,
        on_idle: Callable[["Connection", bool], None],
        on_data: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_data` is called at every read, `on_idle` at the end of an exchange or the socket."""
        self._on_data = on_data
        self._buffer_bytes_max = buffer_bytes_max
        self._on_idle = on_idle
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._answer: Answer | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0
        """Received before the headers were complete."""
        self._is_paused = False
        self.idle_since = 0.0
        self.is_closed = False

    def begin(self, request: bytes, meter: Meter) -> Answer:
        """Send a whole request (head and body in one write) and return its answer-to-be."""
        assert self._answer is None, "one exchange at a time"
        assert self._transport is not None
        answer = self._answer = Answer(self)
        answer.meter = meter
        self._parser = httptools.HttpResponseParser(self)
        self._headers = []
        self._head_bytes = 0
        self._transport.write(request)
        return answer

    def resume(self) -> None:
        """The reader caught up."""
        if self._is_paused and self._transport is not None and not self.is_closed:
            self._is_paused = False
            self._transport.resume_reading()

    def abort(self) -> None:
        """Close at once, whatever is under way."""
        self._end(UpstreamBrokenError("abandoned", is_fresh=False))
        self.is_closed = True
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is connected."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Bytes of an answer, or an engine that talks without being asked."""
        self._on_data()
        answer = self._answer
        if self._parser is None or answer is None:
            self.abort()
            return
        if not answer.status:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
            if not answer.status and self._head_bytes > HEADER_BYTES_MAX:
                raise httptools.HttpParserError("headers too large")
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._end(UpstreamBrokenError(f"not HTTP: {error}", is_fresh=False))
            self.abort()

    def eof_received(self) -> None:
        """The engine closed; asyncio closes our side in turn."""

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone: what was under way breaks, unless its end was the end."""
        self.is_closed = True
        answer = self._answer
        if answer is None:
            self._on_idle(self, False)
            return
        is_fresh = not self._head_bytes
        if exc is None and answer.status and self._ends_with_connection(answer):
            self._end(None)
        else:
            message = str(exc) if exc else "the engine closed the connection"
            self._end(UpstreamBrokenError(message, is_fresh=is_fresh))

    # httptools

    def on_header(self, name: bytes, value: bytes) -> None:
        """One response header."""
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Status and headers are there; an interim 1xx answer is passed over."""
        assert self._parser is not None
        assert self._answer is not None
        status = self._parser.get_status_code()
        if status >= 200:
            self._answer.headed(status, self._headers)
        self._headers = []

    def on_body(self, data: bytes) -> None:
        """Some of the body."""
        if self._answer is None:
            return
        if self._answer.received(data) > self._buffer_bytes_max and not self._is_paused:
            self._is_paused = True
            cast(asyncio.Transport, self._transport).pause_reading()

    def on_message_complete(self) -> None:
        """The body is complete; the connection may serve the next exchange."""
        if self._answer is None or not self._answer.status:
            return
        assert self._parser is not None
        keeps = self._parser.should_keep_alive() and not self.is_closed
        self.resume()
        self._end(None)
        if keeps:
            self._on_idle(self, True)
        elif self._transport is not None:
            self._transport.close()

    def _end(self, error: UpstreamBrokenError | None) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.ended(error)

    def _ends_with_connection(self, answer: Answer) -> bool:
        """A body without length or chunks ends where the connection does (RFC 9112, 6.3)."""
        coding = (answer.header(b"transfer-encoding") or b"").lower()
        return answer.header(b"content-length") is None and b"chunked" not in coding
