"""What happens, told as it happens: to any number of listeners up to a bound, none of whom waits.

Each listener has a buffer. Who does not keep up is told that it lagged, and dropped; it may come
again with the id of the last event it saw, and gets what came since from a ring.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.errors import OverloadedError

RING = 500
"""Events that are kept for those who come again."""
LISTENERS_MAX = 64
BUFFER = 1_000
"""Events that one listener may be behind."""
HEARTBEAT_S = 10.0
AGAIN_S = 5.0
LAGGED = "lagged"
HEARTBEAT = "heartbeat"


@dataclass(frozen=True, slots=True)
class Happening:
    """One event."""

    number: int
    kind: str
    body: bytes
    """Its JSON."""


class Listener:
    """One who listens, and what it has not been told yet."""

    def __init__(self) -> None:
        self._waiting: deque[Happening] = deque()
        self._news = asyncio.Event()
        self.has_lagged = False
        self.is_over = False

    def tell(self, happening: Happening) -> None:
        """Without waiting for it; who is too far behind loses all of it."""
        if self.has_lagged:
            return
        if len(self._waiting) >= BUFFER:
            self.has_lagged = True
            self._waiting.clear()
        else:
            self._waiting.append(happening)
        self._news.set()

    def end(self) -> None:
        """Nothing more will come."""
        self.is_over = True
        self._news.set()

    async def next(self) -> Happening | None:
        """The next event; None after `HEARTBEAT_S` without one, or when there is none any more."""
        if not (self._waiting or self.has_lagged or self.is_over):
            self._news.clear()
            try:
                async with asyncio.timeout(HEARTBEAT_S):
                    await self._news.wait()
            except TimeoutError:
                return None
        return self._waiting.popleft() if self._waiting else None


class Happenings:
    """All that is told to operators."""

    def __init__(self, epoch: str, wall: Callable[[], float]) -> None:
        """`epoch` is of this process: ids of another one mean nothing here."""
        self._epoch = epoch
        self._wall = wall
        self._number = 0
        self._ring: deque[Happening] = deque(maxlen=RING)
        self._listeners: set[Listener] = set()
        self._is_closed = False

    def publish(self, kind: str, told: Mapping[str, Any]) -> None:
        """Something happened: a kind like `policy.changed`, and what there is to say of it."""
        self._number += 1
        body = orjson.dumps({"at": self._wall(), **told})
        happening = Happening(self._number, kind, body)
        self._ring.append(happening)
        for listener in self._listeners:
            listener.tell(happening)

    def listen(self, last_id: str | None) -> Listener:
        """Begin to listen, after the event of that id. Raises OverloadedError."""
        if self._is_closed or len(self._listeners) >= LISTENERS_MAX:
            raise OverloadedError(
                f"At most {LISTENERS_MAX} may listen at once.", retry_after_s=AGAIN_S
            )
        listener = Listener()
        if last_id is not None:
            self._catch_up(listener, last_id)
        self._listeners.add(listener)
        return listener

    def leave(self, listener: Listener) -> None:
        """It listens no more."""
        self._listeners.discard(listener)

    def close(self) -> None:
        """Nobody listens any more: the gateway ends."""
        self._is_closed = True
        for listener in self._listeners:
            listener.end()

    def id_of(self, happening: Happening) -> str:
        """As it is told."""
        return f"{self._epoch}-{happening.number}"

    @property
    def listeners(self) -> int:
        """How many listen."""
        return len(self._listeners)

    def _catch_up(self, listener: Listener, last_id: str) -> None:
        epoch, _, number = last_id.rpartition("-")
        oldest = self._ring[0].number if self._ring else self._number + 1
        is_known = epoch == self._epoch and number.isascii() and number.isdigit()
        if not is_known or not oldest - 1 <= int(number) <= self._number:
            body = orjson.dumps({"at": self._wall()})
            listener.tell(Happening(self._number, LAGGED, body))
            return
        for happening in self._ring:
            if happening.number > int(number):
                listener.tell(happening)
