"""Large bodies in pieces, so that one is changed and sent without ever being copied as a whole."""

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

Part = bytes | memoryview
PIECE_BYTES_MAX = 256 << 10
"""Copied and sent at a time: a larger body, sent as a whole, would stop all streams."""


class Sendable(Protocol):
    """A body that is not held as bytes, or not to be copied as a whole."""

    @property
    def length(self) -> int:
        """Bytes in all."""

    def pieces(self) -> AsyncGenerator[bytes, None]:
        """All bytes in order, from the beginning each time it is called."""


class Segments:
    """Parts of bodies in the order in which they are sent."""

    __slots__ = ("_parts", "length")

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self.length = sum(map(len, parts))
        """Bytes in all."""

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """All bytes in order, from the beginning each time it is called."""
        for part in self._parts:
            for start in range(0, len(part), PIECE_BYTES_MAX):
                yield bytes(part[start : start + PIECE_BYTES_MAX])

    def __bytes__(self) -> bytes:
        return b"".join(self._parts)
