"""In which order a gateway leaves: announced, then shut, then emptied, and in the end cut short.

Load balancers learn late that a gateway is going, so for a while it says so and serves all the
same. What is asked, refused and ended, and how, is the affair of whoever leaves.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Protocol

LOGGER = logging.getLogger("fairgate.shutdown")
LOOK_EVERY_S = 0.05
END_S = 2.0
"""What is ended at the limit may take so long to tell its client so."""


class Leaving(Protocol):
    """What leaves, step by step."""

    def announce(self) -> None:
        """Say that no more traffic should come; what comes is served."""

    def refuse(self) -> None:
        """Take nothing new in."""

    def inside(self) -> int:
        """Requests that were taken in and have not ended."""

    def end(self) -> None:
        """Tell each of them that it is over."""


async def leave(
    house: Leaving,
    *,
    lag_s: float,
    limit_s: float,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    clock: Callable[[], float] = monotonic,
) -> None:
    """Return once nothing is inside, or all of it has been told.

    `lag_s`: how long it is announced before anything is refused; `limit_s`: how long what is
    inside may go on after that.
    """
    house.announce()
    LOGGER.info("shutting down: not ready from now on, and nothing is refused for %g s", lag_s)
    if lag_s > 0.0:
        await sleep(lag_s)
    house.refuse()
    LOGGER.info("shutting down: %d requests have up to %g s", house.inside(), limit_s)
    if not await _emptied(house, clock() + limit_s, sleep, clock):
        LOGGER.warning("shutting down: %d requests are ended at the limit", house.inside())
        house.end()
        await _emptied(house, clock() + END_S, sleep, clock)


async def _emptied(
    house: Leaving,
    until: float,
    sleep: Callable[[float], Awaitable[None]],
    clock: Callable[[], float],
) -> bool:
    """Wait for the last to end; False: one has not by `until`."""
    while house.inside():
        if clock() >= until:
            return False
        await sleep(LOOK_EVERY_S)
    return True
