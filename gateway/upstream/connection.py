"""One keep-alive HTTP/1.1 connection to an engine, one exchange at a time.

Bytes are handed on as they arrive. A reader that falls behind stops the reading of the socket
once `buffer_bytes_max` wait for it; the meter sees each read on arrival all the same.
"""

import asyncio
import zlib
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import cast

import httptools

from gateway.core.messages import Fault
from gateway.upstream.chunks import CRLF, body_of_usual
from gateway.upstream.inflate import CODINGS, Inflation
from gateway.upstream.takers import Heard, Meter, Sink

HEADER_BYTES_MAX = 64 << 10
"""An answer whose headers are not complete after so many bytes ends the exchange."""
INFLATED_BYTES_MAX = 256 << 10
"""Of a compressed answer no more is undone at a time."""


class UpstreamBrokenError(Exception):
    """The connection failed. `is_fresh` tells whether any byte of an answer had arrived."""

    def __init__(
        self, message: str, *, is_fresh: bool, fault: Fault | None = Fault.BROKE_OFF
    ) -> None:
        super().__init__(message)
        self.is_fresh = is_fresh
        """True: nothing of an answer had arrived."""
        self.fault = fault
        """None: neither the engine nor the way to it is to blame."""


class Answer:
    """One response: status and headers first, then its body through `read`."""

    __slots__ = (
        "_buffer_bytes_max", "_chunks", "_connection", "_error", "_inflation", "_loop", "_meter",
        "_on_end", "_sink", "_size", "_waiter", "content_encoding", "headers", "is_complete",
        "status",
    )  # fmt: skip

    def __init__(
        self,
        connection: "Connection",
        meter: Meter,
        buffer_bytes_max: int,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._loop = loop
        self._connection: Connection | None = connection
        """None from the moment on when the connection is no longer at this answer."""
        self._meter = meter
        self._buffer_bytes_max = buffer_bytes_max
        self._chunks: list[bytes] = []
        self._size = 0
        self._waiter: asyncio.Future[None] | None = None
        self._error: UpstreamBrokenError | None = None
        self._inflation: Inflation | None = None
        self._on_end: Callable[[bool], None] | None = None
        self._sink: Sink | None = None
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        """As received; `header` finds one whatever its case."""
        self.content_encoding: bytes | None = None
        """Of the bytes that `read` returns; None: not compressed, or no longer."""
        self.is_complete = False

    def header(self, name: bytes) -> bytes | None:
        """The first value of a header, or None. `name` in lower case."""
        length = len(name)
        for known, value in self.headers:
            if len(known) == length and known.lower() == name:
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
        if self._inflation is not None and self._inflation.is_pending:
            self._inflate_rest(self._inflation)
        connection = self._connection
        if connection is not None and connection.is_paused and not self._is_behind:
            connection.resume()
        return data

    async def pour(self, sink: Sink) -> None:
        """Hand what arrives to `sink` at once, without a turn of the loop for each piece.

        Returns when `sink` takes no more for now, at the end of the body, and when something waits
        to be read: `read` tells which.
        """
        if self._chunks or self.is_complete or self._error is not None:
            return
        self._sink = sink
        try:
            await self._changed()
        finally:
            self._sink = None

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
        """Call `callback` once, synchronously, when the upstream ends; True: it ended well.

        A compressed answer ends when all of it has been undone, not sooner.
        """
        if self.is_complete or self._error is not None:
            callback(self.is_complete)
        else:
            self._on_end = callback

    def close(self) -> None:
        """Abandon the exchange: the engine sees the connection end and stops generating."""
        if self._connection is not None:
            self._connection.abort()
        elif not self.is_complete:
            self._settled(UpstreamBrokenError("abandoned", is_fresh=False, fault=None))

    def _changed(self) -> asyncio.Future[None]:
        self._waiter = self._loop.create_future()
        return self._waiter

    @property
    def _is_behind(self) -> bool:
        """Whether more waits for the reader than should; so it can be right after it read all."""
        return self._size > self._buffer_bytes_max

    # Called by the connection.

    @property
    def is_refusal(self) -> bool:
        """Whether the engine has answered and wants no more of the request."""
        return self.status >= 300

    def headed(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Status and headers are complete."""
        self.status = status
        self.headers = headers
        coding = self.header(b"content-encoding")
        if coding is not None:
            named = coding.strip().lower()
            if named in CODINGS:
                # It was told not to; what cannot be read cannot be metered, so it is undone.
                self._inflation = Inflation(named)
            elif named not in (b"identity", b""):
                self.content_encoding = coding
        self._wake()

    def received(self, data: bytes, framed: bytes = b"") -> int:
        """Body bytes arrived; returns how many now wait for the reader.

        `framed`: see `Sink`. Raises UpstreamBrokenError for what is not in the coding it names.
        """
        if self._inflation is not None:
            self._inflation.push(data)
            self._inflate(self._inflation)
        else:
            self._take(data, framed)
        return self._size

    def ended(self, error: UpstreamBrokenError | None) -> None:
        """The connection is done with this answer: the body is complete, or `error` cut it off."""
        if self._connection is None:
            return
        self._connection = None
        if self._inflation is not None and error is None:
            if self._inflation.is_pending:
                return  # the reader undoes the rest
            error = _cut_short(self._inflation)
        self._settled(error)

    def _settled(self, error: UpstreamBrokenError | None) -> None:
        if self.is_complete or self._error is not None:
            return
        self._error = error
        self.is_complete = error is None
        on_end, self._on_end = self._on_end, None  # whoever asked must not be held by it
        if on_end is not None:
            on_end(self.is_complete)
        self._wake()

    def _take(self, data: bytes, framed: bytes = b"") -> None:
        self._meter.feed(data)
        sink = self._sink
        if sink is None:
            self._chunks.append(data)
            self._size += len(data)
            self._wake()
        elif not sink(data, framed):
            self._sink = None
            self._wake()

    def _inflate(self, inflation: Inflation) -> None:
        """Undo as much as may wait for the reader."""
        try:
            while inflation.is_pending and not self._is_behind:
                if data := inflation.pull(INFLATED_BYTES_MAX):
                    self._take(data)
        except zlib.error as error:
            message = f"its compressed body cannot be read: {error}"
            raise UpstreamBrokenError(message, is_fresh=False) from error

    def _inflate_rest(self, inflation: Inflation) -> None:
        """The reader caught up with a compressed body."""
        try:
            self._inflate(inflation)
        except UpstreamBrokenError as error:
            self._settled(error)
            self.close()
            return
        if self._connection is None and not inflation.is_pending:
            self._settled(_cut_short(inflation))

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)


class Connection:
    """The protocol of one connection; also the callback target of its parser.

    It is an `asyncio.Protocol` in all but name: a subclass could not be compiled whole.
    """

    __slots__ = (
        "_answer", "_buffer_bytes_max", "_clock", "_head_bytes", "_headers", "_heard",
        "_is_between_chunks", "_is_full", "_is_sending", "_loop", "_on_idle", "_parser", "_parts",
        "_transport", "_writable", "idle_since", "is_closed", "is_paused", "on_body",
    )  # fmt: skip

    def __init__(
        self,
        *,
        buffer_bytes_max: int,
        on_idle: Callable[["Connection", bool], None],
        heard: Heard,
        clock: Callable[[], float],
    ) -> None:
        """`on_idle` is called at the end of an exchange (True) or of the idle socket (False)."""
        self._buffer_bytes_max = buffer_bytes_max
        self._on_idle = on_idle
        self._heard = heard
        self._clock = clock
        self._transport: asyncio.Transport | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._answer: Answer | None = None
        self._headers: list[tuple[bytes, bytes]] = []
        self._head_bytes = 0
        """Received before the headers were complete."""
        self._parts: list[bytes] = []
        """Pieces of the body that one read of the socket brought."""
        self.is_paused = False
        """Whether the socket is not read for now."""
        self._is_between_chunks = False
        """Whether the parser has seen the end of a chunk, and nothing of the next one."""
        self._is_full = False
        """Whether the transport wants no more bytes for now."""
        self._is_sending = False
        """Whether the request has not been handed to the transport as a whole."""
        self._writable: asyncio.Future[None] | None = None
        self.idle_since = 0.0
        self.is_closed = False
        self.on_body = self._parts.append
        """Called by the parser with some of the body; what it collects is passed on per read."""
        self._parser = httptools.HttpResponseParser(self)

    def begin(self, request: bytes, meter: Meter) -> Answer:
        """Send a request, or its head and then `send_rest`; returns its answer-to-be."""
        assert self._answer is None, "one exchange at a time"
        assert self._transport is not None
        assert self._loop is not None
        answer = self._answer = Answer(self, meter, self._buffer_bytes_max, self._loop)
        self._headers = []
        self._head_bytes = 0
        self._is_between_chunks = False
        self._transport.write(request)
        return answer

    async def send_rest(self, pieces: AsyncGenerator[bytes, None]) -> None:
        """Send the body, no faster than the engine takes it.

        Stops where the engine refuses the request or goes away meanwhile: its answer tells.
        """
        assert self._transport is not None
        self._is_sending = True
        async with aclosing(pieces):
            async for piece in pieces:
                if not self._is_wanted():
                    return
                self._transport.write(piece)
                if self._is_full:
                    self._writable = asyncio.get_running_loop().create_future()
                    await self._writable
        self._is_sending = False

    def resume(self) -> None:
        """The reader caught up."""
        if self.is_paused and self._transport is not None and not self.is_closed:
            self.is_paused = False
            self._transport.resume_reading()

    def abort(self) -> None:
        """Close at once, whatever is under way."""
        self._end(UpstreamBrokenError("abandoned", is_fresh=False, fault=None))
        self.is_closed = True
        if self._transport is not None:
            self._transport.abort()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is connected."""
        self._transport = cast(asyncio.Transport, transport)
        # Asked once a connection: asking takes a system call (Python 3.11).
        self._loop = asyncio.get_running_loop()

    def pause_writing(self) -> None:
        """The engine takes less than it is sent."""
        self._is_full = True

    def resume_writing(self) -> None:
        """The engine took what it was sent."""
        self._is_full = False
        self._let_write()

    def data_received(self, data: bytes) -> None:
        """Bytes of an answer, or an engine that talks without being asked."""
        self._heard.at = self._clock()
        answer = self._answer
        if answer is None:
            self.abort()
            return
        # The parser is none the wiser for a whole chunk, where it was and is between two of them.
        if self._is_between_chunks and (body := body_of_usual(data)):
            self._pass_on(answer, body, data)
            return
        if not answer.status:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._break(f"not HTTP: {error}")
            return
        if self._is_between_chunks and not data.endswith(CRLF):
            self._is_between_chunks = False  # it saw some of the next one's size
        if self._parts:
            self._deliver()
        if not answer.status and self._head_bytes > HEADER_BYTES_MAX:
            self._break("not HTTP: headers too large")

    def eof_received(self) -> None:
        """The engine closed; asyncio closes our side in turn."""

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone: what was under way breaks, unless its end was the end."""
        self.is_closed = True
        answer = self._answer
        if answer is None:
            self._let_write()
            self._on_idle(self, False)
        elif exc is None and answer.status and _ends_with_connection(answer):
            self._end(None)
        else:
            message = str(exc) if exc else "the engine closed the connection"
            self._end(UpstreamBrokenError(message, is_fresh=not self._head_bytes))

    # httptools

    def on_message_begin(self) -> None:
        """Another answer begins, perhaps in the read that brought the end of the last one."""
        if self._answer is None:
            raise UpstreamBrokenError("an answer to nothing", is_fresh=False)

    def on_header(self, name: bytes, value: bytes) -> None:
        """One response header."""
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Status and headers are there; an interim 1xx answer is passed over."""
        assert self._answer is not None
        status: int = self._parser.get_status_code()
        headers, self._headers = self._headers, []
        if status >= 200:
            self._answer.headed(status, headers)
            if self._writable is not None and self._answer.is_refusal:
                self._let_write()

    def on_chunk_header(self) -> None:
        """A chunk begins."""
        self._is_between_chunks = False

    def on_chunk_complete(self) -> None:
        """A chunk is there."""
        self._is_between_chunks = True

    def on_message_complete(self) -> None:
        """The body is complete; the connection may serve the next exchange."""
        if self._parts:
            self._deliver()
        if self._answer is None or not self._answer.status:
            return
        assert self._transport is not None
        is_unsent = self._is_sending or self._transport.get_write_buffer_size() > 0
        keeps = self._parser.should_keep_alive() and not self.is_closed and not is_unsent
        if self.is_paused:
            self.resume()
        self._end(None)
        if keeps:
            self._on_idle(self, True)
            return
        self.is_closed = True
        if is_unsent:
            self._transport.abort()  # closing would wait until an engine took what it refused
        else:
            self._transport.close()

    def _deliver(self) -> None:
        """Pass on what one read of the socket brought, as one piece."""
        parts, answer = self._parts, self._answer
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        if answer is not None:
            self._pass_on(answer, data, b"")

    def _pass_on(self, answer: Answer, data: bytes, framed: bytes) -> None:
        try:
            waiting_bytes = answer.received(data, framed)
        except UpstreamBrokenError as error:
            self._end(error)
            self.abort()
            return
        if waiting_bytes > self._buffer_bytes_max and not self.is_paused and not self.is_closed:
            self.is_paused = True
            cast(asyncio.Transport, self._transport).pause_reading()

    def _break(self, message: str) -> None:
        if self._parts:
            self._deliver()
        self._end(UpstreamBrokenError(message, is_fresh=False))
        self.abort()

    def _end(self, error: UpstreamBrokenError | None) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.ended(error)
        if self._writable is not None:
            self._let_write()

    def _is_wanted(self) -> bool:
        """Whether the engine still waits for the rest of the request."""
        return self._answer is not None and not self._answer.is_refusal

    def _let_write(self) -> None:
        """Whoever sends looks again whether it still should."""
        waiter, self._writable = self._writable, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


def _cut_short(inflation: Inflation) -> UpstreamBrokenError | None:
    """The error of a compressed body that does not end; None for one that does."""
    if inflation.is_whole:
        return None
    return UpstreamBrokenError("its compressed body ends too soon", is_fresh=False)


def _ends_with_connection(answer: Answer) -> bool:
    """A body without length or chunks ends where the connection does (RFC 9112, 6.3)."""
    coding = (answer.header(b"transfer-encoding") or b"").lower()
    return answer.header(b"content-length") is None and coding.find(b"chunked") < 0
