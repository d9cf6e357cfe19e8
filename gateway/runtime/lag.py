"""How late the event loop is: what a request waits beside all that it is known to wait for.

One timer measures it. What follows from it is decided by whoever is told.
"""

import asyncio
from collections.abc import Callable

LOOK_EVERY_S = 0.1
WINDOW_S = 30.0
"""The longest lag is told of the last one to two windows."""


class LagMeter:
    """Looks at the loop's lateness every `LOOK_EVERY_S` seconds; `told` hears of each look."""

    def __init__(self, told: Callable[[float], None] = lambda _: None) -> None:
        self._told = told
        self._timer: asyncio.TimerHandle | None = None
        self._due_at = 0.0
        self._window_at = 0.0
        self._longest = 0.0
        self._longest_before = 0.0

    @property
    def longest_s(self) -> float:
        """The longest lag of the last half minute to minute."""
        return max(self._longest, self._longest_before)

    def start(self) -> None:
        """Measure from now on, in the loop that runs."""
        loop = asyncio.get_running_loop()
        self._window_at = loop.time()
        self._next(loop)

    def stop(self) -> None:
        """Measure no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _next(self, loop: asyncio.AbstractEventLoop) -> None:
        self._due_at = loop.time() + LOOK_EVERY_S
        self._timer = loop.call_later(LOOK_EVERY_S, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        now = loop.time()
        lag_s = max(0.0, now - self._due_at)
        if now - self._window_at >= WINDOW_S:
            self._window_at = now
            self._longest_before, self._longest = self._longest, 0.0
        self._longest = max(self._longest, lag_s)
        self._told(lag_s)
        self._next(loop)
