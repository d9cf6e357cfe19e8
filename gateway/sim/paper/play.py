"""One run: requests arrive, engines step, routers place and move, until all is done or time is up.

The event loop of parity mode. It owns the clock and the order of events, and decides nothing else;
what happened is written on the requests.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Protocol

from gateway.sim.paper.engine import Engine
from gateway.sim.paper.llumnix import REBALANCE_INTERVAL_S
from gateway.sim.paper.request import Request
from gateway.sim.paper.steps import StepTime


class Router(Protocol):
    """Who decides where a request goes."""

    engines: Sequence[Engine]

    def route(self, request: Request) -> Engine:
        """Where a request goes that has just arrived."""

    def ended(self, request: Request, engine: Engine) -> None:
        """A request has all its tokens."""

    def rebalance(self) -> list[Engine]:
        """Move what should be moved; returns the engines that have something new."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """When a run ends, and how often the router may move requests."""

    cut_s: float | None = 60.0
    """What has not ended by then never does; None: everything ends."""
    rebalances: bool = False


def play(
    requests: Sequence[Request], router: Router, step_time: StepTime, span: Span
) -> Sequence[Request]:
    """Let all of them arrive at their instants; returns them as the end finds them."""
    _Run(requests, router, step_time).until(span)
    return requests


class _Run:
    def __init__(self, requests: Sequence[Request], router: Router, step_time: StepTime) -> None:
        self._requests = requests
        self._router = router
        self._step_time = step_time
        self._steps: list[tuple[float, int, Engine]] = []
        """(end of the step, number of the step, engine): a heap, in which ties keep their order."""
        self._begun = 0
        self._unfinished = len(requests)
        self._now = 0.0

    def until(self, span: Span) -> None:
        """The loop: arrivals before steps before moves, where they fall together."""
        cut_s = math.inf if span.cut_s is None else span.cut_s
        next_move = REBALANCE_INTERVAL_S if span.rebalances else math.inf
        arrived = 0
        while self._unfinished:
            arrival = math.inf
            if arrived < len(self._requests):
                arrival = self._requests[arrived].arrived_at
            step_end = self._steps[0][0] if self._steps else math.inf
            if arrival == step_end == math.inf:
                break
            self._now = min(arrival, step_end, next_move)
            if self._now > cut_s:
                break
            if self._now == arrival:
                self._arrive(self._requests[arrived])
                arrived += 1
            elif self._now == step_end:
                self._end_step(heappop(self._steps)[2])
            else:
                next_move += REBALANCE_INTERVAL_S
                for engine in self._router.rebalance():
                    self._begin_step(engine)

    def _arrive(self, request: Request) -> None:
        engine = self._router.route(request)
        engine.add(request)
        self._begin_step(engine)

    def _begin_step(self, engine: Engine) -> None:
        if engine.batch:
            return
        engine.batch = engine.next_batch()
        if not engine.batch:
            return
        for request in engine.batch:
            if request.started_at is None:
                request.started_at = self._now
        self._begun += 1
        ends_at = self._now + self._step_time.step_s(engine.batch)
        heappush(self._steps, (ends_at, self._begun, engine))

    def _end_step(self, engine: Engine) -> None:
        batch, engine.batch = engine.batch, []
        woken = {engine.index: engine}
        for departure in engine.leaving.values():
            woken[departure.destination.index] = departure.destination
        for request in batch:
            if request.advance(self._now):
                engine.finish(request)
                self._unfinished -= 1
                self._router.ended(request, engine)
            else:
                engine.keep(request)
        for each in woken.values():
            self._begin_step(each)
