"""When a client sends its next request: at once (closed loop), or when one is due (open loop).

A closed loop slows down with what it measures; an open one does not, and times a request that found
every connection busy from the moment it was due.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from gateway.bench.tally import Tally

OVERDUE_MAX = 10_000
"""Requests that wait for a connection; one more is an error."""
TICK_S = 0.001


class Asker(Protocol):
    """A connection without a request in progress."""

    def ask(self, due_ns: int) -> bool:
        """Send a request that is timed from `due_ns`; False when the connection is gone."""


class Arrivals(Protocol):
    """Decides when a client that is free asks again."""

    def ready(self, client: Asker) -> None:
        """`client` can take a request."""


class ClosedLoop:
    """As many requests in flight as there are clients."""

    __slots__ = ("_clock",)

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock = clock

    def ready(self, client: Asker) -> None:
        """Ask again, now."""
        client.ask(self._clock())


class OpenLoop:
    """Requests at a fixed rate, evenly spaced, each by the client that was free the longest."""

    __slots__ = ("_clock", "_gap_ns", "_idle", "_next_ns", "_overdue", "_tally")

    def __init__(
        self, per_s: float, tally: Tally, clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        assert per_s > 0, "an open loop needs a rate"
        self._tally = tally
        self._clock = clock
        self._gap_ns = round(1e9 / per_s)
        self._next_ns = clock()
        self._idle: deque[Asker] = deque()
        self._overdue: deque[int] = deque()

    async def run(self) -> None:
        """Send what is due, a thousand times a second, until cancelled."""
        while True:
            self.turn()
            await asyncio.sleep(TICK_S)

    def ready(self, client: Asker) -> None:
        """Give `client` what has been due the longest, or let it wait."""
        if self._overdue:
            if client.ask(self._overdue[0]):
                self._overdue.popleft()
        else:
            self._idle.append(client)

    def turn(self) -> None:
        """Send all that is due by now."""
        now_ns = self._clock()
        while self._next_ns <= now_ns:
            self._next_ns += self._gap_ns
            # From now on, not from its exact instant: the timer's delay is not the gateway's.
            if not self._give(now_ns):
                self._postpone(now_ns)

    def _give(self, due_ns: int) -> bool:
        while self._idle:
            if self._idle.popleft().ask(due_ns):
                return True
        return False

    def _postpone(self, due_ns: int) -> None:
        if len(self._overdue) < OVERDUE_MAX:
            self._overdue.append(due_ns)
        else:
            self._tally.count_error("overdue")
