"""One trial: a system of the paper under one workload, and what its requests got.

Decides which engines and which router make a system, and what of each is corrected in an ablation.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from gateway.sim.paper.engine import Engine, Size
from gateway.sim.paper.infaas import Infaas
from gateway.sim.paper.llumlet import Llumlet
from gateway.sim.paper.llumnix import Llumnix, Route
from gateway.sim.paper.paged import Paged
from gateway.sim.paper.play import Router, Span, play
from gateway.sim.paper.request import Request
from gateway.sim.paper.steps import SEQUENCES_PREDICTED, StepTime
from gateway.sim.paper.tables import Speedups
from gateway.sim.paper.workload import GAP_MAX_MEANS, RATE_PER_S, Mix, draw_requests

REPLICAS = 4
CUT_S = 60.0

System = Literal["baseline", "llumnix"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What arrives."""

    mix: Mix
    tiers: int
    requests: int
    rate_per_s: float = RATE_PER_S
    gap_max_means: float = GAP_MAX_MEANS


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How the systems are modelled; the defaults are the authors'."""

    migrates: bool = True
    route_by: Route = "freeness"
    keeps_kv: bool = False
    """Llumnix's engines account for KV and batch size as the baseline's do."""
    sequences_charged_max: int | None = SEQUENCES_PREDICTED
    """For both systems: see `StepTime`."""
    cut_s: float | None = CUT_S
    """For both systems."""
    size: Size = field(default_factory=Size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What the finished requests of a trial got, in seconds from arrival; NaN where there are none.

    "Prefill" is the time to the first token.
    """

    finished: int
    prefill_p99_s: float
    prefill_mean_s: float
    e2e_p99_s: float
    e2e_mean_s: float

    def speedups_over(self, slower: "Figures") -> Speedups:
        """How many times this is faster than the other."""
        return Speedups(
            prefill_p99=slower.prefill_p99_s / self.prefill_p99_s,
            prefill_mean=slower.prefill_mean_s / self.prefill_mean_s,
            e2e_p99=slower.e2e_p99_s / self.e2e_p99_s,
            e2e_mean=slower.e2e_mean_s / self.e2e_mean_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """All, and each tier by itself, tier 0 first."""

    all: Figures
    tiers: tuple[Figures, ...]


def run_trial(system: System, workload: Workload, seed: int, rules: Rules) -> Trial:
    """Play it; the same arguments give the same figures in any process."""
    requests = draw_requests(
        workload.mix,
        tiers=workload.tiers,
        count=workload.requests,
        seed=seed,
        rate_per_s=workload.rate_per_s,
        gap_max_means=workload.gap_max_means,
    )
    step_time = StepTime(sequences_charged_max=rules.sequences_charged_max)
    router = _router(system, workload.tiers, rules, step_time)
    rebalances = system == "llumnix" and rules.migrates
    play(requests, router, step_time, Span(cut_s=rules.cut_s, rebalances=rebalances))
    return Trial(
        all=figures_of(requests),
        tiers=tuple(
            figures_of([request for request in requests if request.tier == tier])
            for tier in range(workload.tiers)
        ),
    )


def figures_of(requests: Sequence[Request]) -> Figures:
    """Of those that ended."""
    prefills, totals = [], []
    for request in requests:
        if request.ended_at is not None:
            assert request.first_token_at is not None
            prefills.append(request.first_token_at - request.arrived_at)
            totals.append(request.ended_at - request.arrived_at)
    return Figures(
        finished=len(totals),
        prefill_p99_s=quantile(prefills, 0.99),
        prefill_mean_s=_mean(prefills),
        e2e_p99_s=quantile(totals, 0.99),
        e2e_mean_s=_mean(totals),
    )


def quantile(values: Sequence[float], share: float) -> float:
    """Interpolated between the two nearest, as pandas does it; NaN of nothing."""
    if not values:
        return math.nan
    ordered = sorted(values)
    place = (len(ordered) - 1) * share
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def _router(system: System, tiers: int, rules: Rules, step_time: StepTime) -> Router:
    if system == "baseline":
        fifo = [Paged(index, tiers, rules.size, ranks_tiers=False) for index in range(REPLICAS)]
        return Infaas(fifo, tiers, step_time)
    engines: list[Engine] = [
        Paged(index, tiers, rules.size, ranks_tiers=True)
        if rules.keeps_kv
        else Llumlet(index, tiers, rules.size)
        for index in range(REPLICAS)
    ]
    return Llumnix(engines, rules.route_by)
