"""Looking at a house while something happens to it: engines that are too full, and how long."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import monotonic

from tests.chaos.cluster.house import SLOTS, House

LOOK_EVERY_S = 0.05
QUEUE_LIMIT = 2
"""Of the tier that the load asks for: so many may wait inside an engine."""
ALLOWED = SLOTS + QUEUE_LIMIT + 1


@dataclass(slots=True)
class Fullness:
    """The most sequences that an engine had at once."""

    most: int = 0


@asynccontextmanager
async def watched(house: House) -> AsyncIterator[Fullness]:
    """Look at the engines during the block."""
    found = Fullness()
    looking = asyncio.ensure_future(_look(house, found))
    try:
        yield found
    finally:
        looking.cancel()
        await asyncio.wait((looking,))


async def _look(house: House, found: Fullness) -> None:
    while True:
        for replica in house.engines:
            found.most = max(found.most, await replica.engine.busy())
        await asyncio.sleep(LOOK_EVERY_S)


async def taken_s(look: Callable[[], Awaitable[bool]], within_s: float) -> float:
    """Seconds until `look` says so; TimeoutError where it does not although it began after those.

    The limit is that of the gateways: how long a busy machine takes to answer is not counted.
    """
    began_at = monotonic()
    while True:
        passed_s = monotonic() - began_at
        if await look():
            return monotonic() - began_at
        if passed_s > within_s:
            raise TimeoutError(f"not within {within_s:g} s")
        await asyncio.sleep(LOOK_EVERY_S)
