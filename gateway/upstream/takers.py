"""Who hears of what arrives from an engine: ports that the connection calls at once, in order."""

from collections.abc import Callable
from typing import Protocol


class Meter(Protocol):
    """Sees every body byte as it arrives."""

    def feed(self, data: bytes) -> None:
        """Take in the next bytes of the body."""


class Heard:
    """When anything last arrived from an engine, over all its connections."""

    __slots__ = ("at",)

    def __init__(self) -> None:
        self.at: float | None = None


Sink = Callable[[bytes, bytes], bool]
"""Takes some bytes at once; False: all of them, and no more for now. It must not raise.

Beside them the chunk as which they arrived, size and all; empty where they came otherwise.
"""
