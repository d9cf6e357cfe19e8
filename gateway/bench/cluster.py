"""Measures several gateways as one: who gets what, then what it costs. It draws no conclusions."""

import asyncio
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from gateway.bench.cluster_cost import CostSite
from gateway.bench.cluster_power import power_load
from gateway.bench.cluster_redis import start_redis
from gateway.bench.cluster_site import Site, leader_of
from gateway.bench.cluster_spec import (
    GATEWAYS,
    REPLICAS,
    SLOTS,
    USERS,
    ClusterPlan,
    ClusterResult,
    PowerRun,
)
from gateway.bench.targets import Entrant

Say = Callable[[str], None]


def measure_cluster(
    gateway: Entrant, plan: ClusterPlan, say: Say, *, log_level: str
) -> ClusterResult:
    """All of it. Blocks for minutes. Raises StartFailed, ValueError or OSError where it failed."""
    power = _power(gateway, plan, say, log_level)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        cost = CostSite(stack, folder, Site(stack, folder, gateway, log_level), plan)
        rounds = cost.rounds(say)
        return ClusterResult(
            power=tuple(power),
            cost=tuple(rounds),
            requests_per_s=cost.requests_per_s,
            redis_version=cost.redis_version,
            unlimited_because=cost.unlimited_because,
        )


def _power(gateway: Entrant, plan: ClusterPlan, say: Say, log_level: str) -> list[PowerRun]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        site = Site(stack, folder, gateway, log_level)
        redis = start_redis(stack, folder)
        engines = site.emulated(REPLICAS, SLOTS)
        site.know(USERS)
        alone = site.gateway("alone", engines)
        several = [
            site.gateway(f"gateway{number}", engines, redis=redis.url) for number in range(GATEWAYS)
        ]
        leader_of(several)
        found: list[PowerRun] = []
        for number in range(plan.power_rounds):
            say(f"power user, round {number + 1} of {plan.power_rounds}")
            ways = (several, [alone]) if number % 2 == 0 else ([alone], several)
            found += [asyncio.run(power_load(nodes, engines, plan)) for nodes in ways]
        return found
