"""The one owner of the scheduler in a live gateway: events in, decisions carried to who waits.

`Scheduler.handle` never awaits, so the event loop is the lock and there is a single writer.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol, assert_never

from gateway.core.messages import (
    Decision,
    Event,
    Granted,
    MoveWanted,
    Recalled,
    RecallTooLate,
    Refused,
    ScaleAdvised,
    WakeWanted,
    Woke,
)
from gateway.core.scheduler import Scheduler


class Waiter(Protocol):
    """Whoever asked for a grant."""

    def decided(self, decision: Granted | Refused) -> None:
        """The scheduler decided; called synchronously, must not block."""

    def recalled(self) -> bool:
        """The scheduler wants the request back; called synchronously, must not block.

        False: too late, the engine began. True: `RecallDone` follows, unless the request ends.
        """

    def move_wanted(self) -> bool:
        """The scheduler wants the running request elsewhere; called synchronously, must not block.

        False: it stays. True: its `Finished` follows, and its rest comes as a request of its own.
        """


class Decider(Protocol):
    """Who decides in front of the scheduler, where several gateways are one."""

    def handle(self, event: Event, now: float) -> list[Decision]:
        """See `Scheduler.handle`."""

    def place_of(self, request_id: str, now: float) -> tuple[int, float | None] | None:
        """See `Scheduler.place_of`."""


class Dispatcher:
    """Feeds the scheduler and delivers its decisions."""

    def __init__(
        self,
        scheduler: Scheduler,
        clock: Callable[[], float],
        *,
        decider: Decider | None = None,
        advised: Callable[[ScaleAdvised], None] = lambda _: None,
    ) -> None:
        """`decider` decides in place of the scheduler behind it; None: nobody does.

        `advised` hears each advice on the number of replicas; it must not block.
        """
        self.scheduler = scheduler
        self.clock = clock
        self.decider = decider
        self._advised = advised
        self._waiters: dict[str, Waiter] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    def tell(self, event: Event) -> None:
        """Hand one event to the scheduler and carry out what it decides."""
        if self.decider is None:
            self.carry_out(self.scheduler.handle(event, self.clock()))
        else:
            self.carry_out(self.decider.handle(event, self.clock()))

    def carry_out(self, decisions: list[Decision]) -> None:
        """Deliver what was decided to whoever waits for it."""
        begun: tuple[str, ...] = ()
        for decision in decisions:
            match decision:
                case Granted() | Refused():
                    # Without a waiter the request ended while the decision was made.
                    waiter = self._waiters.get(decision.request_id)
                    if waiter is not None:
                        waiter.decided(decision)
                case WakeWanted():
                    self._wake_at(decision.at)
                case Recalled():
                    # Without a waiter its end was told, and that was the answer.
                    waiter = self._waiters.get(decision.request_id)
                    if waiter is not None and not waiter.recalled():
                        begun += (decision.request_id,)
                case MoveWanted():
                    waiter = self._waiters.get(decision.request_id)
                    if waiter is not None and not waiter.move_wanted():
                        begun += (decision.request_id,)
                case ScaleAdvised():
                    self._advised(decision)
                case _:
                    assert_never(decision)
        # Only now: a decision is carried out before the scheduler hears anything else.
        for request_id in begun:
            self.tell(RecallTooLate(request_id))

    def await_decision(self, request_id: str, waiter: Waiter) -> None:
        """From now on `waiter` hears what is decided about `request_id`."""
        assert request_id not in self._waiters, "one waiter a request"
        self._waiters[request_id] = waiter

    def forget(self, request_id: str) -> None:
        """Nobody waits for `request_id` any more."""
        self._waiters.pop(request_id, None)

    def place_of(self, request_id: str) -> tuple[int, float | None]:
        """(position, expected wait in seconds) of a waiting request; (0, None) otherwise."""
        if self.decider is not None:
            return self.decider.place_of(request_id, self.clock()) or (0, None)
        return self.scheduler.place_of(request_id, self.clock()) or (0, None)

    def close(self) -> None:
        """No timer fires after this."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _wake_at(self, instant: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._is_closed:
            return
        delay_s = max(0.0, instant - self.clock())
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._woke)

    def _woke(self) -> None:
        self._timer = None
        self.tell(Woke())
