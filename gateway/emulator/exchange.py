"""One request and its answer over a connection, deformed where a fault says so.

Decides how bytes travel (chunked, compressed, dribbled, cut), not what they say.
"""

import asyncio
import zlib
from collections.abc import Iterable
from typing import Any

from starlette.types import Receive, Scope, Send

from gateway.emulator.connection import STATE_KEY, Connection
from gateway.emulator.faults import FaultKind, Faults
from gateway.emulator.mailbox import ClientGone, Mailbox

JSON = b"application/json"
EVENT_STREAM = b"text/event-stream; charset=utf-8"
ARRIVAL_S = 0.02
"""After so long what was written on a loopback has been read, unless nobody reads."""
BODY_BYTES_MAX = 64 * 1024 * 1024
_GZIP_WINDOW = 31
"""zlib's wbits for a gzip container with the largest window."""

Headers = Iterable[tuple[bytes, bytes]]


class Exchange:
    """Read the body, then answer whole or in parts. One request only."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, faults: Faults) -> None:
        self.scope = scope
        self.connection: Connection = scope["state"][STATE_KEY]
        self.mailbox = Mailbox()
        """What its sequences fill; it also tells when the client is gone."""
        self._receive = receive
        self._send = send
        self._faults = faults
        self._gzip: Any = None
        self._dribbles = False
        self.connection.when_lost(self.mailbox.close)

    def header(self, name: bytes) -> str | None:
        """A request header; `name` in lower case."""
        headers: list[tuple[bytes, bytes]] = self.scope["headers"]
        for key, value in headers:
            if key == name:
                return value.decode("latin-1")
        return None

    async def body(self) -> bytes:
        """The whole body of the request.

        Raises:
            ClientGone: it left while sending.
        """
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] != "http.request":
                raise ClientGone
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > BODY_BYTES_MAX:
                self.connection.reset()
                raise ClientGone
            if not message.get("more_body", False):
                return b"".join(parts)

    async def answer(
        self, status: int, body: bytes, *, content_type: bytes = JSON, headers: Headers = ()
    ) -> None:
        """A whole answer."""
        packed = body
        if self._faults.is_active(FaultKind.GZIP):
            self._gzip = zlib.compressobj(wbits=_GZIP_WINDOW)
            packed = self._gzip.compress(body) + self._gzip.flush()
        length = (b"content-length", b"%d" % len(packed))
        typed = [(b"content-type", content_type)] if body else []
        await self._start(status, [length, *typed, *headers])
        if self._faults.is_active(FaultKind.DRIBBLE):
            await self._dribble(packed)
            packed = b""
        await self._send({"type": "http.response.body", "body": packed, "more_body": False})

    async def open_stream(self) -> None:
        """Send the 200 of a stream; events follow by `write`."""
        if self._faults.is_active(FaultKind.GZIP):
            self._gzip = zlib.compressobj(wbits=_GZIP_WINDOW)
        self._dribbles = self._faults.is_active(FaultKind.DRIBBLE)
        await self._start(200, [(b"content-type", EVENT_STREAM)])

    async def write(self, event: bytes) -> None:
        """Send a part of the stream, as a chunk of its own."""
        if self._gzip is not None:
            event = self._gzip.compress(event) + self._gzip.flush(zlib.Z_SYNC_FLUSH)
        if self._dribbles:
            await self._dribble(event)
        else:
            await self._send({"type": "http.response.body", "body": event, "more_body": True})

    async def write_half(self, event: bytes) -> None:
        """Send a chunk whose announced length is twice what comes of it, and let it arrive."""
        half = event[: len(event) // 2]
        self.connection.transport.write(b"%x\r\n%s" % (len(event), half))
        await asyncio.sleep(ARRIVAL_S)

    async def close_stream(self) -> None:
        """Send the last chunk."""
        rest = b"" if self._gzip is None else self._gzip.flush()
        await self._send({"type": "http.response.body", "body": rest, "more_body": False})

    async def answer_half(self, body: bytes) -> None:
        """The headers of a whole answer and the first half of it."""
        length = (b"content-length", b"%d" % len(body))
        await self._start(200, [length, (b"content-type", JSON)])
        half = body[: len(body) // 2]
        await self._send({"type": "http.response.body", "body": half, "more_body": True})

    async def reset(self) -> None:
        """Break off with a RST.

        Raises:
            ClientGone: always; nothing can be said any more.
        """
        self.connection.reset()
        await self.mailbox.wait_gone()

    async def hang_up(self) -> None:
        """Break off with a FIN.

        Raises:
            ClientGone: always; nothing can be said any more.
        """
        self.connection.hang_up()
        await self.mailbox.wait_gone()

    async def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        if self._gzip is not None:
            headers.append((b"content-encoding", b"gzip"))
        headers.append((b"vary", b"Origin"))
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def _dribble(self, data: bytes) -> None:
        fault = self._faults.get(FaultKind.DRIBBLE)
        pause_s = 0.0 if fault is None else fault.value / 1000
        for at in range(len(data)):
            byte = data[at : at + 1]
            await self._send({"type": "http.response.body", "body": byte, "more_body": True})
            await asyncio.sleep(pause_s)
