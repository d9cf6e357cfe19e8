"""The watch over one replica: the rules of the gateway's probe, in virtual time.

A round asks for the metrics. Three rounds in a row without an answer lose the replica, or two
whose connection was refused; one whose answers to clients arrive misses none of the former.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import inf

from gateway.core.messages import Event, ReplicaFound, ReplicaLost, ReplicaRefused, ReplicaReported
from gateway.core.report import ReplicaReport
from gateway.sim.clock import Clock
from gateway.sim.faults import FaultKind
from gateway.sim.server import Server

MISSES_TO_LOSE = 3
REFUSALS_TO_LOSE = 2
HEARD_INTERVALS = 3
"""Bytes of an answer within so many intervals are a sign of life."""
FAST_FACTOR = 4
"""After a refusal the next round comes so many times sooner."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wires:
    """What lies between gateway and engines, in seconds."""

    hop_s: float = 0.002
    """One way."""
    interval_s: float = 1.0
    """Between two scrapes."""
    late_s: float = 0.05
    """From sending a scrape to its answer."""
    timeout_s: float = 2.0
    """What a probe waits at most."""


class Prober:
    """Asks one replica again and again, until it is stopped."""

    def __init__(
        self, server: Server, wires: Wires, clock: Clock, tell: Callable[[Event], object]
    ) -> None:
        self._server = server
        self._wires = wires
        self._clock = clock
        self._tell = tell
        self._misses = 0
        self._refusals = 0
        self._is_stopped = False
        self.is_up = False
        self.answered_at = -inf
        """When a probe last had an answer."""
        self.away_at = -inf
        """When nobody listened, or it was lost."""
        self.heard_at: float | None = None
        """When anything of an answer to a client last came from there."""
        clock.after(0.0, self._ask)

    def stop(self) -> None:
        """Nothing that is on the way is told any more."""
        self._is_stopped = True

    def _ask(self) -> None:
        if not self._is_stopped:
            self._clock.after(self._wires.hop_s, partial(self._arrive, self._clock.now))

    def _arrive(self, sent_at: float) -> None:
        server, wires = self._server, self._wires
        if not server.listens:
            self._clock.after(wires.hop_s, partial(self._missed, sent_at, is_refused=True))
        elif server.active[FaultKind.UNANSWERED] or server.active[FaultKind.STOPPED]:
            left_s = wires.timeout_s - wires.hop_s
            self._clock.after(left_s, partial(self._missed, sent_at, is_refused=False))
        else:
            answered = partial(self._answered, sent_at, server.report())
            self._clock.after(max(0.0, wires.late_s - wires.hop_s), answered)

    def _answered(self, sent_at: float, report: ReplicaReport | None) -> None:
        """It lists its models, and may have no metrics."""
        if self._is_stopped:
            return
        self._misses = self._refusals = 0
        spec, now = self._server.spec, self._clock.now
        self.answered_at = now
        if not self.is_up:
            self.is_up = True
            slots = spec.slots if spec.tells_slots else None
            self._tell(
                ReplicaFound(
                    replica=spec.name,
                    models=spec.models,
                    slots=slots,
                    orders_by_tier=spec.orders_by_tier,
                )
            )
        if report is not None:
            self._tell(
                ReplicaReported(
                    replica=spec.name, sent_at=sent_at, report=report, round_trip_s=now - sent_at
                )
            )
        self._again(sent_at)

    def _missed(self, sent_at: float, *, is_refused: bool) -> None:
        if self._is_stopped:
            return
        if not (self.is_up and not is_refused and self._is_heard()):
            self._refusals = self._refusals + 1 if is_refused else 0
            self._misses += 1
            is_lost = self._misses >= MISSES_TO_LOSE or self._refusals >= REFUSALS_TO_LOSE
            if is_refused or is_lost:
                self.away_at = self._clock.now
            if self.is_up and is_refused:
                self._tell(ReplicaRefused(self._server.spec.name))
            if self.is_up and is_lost:
                self.is_up = False
                self._tell(ReplicaLost(self._server.spec.name))
        self._again(sent_at)

    def _is_heard(self) -> bool:
        horizon = self._clock.now - HEARD_INTERVALS * self._wires.interval_s
        return self.heard_at is not None and self.heard_at >= horizon

    def _again(self, sent_at: float) -> None:
        interval_s = self._wires.interval_s
        shortest_s = interval_s / FAST_FACTOR
        wanted_s = shortest_s if self.is_up and self._refusals else interval_s
        took_s = self._clock.now - sent_at
        self._clock.after(max(wanted_s - took_s, min(wanted_s, shortest_s)), self._ask)
