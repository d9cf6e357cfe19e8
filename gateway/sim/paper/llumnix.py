"""K-tier Llumnix's router: to the freest replica, and from the least free to the freest.

Knows of a replica only its freeness and whom it would give up. For the ablation requests can go to
the replicas in turn instead, or to the one that has the fewest.
"""

from collections.abc import Sequence
from typing import Literal, assert_never

from gateway.sim.paper.engine import Departure, Engine
from gateway.sim.paper.request import Request

Route = Literal["freeness", "turn", "outstanding"]

REBALANCE_INTERVAL_S = 0.05
FREENESS_GAP_MIN = 0.3
"""Between the freest and the least free: nothing moves below it."""
FREENESS_BAND = 0.1
"""Who is so near to the least free gives, who is so near to the freest takes."""


class Llumnix:
    """Places and moves; at most one request for each pair of replicas and look."""

    def __init__(self, engines: Sequence[Engine], route_by: Route = "freeness") -> None:
        self.engines = engines
        self.moved = 0
        """Migrations begun."""
        self._route_by = route_by

    def route(self, request: Request) -> Engine:
        """The freest; of equally free ones the first."""
        match self._route_by:
            case "freeness":
                return max(self.engines, key=lambda engine: engine.freeness())
            case "outstanding":
                return min(self.engines, key=lambda engine: engine.outstanding)
            case "turn":
                return self.engines[request.number % len(self.engines)]
        assert_never(self._route_by)

    def ended(self, request: Request, engine: Engine) -> None:
        """Of no interest."""

    def rebalance(self) -> list[Engine]:
        """Start migrations; returns the engines that have a new request now."""
        ranked = sorted((engine.freeness(), engine.index) for engine in self.engines)
        least, most = ranked[0][0], ranked[-1][0]
        if most - least < FREENESS_GAP_MIN:
            return []
        sources = [index for freeness, index in ranked if freeness <= least + FREENESS_BAND]
        # sorted() keeps equal ones in the order of engines, reversed() turns that round as well.
        takers = [index for freeness, index in reversed(ranked) if freeness >= most - FREENESS_BAND]
        return [
            self.engines[taker]
            for source, taker in zip(sources, takers, strict=False)
            if self._migrate(self.engines[source], self.engines[taker])
        ]

    def _migrate(self, source: Engine, taker: Engine) -> bool:
        room = taker.size.blocks - taker.blocks_used - sum(taker.promised.values())
        candidate = source.candidate(room) if room > 0 else None
        if candidate is None or candidate.request.number in source.leaving:
            return False
        request = candidate.request
        if candidate.runs:
            taker.promised[request.number] = candidate.blocks
            source.leaving[request.number] = Departure(taker, candidate.blocks)
        else:
            source.withdraw(request)
            taker.add(request)
        self.moved += 1
        return not candidate.runs
