"""One client connection: sends a request, finds the end of its answer, times what it sees.

It reads bytes with searches instead of a parser, since whatever it costs is taken from the core
that it shares with the engine; `Framing` parses for a few clients what all of them take on trust.
"""

import asyncio
import re
import time
from typing import cast

import httptools

from gateway.bench.arrivals import Arrivals
from gateway.bench.load_spec import LoadSpec
from gateway.bench.replies import STAMP_DIGITS
from gateway.bench.tally import MARKS_PER_EVENT, Tally

MARK = b"@"
STAMP_START = b"@T"
STAMP = re.compile(rb"@T(\d{%d})@" % STAMP_DIGITS)
DONE = b"[DONE]"
LAST_CHUNK = b"\r\n0\r\n\r\n"
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)")
TAIL_BYTES = 64
"""Enough for the last event and the last chunk."""
HEAD_BYTES_MAX = 1 << 16
UNKNOWN = -1


class Framing:
    """Whether the bytes of one connection are whole HTTP responses, as a real parser sees them."""

    __slots__ = ("_parser", "responses")

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.responses = 0

    def feed(self, data: bytes) -> bool:
        """Take bytes; False when they are not HTTP."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            return False
        return True

    def on_message_complete(self) -> None:
        """Called by the parser."""
        self.responses += 1


class Client(asyncio.Protocol):
    """One keep-alive connection; `arrivals` says when it asks, `framing` checks its answers."""

    __slots__ = (
        "_arrivals",
        "_due_ns",
        "_framing",
        "_head",
        "_is_closing",
        "_is_in_body",
        "_is_waiting",
        "_left",
        "_marks",
        "_request",
        "_responses",
        "_spec",
        "_tail",
        "_tally",
        "_transport",
        "closed",
    )

    def __init__(
        self,
        spec: LoadSpec,
        tally: Tally,
        arrivals: Arrivals,
        *,
        request: bytes,
        framing: Framing | None = None,
    ) -> None:
        self._spec = spec
        self._tally = tally
        self._arrivals = arrivals
        self._request = request
        self._framing = framing
        self._transport: asyncio.Transport | None = None
        self._responses = 0
        self._marks = 0
        self._head = self._tail = b""
        self._left = UNKNOWN
        self._is_in_body = self._is_waiting = self._is_closing = False
        self._due_ns = 0
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected, and ready for a request."""
        self._transport = cast("asyncio.Transport", transport)
        self._arrivals.ready(self)

    def ask(self, due_ns: int) -> bool:
        """Send the request, timed from `due_ns`; False when the run or the connection is over."""
        if self._tally.is_stopping or self._transport is None or self._is_closing:
            self._close()
            return False
        self._marks = 0
        self._head = self._tail = b""
        self._is_in_body = False
        self._is_waiting = True
        self._tally.in_flight += 1
        self._due_ns = due_ns
        self._transport.write(self._request)
        return True

    def data_received(self, data: bytes) -> None:
        """Bytes of a response."""
        now_ns = time.monotonic_ns()
        if not self._is_waiting or (self._framing is not None and not self._framing.feed(data)):
            self._fail("not http")
        elif self._is_in_body:
            self._take(data, now_ns)
        else:
            self._take_head(self._head + data, now_ns)

    def connection_lost(self, exc: Exception | None) -> None:
        """An error only when a response was under way."""
        self._fail("connection lost")
        self._transport = None
        if not self.closed.done():
            self.closed.set_result(None)

    def _take_head(self, seen: bytes, now_ns: int) -> None:
        head, end, body = seen.partition(b"\r\n\r\n")
        if not end:
            self._head = seen
            if len(seen) > HEAD_BYTES_MAX or not seen.startswith(b"HTTP/1."[: len(seen)]):
                self._fail("not http")
            return
        if not head.startswith((b"HTTP/1.1 200", b"HTTP/1.0 200")):
            status = head[9:12].decode("ascii", "replace")
            self._fail(f"status {status}" if head.startswith(b"HTTP/1.") else "not http")
            return
        head = head.lower()
        length = LENGTH.search(head)
        self._left = int(length[1]) if length else UNKNOWN
        self._is_closing = b"\r\nconnection: close" in head
        self._is_in_body = True
        self._take(body, now_ns)

    def _take(self, data: bytes, now_ns: int) -> None:
        if self._spec.stream and (marks := data.count(MARK)):
            if self._tally.is_recording:
                self._record(data, marks, now_ns)
            self._marks += marks
        size = len(data)
        self._tail = data[-TAIL_BYTES:] if size >= TAIL_BYTES else (self._tail + data)[-TAIL_BYTES:]
        if self._left == UNKNOWN:
            if self._tail.endswith(LAST_CHUNK):
                self._end(now_ns)
        else:
            self._left -= size
            if self._left <= 0:
                self._end(now_ns)

    def _record(self, data: bytes, marks: int, now_ns: int) -> None:
        tally = self._tally
        tally.marks += marks
        if not self._marks:
            tally.ttft_ns.append(now_ns - self._due_ns)
        if marks == MARKS_PER_EVENT:
            start = data.find(STAMP_START) + len(STAMP_START)
            digits = data[start : start + STAMP_DIGITS]
            if start >= len(STAMP_START) and digits.isdigit():
                tally.chunk_delay_ns.append(now_ns - int(digits))
        else:
            # A stamp that a read cuts in two is counted by its marks, but not timed.
            tally.chunk_delay_ns.extend(now_ns - int(stamp) for stamp in STAMP.findall(data))

    def _end(self, now_ns: int) -> None:
        self._responses += 1
        if self._framing is not None and self._framing.responses != self._responses:
            self._fail("bad framing")
        elif self._spec.stream and DONE not in self._tail:
            self._fail("no [DONE]")
        elif self._spec.stream and self._marks != self._spec.events * MARKS_PER_EVENT:
            # An error told within a stream of status 200 looks like this.
            self._fail("events missing")
        else:
            self._is_waiting = False
            self._tally.in_flight -= 1
            if self._tally.is_recording:
                self._tally.latency_ns.append(now_ns - self._due_ns)
            if self._is_closing or self._tally.is_stopping:
                self._close()
            else:
                self._arrivals.ready(self)

    def _fail(self, kind: str) -> None:
        if self._is_waiting:
            self._is_waiting = False
            self._tally.in_flight -= 1
            self._tally.count_error(kind)
        self._close()

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
