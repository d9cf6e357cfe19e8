"""One timer for any number of paced streams: a wheel of 1 ms slots instead of a timer each.

It decides when a stream's next step is due and knows nothing of what a step does.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

NS_PER_S = 1_000_000_000
TICK_NS = 1_000_000


class Paced(Protocol):
    """Something that acts at instants of its own choosing."""

    def step(self, now_ns: int) -> int | None:
        """Act; return the instant of the next step, or None when there is none."""


class Wheel:
    """Which streams are due in which slot. Instants are ns of one monotonic clock."""

    __slots__ = ("_due", "_next", "_slots")

    def __init__(self) -> None:
        self._slots: dict[int, list[Paced]] = {}
        self._next = 0
        self._due = 0

    @property
    def waiting(self) -> int:
        """How many streams have a step to come."""
        return self._due

    def schedule(self, paced: Paced, due_ns: int, now_ns: int) -> None:
        """Have `paced` stepped in the first slot that begins at or after `due_ns`."""
        current = now_ns // TICK_NS
        if not self._due:
            self._next = current + 1
        # A late stream catches up one step a slot, so that a stall cannot end in an endless turn.
        slot = max(-(-due_ns // TICK_NS), current + 1)
        self._slots.setdefault(slot, []).append(paced)
        self._due += 1

    def advance(self, now_ns: int) -> None:
        """Step every stream whose slot has begun."""
        current = now_ns // TICK_NS
        while self._due and self._next <= current:
            due = self._slots.pop(self._next, None)
            self._next += 1
            for paced in due or ():
                self._due -= 1
                next_ns = paced.step(now_ns)
                if next_ns is not None:
                    self.schedule(paced, next_ns, now_ns)


class Ticker:
    """Turns the wheel with one `call_later` at a time, and none while nothing waits."""

    __slots__ = ("_clock", "_is_running", "_loop", "_wheel")

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._wheel = Wheel()
        self._is_running = False

    def schedule(self, paced: Paced, due_ns: int) -> None:
        """Have `paced` stepped at `due_ns` of `time.monotonic_ns`, to the next whole ms."""
        self._wheel.schedule(paced, due_ns, self._clock())
        if not self._is_running:
            self._is_running = True
            self._loop.call_later(TICK_NS / NS_PER_S, self._tick)

    def _tick(self) -> None:
        self._wheel.advance(self._clock())
        self._is_running = self._wheel.waiting > 0
        if self._is_running:
            self._loop.call_later(TICK_NS / NS_PER_S, self._tick)
