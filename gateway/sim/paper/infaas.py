"""The baseline's router: the replica of least cost by queue length, service time and health.

Knows of a replica only how much it has and how long its last requests took. As in the authors'
code a replica's state is looked at when a request arrives, not when one ends. Nothing is moved.
"""

from collections.abc import Sequence
from enum import Enum

from gateway.sim.paper.engine import Engine
from gateway.sim.paper.request import Request
from gateway.sim.paper.steps import StepTime

LATENCY_TARGET_MS = 1000.0
LATENCY_WEIGHT = 0.6
"""Of the newest completion in the moving average."""
OVERLOADED_ABOVE_MS = 1.3 * LATENCY_TARGET_MS
OVERLOADED_DEPTH = 2
OVERLOADED_TICKS = 3
INTERFERED_ABOVE_MS = 1.15 * LATENCY_TARGET_MS
INTERFERED_DEPTH = 1
INTERFERED_TICKS = 2


class State(Enum):
    """How a replica fares. INACTIVE is in the cost, but nothing ever enters it."""

    ACTIVE = "active"
    INTERFERED = "interfered"
    OVERLOADED = "overloaded"
    INACTIVE = "inactive"


PENALTIES = {
    State.ACTIVE: 0.0,
    State.INTERFERED: 0.5,
    State.OVERLOADED: 1.0,
    State.INACTIVE: 2.0,
}


def tier_scale(tier: int, tiers: int) -> float:
    """What queue and service count for a request of that tier: less, the higher it is."""
    return max(0.5, 1.0 - 0.1 * (tiers - 1 - tier))


class Health:
    """What is remembered of one replica."""

    __slots__ = ("state", "latency_ms", "ticks_left")

    def __init__(self) -> None:
        self.state = State.ACTIVE
        self.latency_ms: float | None = None
        """Moving average over completions, from the first step to the last token."""
        self.ticks_left = 0
        """Arrivals before it may recover."""

    def tick(self, outstanding: int) -> None:
        """A request has arrived somewhere: what is ill may recover."""
        if self.ticks_left:
            self.ticks_left -= 1
        if self.ticks_left or self.state in (State.ACTIVE, State.INACTIVE):
            return
        is_overloaded = self.state is State.OVERLOADED
        limit_ms = OVERLOADED_ABOVE_MS if is_overloaded else INTERFERED_ABOVE_MS
        depth = OVERLOADED_DEPTH if is_overloaded else INTERFERED_DEPTH
        if self.latency_ms is None or self.latency_ms <= limit_ms or outstanding <= depth:
            self.state = State.ACTIVE

    def ended(self, latency_ms: float, outstanding: int) -> None:
        """A request has ended there."""
        if self.latency_ms is None:
            self.latency_ms = latency_ms
        else:
            self.latency_ms += LATENCY_WEIGHT * (latency_ms - self.latency_ms)
        if self.latency_ms > OVERLOADED_ABOVE_MS and outstanding > OVERLOADED_DEPTH:
            self.state, self.ticks_left = State.OVERLOADED, OVERLOADED_TICKS
        elif self.latency_ms > INTERFERED_ABOVE_MS and outstanding <= INTERFERED_DEPTH:
            self.state, self.ticks_left = State.INTERFERED, INTERFERED_TICKS
        else:
            self.state = State.ACTIVE


class Infaas:
    """Chooses among active replicas, if there are any; ties go to the first."""

    def __init__(self, engines: Sequence[Engine], tiers: int, step_time: StepTime) -> None:
        self.engines = engines
        self.health = [Health() for _ in engines]
        self._tiers = tiers
        self._step_time = step_time
        self._ended: list[tuple[int, int, float]] = []
        """(request number, engine, latency in ms) since the last arrival."""

    def route(self, request: Request) -> Engine:
        """The replica with the least cost for it."""
        self._look()
        states = [health.state for health in self.health]
        allowed = [state is State.ACTIVE for state in states]
        if not any(allowed):
            allowed = [state is not State.INACTIVE for state in states]
        scale = tier_scale(request.tier, self._tiers)
        service_ms = self._step_time.step_s([request]) * 1000
        costs = [
            (engine.outstanding * scale + service_ms * scale + PENALTIES[state], engine.index)
            for engine, state, is_allowed in zip(self.engines, states, allowed, strict=True)
            if is_allowed
        ]
        return self.engines[min(costs)[1]]

    def ended(self, request: Request, engine: Engine) -> None:
        """Seen with the next arrival."""
        assert request.ended_at is not None
        assert request.started_at is not None
        latency_ms = (request.ended_at - request.started_at) * 1000
        self._ended.append((request.number, engine.index, latency_ms))

    def rebalance(self) -> list[Engine]:
        """Moves nothing."""
        return []

    def _look(self) -> None:
        for engine, health in zip(self.engines, self.health, strict=True):
            health.tick(engine.outstanding)
        for _, index, latency_ms in sorted(self._ended):
            self.health[index].ended(latency_ms, self.engines[index].outstanding)
        self._ended.clear()
