"""An exchange that is ended from outside, by cancelling the task that carries it.

It tells our own cancellations from those of others, and why they were made; not what follows.
"""

import asyncio
from collections.abc import Callable

from gateway.errors import GatewayError


class Interruption:
    """What one exchange was interrupted for; made when that happens, which is seldom."""

    __slots__ = ("_cancels", "farewell", "is_cut_off", "is_departure", "is_move")

    def __init__(self) -> None:
        self._cancels = 0
        self.is_cut_off = False
        """The client takes nothing any more."""
        self.is_departure = False
        """The client left, and its engine goes on."""
        self.is_move = False
        """Another replica is to go on."""
        self.farewell: GatewayError | None = None
        """What the client is told, where it is ended for no fault of anybody."""

    def strike(self, task: "asyncio.Task[None]") -> None:
        """Cancel `task`, once more."""
        self._cancels += 1
        task.cancel()

    def is_alone(self) -> bool:
        """Whether the cancellation under way is ours alone; it is taken back then."""
        task, others = asyncio.current_task(), 1
        assert task is not None
        while self._cancels:
            self._cancels -= 1
            others = task.uncancel()
        return others == 0


class Leaver:
    """Stands for a task that goes on when its client leaves, but in another way."""

    __slots__ = ("_left",)

    def __init__(self, left: Callable[[], None]) -> None:
        self._left = left

    def cancel(self) -> None:
        """The client left."""
        self._left()
