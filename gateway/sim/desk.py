"""The owner of the scheduler in a simulated gateway: events in, decisions carried to who waits.

The rules of `runtime/dispatcher.py` under the virtual clock, and the engines that a grant leads to.
"""

from functools import partial
from itertools import count
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
from gateway.core.policy import Policy
from gateway.core.scheduler import Scheduler
from gateway.sim.clock import Clock
from gateway.sim.link import Said, Word
from gateway.sim.prober import Prober, Wires
from gateway.sim.server import Server


class Waiter(Protocol):
    """Whoever asked for a grant."""

    def decided(self, decision: Granted | Refused) -> None:
        """The scheduler decided."""

    def recalled(self) -> bool:
        """The scheduler wants it back; False: too late. See `runtime.dispatcher.Waiter`."""

    def move_wanted(self) -> bool:
        """The scheduler wants the rest elsewhere; False: it stays."""


class Witness(Protocol):
    """Watches; it must change nothing."""

    def tells(self, event: Event) -> None:
        """The scheduler is about to hear this."""

    def told(self, event: Event, decisions: list[Decision]) -> None:
        """The scheduler heard it and decided so; nothing of that was carried out yet."""


class Desk:
    """Feeds the scheduler, delivers its decisions, and knows the configured replicas."""

    def __init__(
        self, scheduler: Scheduler, clock: Clock, wires: Wires, *, witness: Witness | None = None
    ) -> None:
        self.scheduler = scheduler
        self.clock = clock
        self.wires = wires
        self.witness = witness
        self.waiters: dict[str, Waiter] = {}
        """By the id of the attempt; from its arrival to its end."""
        self.servers: dict[str, Server] = {}
        """Those that are configured."""
        self.probers: dict[str, Prober] = {}
        self.events = 0
        self._numbers = count()
        self._wake = 0

    @property
    def policy(self) -> Policy:
        """The one in force."""
        return self.scheduler.policy

    def number(self) -> int:
        """A number that nothing else has."""
        return next(self._numbers)

    def tell(self, event: Event) -> None:
        """Hand one event to the scheduler and carry out what it decides."""
        self.events += 1
        if self.witness is not None:
            self.witness.tells(event)
        decisions = self.scheduler.handle(event, self.clock.now)
        if self.witness is not None:
            self.witness.told(event, decisions)
        begun: list[str] = []
        for decision in decisions:
            match decision:
                case Granted() | Refused():
                    waiter = self.waiters.get(decision.request_id)
                    if waiter is not None:
                        waiter.decided(decision)
                case Recalled():
                    waiter = self.waiters.get(decision.request_id)
                    if waiter is not None and not waiter.recalled():
                        begun.append(decision.request_id)
                case MoveWanted():
                    waiter = self.waiters.get(decision.request_id)
                    if waiter is not None and not waiter.move_wanted():
                        begun.append(decision.request_id)
                case WakeWanted():
                    self._wake += 1
                    at = max(self.clock.now, decision.at)
                    self.clock.at(at, partial(self._woke, self._wake))
                case ScaleAdvised():
                    pass
                case _:
                    assert_never(decision)
        # Only now: a decision is carried out before the scheduler hears anything else.
        for request_id in begun:
            self.tell(RecallTooLate(request_id))

    def configure(self, server: Server) -> None:
        """A replica is in the configuration from now on."""
        name = server.spec.name
        self.servers[name] = server
        self.probers[name] = Prober(server, self.wires, self.clock, self.tell)

    def forget(self, name: str) -> None:
        """It is not any more; its connections live on."""
        del self.servers[name]
        self.probers.pop(name).stop()

    def heard(self, replica: str, said: Said) -> None:
        """Something of an answer came from there, which is a sign of life."""
        prober = self.probers.get(replica)
        if prober is not None and said.word not in (Word.REFUSED, Word.RESET):
            prober.heard_at = self.clock.now

    def has_answered_since(self, replica: str, instant: float) -> bool:
        """Whether a probe of it had an answer after that."""
        prober = self.probers.get(replica)
        return prober is not None and prober.answered_at > instant

    def has_returned_since(self, replica: str, instant: float) -> bool | None:
        """Whether it was away after that and answers again; None: to be seen. As `Fleet` has it."""
        prober = self.probers.get(replica)
        if prober is None:
            return False
        was_away = prober.away_at > instant
        if prober.answered_at <= max(instant, prober.away_at if was_away else instant):
            return None
        return was_away

    def _woke(self, number: int) -> None:
        if number == self._wake:
            self.tell(Woke())
