"""How many replicas: the advice on scaling followed, and a search for targets.

`autoscale` plays a load that rises and falls; `capacity` looks for the smallest fleet with which
each tier meets its TTFT target at the 99th percentile.
"""

from dataclasses import replace

import msgspec

from gateway.core.policy import Scaling
from gateway.sim.experiments.elastic import Elastic
from gateway.sim.experiments.measures import by_tier
from gateway.sim.experiments.report import Measured, Row
from gateway.sim.experiments.setting import (
    FAIRGATE,
    dispatcher,
    fleet,
    policy_of,
    profile_of,
    served_by,
)
from gateway.sim.experiments.tiered import FCFS
from gateway.sim.workload.catalogue import workload_named
from gateway.sim.workload.mixes import tier_shares
from gateway.sim.world.fairgate import Fairgate
from gateway.sim.world.play import play


class ScaleKnobs(msgspec.Struct, frozen=True, kw_only=True):
    """See `autoscale`."""

    profile: str = "a100-llama3-8b"
    max_num_seqs: int = 64
    rate_per_s: float = 4.0
    """Of light users, always."""
    power_rate_per_s: float = 60.0
    """Beside them, while it is on."""
    on_s: float = 240.0
    off_s: float = 240.0
    lengths: str = "lognormal"
    until_s: float = 960.0
    begin_with: int = 1
    replicas_max: int = 8
    starts_s: tuple[float, ...] = (0.0, 30.0, 120.0)
    """From the advice until a replica serves."""
    cooldown_s: float = 30.0


def scale_points(knobs: ScaleKnobs) -> list[Row]:
    """Each start-up time, and fleets that stay as they are."""
    following: list[Row] = [{"fleet": "follows", "start s": start_s} for start_s in knobs.starts_s]
    return [*following, {"fleet": "smallest", "start s": 0.0}, {"fleet": "largest", "start s": 0.0}]


def autoscale(knobs: ScaleKnobs, point: Row, seed: int) -> Measured:
    """One run."""
    profile = replace(profile_of(knobs.profile), max_num_seqs=knobs.max_num_seqs)
    source = workload_named("power-user").source(
        {
            "seed": seed,
            "until_s": knobs.until_s,
            "rate_per_s": knobs.rate_per_s,
            "power_rate_per_s": knobs.power_rate_per_s,
            "on_s": knobs.on_s,
            "off_s": knobs.off_s,
            "regular": True,
            "lengths": knobs.lengths,
        }
    )
    scaling = Scaling(min=1, max=knobs.replicas_max, cooldown_s=knobs.cooldown_s)
    gateway = Fairgate(replace(policy_of(1), allowance="bridge", scaling=scaling))
    if point["fleet"] == "follows":
        plan = fleet(profile, knobs.replicas_max)
        dispatch = Elastic(gateway, begin_with=knobs.begin_with, start_s=float(point["start s"]))
        outcome = play(plan, source, dispatch)
        dispatch.close(outcome.lasted_s)
        replica_s, most = dispatch.replica_s, dispatch.most
    else:
        most = knobs.begin_with if point["fleet"] == "smallest" else knobs.replicas_max
        outcome = play(fleet(profile, most), source, gateway)
        replica_s = most * outcome.lasted_s
    figures: Row = {
        "replica hours": replica_s / 3600,
        "most": most,
        "advice": len(gateway.advice),
        **by_tier(outcome, 1),
    }
    return Measured(figures=figures)


class CapacityKnobs(msgspec.Struct, frozen=True, kw_only=True):
    """See `capacity`."""

    workload: str = "azure-conv"
    load: float = 4.0
    limit: int = 4_000
    mix: str = "enterprise-4"
    profile: str = "a100-llama3-8b"
    ttft_targets_s: tuple[float, ...] = (0.5, 1.0, 5.0, 60.0)
    """By tier; further tiers have the last one."""
    replicas_max: int = 32
    dispatchers: tuple[str, ...] = (FAIRGATE, FCFS, "fifo", "engine-priority")


def capacity_points(knobs: CapacityKnobs) -> list[Row]:
    """One for each dispatcher."""
    return [{"dispatcher": name} for name in knobs.dispatchers]


def capacity(knobs: CapacityKnobs, point: Row, seed: int) -> Measured:
    """A search by halves: more replicas are taken to be no worse."""
    low, high = 0, knobs.replicas_max
    figures, best = _tried(knobs, str(point["dispatcher"]), seed, high)
    if not best:
        return Measured(figures={"replicas": float("inf"), **figures})
    while high - low > 1:
        middle = (low + high) // 2
        found, is_enough = _tried(knobs, str(point["dispatcher"]), seed, middle)
        if is_enough:
            high, figures = middle, found
        else:
            low = middle
    return Measured(figures={"replicas": high, **figures})


def _tried(knobs: CapacityKnobs, name: str, seed: int, replicas: int) -> tuple[Row, bool]:
    """The figures of a fleet of that size, and whether all targets are met."""
    plan = fleet(profile_of(knobs.profile), replicas)
    config = plan.engines[0].config
    workload = workload_named(knobs.workload)
    wanted: dict[str, object] = {
        "seed": seed,
        "load": knobs.load,
        "limit": knobs.limit,
        "tiers": knobs.mix,
        "tokens_max": config.kv_blocks * config.block_tokens,
    }
    source = workload.source({key: wanted[key] for key in wanted if key in workload.knobs})
    tiers = len(tier_shares(knobs.mix))
    policy = replace(policy_of(tiers), allowance="bridge")
    outcome = play(served_by(name, plan), source, dispatcher(name, tiers, policy))
    figures = by_tier(outcome, tiers)
    targets = [
        knobs.ttft_targets_s[min(tier, len(knobs.ttft_targets_s) - 1)] for tier in range(tiers)
    ]
    is_enough = all(
        float(figures[f"p99 ttft {tier} s"]) <= target for tier, target in enumerate(targets)
    )
    return figures, is_enough
