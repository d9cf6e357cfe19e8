"""An event loop whose time jumps to the next timer: an hour of waiting passes at once.

Sockets are polled and never waited for, so it suits tests without any.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Jumping(selectors.DefaultSelector):
    """Adds to its clock the time that it should have slept."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "nothing is left that could ever happen"
            self.now += timeout
        return ready


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop with a clock of its own, which begins at 0."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Seconds since the loop was made, as its timers see it."""
        return self._jumping.now


def run_jumping(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` to its end on a jumping loop; its timers cost no time."""
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(main)
