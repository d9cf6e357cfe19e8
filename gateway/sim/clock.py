"""Virtual time: a heap of what happens next. An hour passes as fast as its events are handled."""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count


class Clock:
    """Seconds since the run began; events of one instant happen in the order they were planned."""

    __slots__ = ("now", "_future", "_numbers")

    def __init__(self) -> None:
        self.now = 0.0
        self._future: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = count()

    def at(self, instant: float, what: Callable[[], object]) -> None:
        """Let it happen then."""
        assert instant >= self.now, "time does not go back"
        heappush(self._future, (instant, next(self._numbers), what))

    def after(self, delay_s: float, what: Callable[[], object]) -> None:
        """Let it happen after so many seconds."""
        heappush(self._future, (self.now + delay_s, next(self._numbers), what))

    def run_while(self, goes_on: Callable[[], bool], until_s: float) -> None:
        """Let time pass, at most until then, for as long as `goes_on` before each event."""
        future = self._future
        while future and future[0][0] <= until_s and goes_on():
            self.now, _, what = heappop(future)
            what()

    def run(self, until_s: float) -> None:
        """Let time pass until then, that instant included."""
        future = self._future
        while future and future[0][0] <= until_s:
            self.now, _, what = heappop(future)
            what()
        self.now = until_s
