"""The client's side of a connection: uvicorn's protocol, with two gaps closed.

uvicorn writes the headers of an answer by themselves, which costs a system call a request, and
tells of a client that left only whoever asks. Here headers leave with the first bytes of the body,
and the departure of a client ends what is done for it.
"""

import asyncio
from typing import Any, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from gateway.api.crowd import SURPLUS_S, Crowd
from gateway.api.disconnect import DEPARTURE, Departure
from gateway.api.framing import LAST_CHUNK, Head, chunk
from gateway.api.kernel import unsent_bytes
from gateway.api.reply import DIRECT

BODILESS = frozenset({204, 304})
"""Statuses whose answers have no body (RFC 9110, 6.4.1)."""


class ClientConfig(uvicorn.Config):
    """uvicorn's settings, with our own bound on connections."""

    crowd = Crowd()
    surplus: Any = None
    """The application for connections beyond the bound."""


class ClientConnection(HttpToolsProtocol):
    """One connection of a client."""

    _under_way: "ClientCycle | None" = None
    _is_surplus = False
    late_since: float | None = None
    """Since when the server's walk has seen the client in the middle of a head or a body."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvicorn narrows it too
        """A client came; beyond the bound it gets one answer, and beyond those nothing.

        uvicorn would wait for ever for a client that never sends anything.
        """
        super().connection_made(transport)
        config = self.config
        if not isinstance(config, ClientConfig):
            return
        count, patience_s = len(self.connections), float(self.timeout_keep_alive)
        if config.crowd.is_surplus(count):
            config.crowd.turned_away += 1
            if config.crowd.is_beyond(count):
                transport.abort()
                return
            self._is_surplus = True
            self.app = config.surplus
            patience_s = SURPLUS_S
        self.timeout_keep_alive_task = self.loop.call_later(
            patience_s, self.timeout_keep_alive_handler
        )

    def look(self, now: float, *, head_s: float, body_s: float) -> None:
        """Cut off a client that takes too long for a head or a body: from the server's walk."""
        cycle = cast(RequestResponseCycle | None, self.cycle)  # None before the first
        is_served = False
        if cycle is not None and not cycle.response_complete:
            is_served = True
            is_late = cycle.more_body and not cycle.response_started
        else:
            is_late = self.timeout_keep_alive_task is None
        if not is_late:
            self.late_since = None
        elif self.late_since is None:
            self.late_since = now
        elif now - self.late_since > (body_s if is_served else head_s):
            self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone.

        uvicorn tells only the latest request; one that runs while others are pipelined behind it
        would go on to its end for nobody.
        """
        super().connection_lost(exc)
        cycle = self._under_way
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
            cycle.scope[DEPARTURE].happened()  # type: ignore[literal-required]  # our own key
            cycle.leave_scope()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        # uvicorn makes its cycles by itself; this one differs only in how it writes, and is left
        # in the scope for whoever has bytes to write and nothing to wait for.
        cycle.__class__ = ClientCycle
        cycle.scope[DEPARTURE] = Departure()  # type: ignore[literal-required]  # our own key
        cycle.scope[DIRECT] = cycle  # type: ignore[literal-required]  # our own key
        self._under_way = cast(ClientCycle, cycle)
        if self._is_surplus:
            cycle.keep_alive = False
        super()._start_asgi_task(cycle, app)


class ClientCycle(RequestResponseCycle):
    """One request and its answer; headers are held until the first bytes of the body."""

    _head = b""
    _ends_with_connection = False
    """Whether the end of the connection is all that tells the end of the body."""

    async def send(self, message: Any) -> None:
        """ASGI's send: one write for each message that has a body."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if self.response_complete:
            raise RuntimeError("something is sent after the end of an answer")
        if message["type"] == "http.response.start":
            if self.response_started:
                raise RuntimeError("an answer begins once")
            self.response_started = True
            self.waiting_for_100_continue = False
            self._head = self._head_of(message["status"], message.get("headers", ()))
            return
        if not self.response_started:
            raise RuntimeError("a body needs an answer that has begun")
        body = message.get("body", b"")
        more_body = message.get("more_body", False)
        data = self._head + self._framed(body, more_body=more_body)
        self._head = b""
        if data:
            self.transport.write(data)
        if not more_body:
            self._complete()

    def answer(self, status: int, headers: Any, body: bytes) -> bool:
        """A whole answer, now; False where the client has not taken enough of the last one."""
        if self.flow.write_paused:
            return False
        if self.disconnected:
            return True
        assert not self.response_started, "an answer begins once"
        self.response_started = True
        self.waiting_for_100_continue = False
        head = self._head_of(status, headers)
        self.transport.write(head + self._framed(body, more_body=False))
        self._complete()
        return True

    def push(self, data: bytes) -> bool:
        """Some of the body, now: what `send` does, for whoever need not wait.

        False: it is on its way, but the client is slow; see `drained`.
        """
        if self.disconnected or self.response_complete:
            return True
        self.transport.write(self._head + self._framed(data, more_body=True))
        self._head = b""
        return not self.flow.write_paused

    async def drained(self) -> None:
        """The client has taken enough for more to be sent, or left."""
        await self.flow.drain()

    def unsent(self) -> int:
        """Bytes that the client has not taken yet."""
        held: int = self.transport.get_write_buffer_size()
        socket = self.transport.get_extra_info("socket")
        return held if socket is None else held + unsent_bytes(socket)

    def abort(self) -> None:
        """Leave the client, which loses what it has not taken."""
        self.disconnected = True
        self.transport.abort()

    def _head_of(self, status: int, headers: Any) -> bytes:
        """Status line and headers, and what they say of the body."""
        head = Head([*self.default_headers, *headers])
        lines = STATUS_LINE[status] + head.lines
        if head.closes:
            self.keep_alive = False
        elif not self.keep_alive:
            lines += b"connection: close\r\n"
        self.chunked_encoding = False
        if head.length is not None:
            self.expected_content_length = head.length
        elif self.scope["http_version"] == "1.0":
            # It knows no chunks (RFC 9112, 6.1), and its connections end with the answer anyway.
            self._ends_with_connection = True
        elif self.scope["method"] != "HEAD" and status not in BODILESS:
            self.chunked_encoding = True
            lines += b"transfer-encoding: chunked\r\n"
        return lines + b"\r\n"

    def _framed(self, body: bytes, *, more_body: bool) -> bytes:
        """The body as it goes over the wire."""
        if self.chunked_encoding:
            return chunk(body) if more_body else chunk(body) + LAST_CHUNK
        if self.scope["method"] == "HEAD":
            self.expected_content_length = 0
            return b""
        if self._ends_with_connection:
            return body
        self.expected_content_length -= len(body)
        if self.expected_content_length < 0:
            raise RuntimeError("an answer is longer than its content-length")
        return body

    def leave_scope(self) -> None:
        """It holds the scope; as long as the scope holds it, only the collector frees both."""
        self.scope.pop(DIRECT, None)  # type: ignore[misc]  # our own key

    def _complete(self) -> None:
        if self.expected_content_length:
            raise RuntimeError("an answer is shorter than its content-length")
        self.response_complete = True
        self.leave_scope()
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()
