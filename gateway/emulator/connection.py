"""uvicorn's HTTP/1.1 connection, with two things that its ASGI interface lacks.

A request learns at once that its client has left, and the server can break the connection off.
"""

import socket
import struct
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

STATE_KEY = "connection"
"""Where a request finds its connection in `scope["state"]`."""


class Connection(HttpToolsProtocol):
    """One accepted connection. A half-close counts as leaving, as it does for the real engine."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.is_lost = False
        self._on_lost: Callable[[], None] = _nothing

    def on_message_begin(self) -> None:
        """uvicorn's hook: a request begins."""
        super().on_message_begin()
        self._on_lost = _nothing
        self.scope["state"][STATE_KEY] = self

    def connection_lost(self, exc: Exception | None) -> None:
        """asyncio's hook: it is over, for whatever reason."""
        super().connection_lost(exc)
        self.is_lost = True
        self._on_lost()

    def when_lost(self, callback: Callable[[], None]) -> None:
        """Call back once the client of the present request has left; at once if it has."""
        self._on_lost = callback
        if self.is_lost:
            callback()

    def reset(self) -> None:
        """End with a RST: what was not yet read by the client is lost."""
        raw = self.transport.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def hang_up(self) -> None:
        """End with a FIN after what was written, whatever HTTP had promised."""
        self.transport.close()


def _nothing() -> None:
    """The request that the connection carries does not care."""
