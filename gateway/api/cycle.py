"""One request of a client and its answer, between the connection and an ASGI application.

Headers are held until the first bytes of the body: one write less for each request. What the
application may do at once, without being awaited, is `reply.Direct`.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from gateway.api.disconnect import DEPARTURE, Departure, Scope
from gateway.api.framing import LAST_CHUNK, STATUS_LINES, Head
from gateway.api.outflow import Outflow, Pairs
from gateway.api.reply import DIRECT
from gateway.upstream.chunks import chunk

LOGGER = logging.getLogger("fairgate.inbound")
BODILESS = (204, 304)
"""Statuses whose answers have no body (RFC 9110, 6.4.1)."""
UNREAD_BYTES_MAX = 64 << 10
"""Of a body that the application does not read; more is left in the socket."""
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
FAULT_HEADERS = (
    (b"content-type", b"text/plain; charset=utf-8"),
    (b"content-length", b"21"),
    (b"connection", b"close"),
)
FAULT_BODY = b"Internal Server Error"

Message = dict[str, Any]


class ClientCycle:
    """One request and its answer."""

    __slots__ = (
        "_body", "_body_bytes", "_chunks", "_defaults", "_ends_with_connection", "_has_news",
        "_head", "_is_head", "_left", "_on_complete", "_out", "_waiter", "departure",
        "disconnected", "is_complete", "is_old", "keep_alive", "more_body", "scope", "started",
        "waits_for_continue",
    )  # fmt: skip

    def __init__(
        self,
        out: Outflow,
        scope: Scope,
        *,
        defaults: Pairs,
        on_complete: Callable[["ClientCycle"], None],
        keep_alive: bool,
    ) -> None:
        """`defaults`: headers of every answer; `on_complete` hears of the end of this one."""
        self._out = out
        self.scope = scope
        self._defaults = defaults
        self._on_complete = on_complete
        self.keep_alive = keep_alive
        self.departure = Departure()
        self.waits_for_continue = False
        """Whether the client sends its body only when it is told to."""
        self.is_old = scope["http_version"] == "1.0"
        """It knows no chunks (RFC 9112, 6.1), and its connections end with the answer anyway."""
        self._is_head = scope["method"] == "HEAD"
        self._body: list[bytes] = []
        self._body_bytes = 0
        self.more_body = True
        """Whether the request is not complete yet."""
        self._has_news = False
        """Whether anything came that `receive` has not told."""
        self._waiter: asyncio.Future[None] | None = None
        self.disconnected = False
        self.started = False
        """Whether the application has begun to answer."""
        self.is_complete = False
        """Whether it has ended its answer."""
        self._head = b""
        self._chunks = False
        """Whether the answer is sent in chunks."""
        self._left = 0
        """What is still to come of the announced length."""
        self._ends_with_connection = False
        """Whether the end of the connection is all that tells the end of the body."""
        scope[DEPARTURE] = self.departure
        scope[DIRECT] = self

    async def run(self, app: Callable[..., Any]) -> None:
        """Let the application answer; one that does not is answered for."""
        try:
            await app(self.scope, self.receive, self.send)
        except asyncio.CancelledError:
            self._out.close()
            raise
        except Exception as error:
            LOGGER.error("the application failed", exc_info=error)
        else:
            if self.is_complete or self.disconnected:
                return
            # An unfinished answer is how an application says that its own source broke off.
            if not self.started:
                LOGGER.error("the application ended without an answer")
        if self.started or self.disconnected:
            self._out.close()
            return
        await self.send(
            {"type": "http.response.start", "status": 500, "headers": list(FAULT_HEADERS)}
        )
        await self.send({"type": "http.response.body", "body": FAULT_BODY, "more_body": False})

    # The request.

    def came(self, body: bytes) -> None:
        """Some of the body of the request."""
        self._body.append(body)
        self._body_bytes += len(body)
        if self._body_bytes > UNREAD_BYTES_MAX:
            self._out.pause()
        self._wake()

    def ended(self) -> None:
        """The request is complete."""
        self.more_body = False
        self._wake()

    def left(self) -> None:
        """The client is gone."""
        if self.is_complete:
            return
        self.disconnected = True
        self._wake()
        self.departure.happened()
        self._leave_scope()

    async def receive(self) -> Message:
        """ASGI's receive."""
        if self.waits_for_continue and not self._out.is_closing:
            self._out.write(CONTINUE)
            self.waits_for_continue = False
        if not self.disconnected and not self.is_complete:
            self._out.resume()
            while not self._has_news:
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter
            self._has_news = False
        if self.disconnected or self.is_complete:
            return {"type": "http.disconnect"}
        parts = self._body
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        self._body, self._body_bytes = [], 0
        return {"type": "http.request", "body": body, "more_body": self.more_body}

    # The answer.

    async def send(self, message: Message) -> None:
        """ASGI's send: one write for each message that has a body."""
        if self._out.is_full and not self.disconnected:
            await self._out.drained()
        if self.disconnected:
            return
        if self.is_complete:
            raise RuntimeError("something is sent after the end of an answer")
        if message["type"] == "http.response.start":
            self._begin(message["status"], list(message.get("headers", ())))
            return
        if not self.started:
            raise RuntimeError("a body needs an answer that has begun")
        body: bytes = message.get("body", b"")
        more_body: bool = message.get("more_body", False)
        data = self._head + self._framed(body, more_body)
        self._head = b""
        if data:
            self._out.write(data)
        if not more_body:
            self._complete()

    def answer(self, status: int, headers: Pairs, body: bytes) -> bool:
        """A whole answer, now; False where the client has not taken enough of the last one."""
        if self._out.is_full:
            return False
        if self.disconnected:
            return True
        self._begin(status, headers)
        data = self._head + self._framed(body, False)
        self._head = b""
        self._out.write(data)
        self._complete()
        return True

    def push(self, data: bytes, framed: bytes = b"") -> bool:
        """Some of the body, now: what `send` does, for whoever need not wait.

        `framed`: the same as `chunk` would make it, where it is there already. False: it is on its
        way, but the client is slow; see `drained`.
        """
        if self.disconnected or self.is_complete:
            return True
        if not framed or not self._chunks:
            framed = self._framed(data, True)
        if self._head:
            framed = self._head + framed
            self._head = b""
        self._out.write(framed)
        return not self._out.is_full

    async def drained(self) -> None:
        """The client has taken enough for more to be sent, or left."""
        await self._out.drained()

    def unsent(self) -> int:
        """Bytes that the client has not taken yet."""
        return self._out.unsent()

    def abort(self) -> None:
        """Leave the client, which loses what it has not taken."""
        self.disconnected = True
        self._out.abort()

    def _begin(self, status: int, headers: Pairs) -> None:
        """Status line and headers, and what they say of the body."""
        if self.started:
            raise RuntimeError("an answer begins once")
        self.started = True
        self.waits_for_continue = False
        head = Head(headers)
        lines = STATUS_LINES[status] + self._out.default_lines(self._defaults) + head.lines
        if head.closes:
            self.keep_alive = False
        elif not self.keep_alive:
            lines += b"connection: close\r\n"
        if head.length >= 0:
            self._left = head.length
        elif self.is_old:
            self._ends_with_connection = True
        elif not self._is_head and status not in BODILESS:
            self._chunks = True
            lines += b"transfer-encoding: chunked\r\n"
        self._head = lines + b"\r\n"

    def _framed(self, body: bytes, more_body: bool) -> bytes:
        """The body as it goes over the wire."""
        if self._chunks:
            return chunk(body) if more_body else chunk(body) + LAST_CHUNK
        if self._is_head:
            self._left = 0
            return b""
        if self._ends_with_connection:
            return body
        self._left -= len(body)
        if self._left < 0:
            raise RuntimeError("an answer is longer than its content-length")
        return body

    def _complete(self) -> None:
        if self._left:
            raise RuntimeError("an answer is shorter than its content-length")
        self.is_complete = True
        self._leave_scope()
        self._wake()
        if not self.keep_alive:
            self._out.close()
        self._on_complete(self)

    def _leave_scope(self) -> None:
        """It holds the scope; as long as the scope holds it, only the collector frees both."""
        self.scope.pop(DIRECT, None)

    def _wake(self) -> None:
        """Whoever waits in `receive` looks again."""
        self._has_news = True
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
