"""How a gateway comes to know what an engine's metrics say: late, old, not at all, or wrongly."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random

from gateway.core.report import ReplicaReport
from gateway.sim.clock import Clock
from gateway.sim.world.dispatch import Report
from gateway.sim.world.plan import Lie, Plan
from gateway.sim.world.station import Station


class Scraper:
    """Asks one replica again and again; those of a fleet are spread over the interval."""

    def __init__(
        self, station: Station, plan: Plan, clock: Clock, tell: Callable[[int, Report], object]
    ) -> None:
        self._station = station
        self._wires = plan.reports
        self._clock = clock
        self._tell = tell
        self._dice = Random(f"{plan.seed}/reports/{station.index}")
        self._lies = [
            event
            for event in plan.events
            if isinstance(event, Lie) and event.replica == station.index
        ]
        self._frozen: dict[Lie, ReplicaReport] = {}
        for lie in self._lies:
            clock.at(lie.at, partial(self._freeze, lie))
        clock.at(self._wires.interval_s * station.index / plan.machines, self._look)

    def _freeze(self, lie: Lie) -> None:
        report = self._station.report()
        zero = replace(report, running=0, waiting=0, kv_use=0.0)
        self._frozen[lie] = zero if lie.is_zero else report

    def _look(self) -> None:
        """The gauges are what they are now; who asks in `age_s` seconds will see this."""
        wires, clock = self._wires, self._clock
        clock.after(wires.interval_s, self._look)
        if self._station.is_down or (wires.loss and self._dice.random() < wires.loss):
            return
        report = Report(clock.now + wires.age_s, wires.delay_s, self._said())
        clock.after(wires.age_s + wires.delay_s, partial(self._tell, self._station.index, report))

    def _said(self) -> ReplicaReport:
        for lie in self._lies:
            if lie.at <= self._clock.now < lie.until:
                return self._frozen[lie]
        return self._station.report()
