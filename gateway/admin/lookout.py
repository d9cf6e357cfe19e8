"""Counts for all who look, once a second at most; what is counted, it does not know."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")

LOOK_S = 1.0
"""Who looks again within this gets what was counted then."""


class Lookout(Generic[T]):
    """One count, shared by all who look at about the same time."""

    def __init__(self, count: Callable[[], Awaitable[T]], clock: Callable[[], float]) -> None:
        self._count = count
        self._clock = clock
        self._last: tuple[float, T] | None = None
        self._counting = asyncio.Lock()

    async def look(self) -> T:
        """What there is, at most `LOOK_S` old."""
        async with self._counting:
            if self._last is None or self._clock() - self._last[0] >= LOOK_S:
                found = await self._count()
                self._last = (self._clock(), found)
            return self._last[1]
