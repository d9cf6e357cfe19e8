"""An event loop whose time jumps to the next timer: an hour of waiting passes at once.

Sockets are polled and, unless told otherwise, never waited for: it suits tests without any, and
with some grace those that have both ends of each connection in this loop.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")


class _Jumping(selectors.DefaultSelector):
    """Adds to its clock the time that it should have slept."""

    now = 0.0
    grace_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0) or (self.grace_s and super().select(self.grace_s)) or []
        if not ready:
            assert timeout is not None, "nothing is left that could ever happen"
            self.now += timeout
        return ready


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop with a clock of its own, which begins at 0."""

    def __init__(self, grace_s: float = 0.0) -> None:
        """`grace_s`: real time for which a socket is waited for before the clock jumps."""
        self._jumping = _Jumping()
        self._jumping.grace_s = grace_s
        super().__init__(self._jumping)

    def time(self) -> float:
        """Seconds since the loop was made, as its timers see it."""
        return self._jumping.now

    def jump(self, seconds: float) -> None:
        """As if the process had been stopped for so long."""
        self._jumping.now += seconds


def run_jumping(main: Coroutine[Any, Any, T], *, grace_s: float = 0.0) -> T:
    """Run `main` to its end on a jumping loop; its timers cost no time."""
    with asyncio.Runner(loop_factory=partial(JumpingLoop, grace_s)) as runner:
        return runner.run(main)
