"""What goes out to one client: its socket, and whether it takes what it is sent.

Knows nothing of HTTP but the headers that every answer has.
"""

import asyncio

from gateway.api.framing import header_lines
from gateway.api.kernel import unsent_bytes

Pairs = list[tuple[bytes, bytes]]


class Outflow:
    """The socket of one client."""

    __slots__ = ("_defaults", "_lines", "_transport", "_writable", "is_full", "is_paused")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._writable: asyncio.Event | None = None
        """Set while the client takes what it is sent; None: it always did."""
        self.is_full = False
        """Whether more should not be written now."""
        self.is_paused = False
        """Whether nothing is read from the client."""
        self._defaults: Pairs = []
        self._lines = b""

    def write(self, data: bytes) -> None:
        """Send it, now or as soon as the client takes it."""
        self._transport.write(data)

    def fill(self) -> None:
        """The client takes less than it is sent."""
        self.is_full = True
        if self._writable is None:
            self._writable = asyncio.Event()
        self._writable.clear()

    def drain(self) -> None:
        """The client took what it was sent, or is gone."""
        self.is_full = False
        if self._writable is not None:
            self._writable.set()

    async def drained(self) -> None:
        """Wait until the client takes more, or is gone."""
        if self.is_full and self._writable is not None:
            await self._writable.wait()

    def pause(self) -> None:
        """Read nothing more from the client for now."""
        if not self.is_paused:
            self.is_paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self.is_paused:
            self.is_paused = False
            self._transport.resume_reading()

    @property
    def is_closing(self) -> bool:
        """Whether the connection ends, or has ended."""
        return self._transport.is_closing()

    def close(self) -> None:
        """End the connection once the client has all it was sent."""
        self._transport.close()

    def abort(self) -> None:
        """End the connection; the client loses what it has not taken."""
        self._transport.abort()

    def unsent(self) -> int:
        """Bytes that the client has not taken yet."""
        held = self._transport.get_write_buffer_size()
        socket = self._transport.get_extra_info("socket")
        return held if socket is None else held + unsent_bytes(socket)

    def default_lines(self, defaults: Pairs) -> bytes:
        """The lines of the headers that the server gives every answer: a new list each second."""
        if defaults is not self._defaults:
            self._defaults = defaults
            self._lines = header_lines(defaults)
        return self._lines
