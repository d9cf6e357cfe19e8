"""Between tiers: strict rank, shares by weight, promotion of single old requests, and isolation."""

from dataclasses import replace
from functools import cache

from gateway.core.policy import Ageing
from tests.simulation import policies, scenarios
from tests.simulation.fleet import figures
from tests.simulation.fleet.fleet import Fleet
from tests.simulation.fleet.scrapes import Wires
from tests.simulation.fleet.workload import Asking, arrive, chat, fixed, keep_asking
from tests.simulation.judge import backlogged, unfair

FROM_S, UNTIL_S = 20, 140
MIX = (0.10, 0.35, 0.35, 0.20)
"""Shares of the requests by tier."""
MIXED_UNTIL_S = 80
WEIGHTS = {"0": 4.0, "1": 2.0, "2": 1.0, "3": 1.0}


def by_weight() -> dict[str, float]:
    """Service by tier under `order: weighted`, all four always wanting more."""
    tiers = tuple(
        replace(tier, weight=WEIGHTS[str(rank)], min_share=0.0, queue_limit=4, tpot_limit_ms=150.0)
        for rank, tier in enumerate(policies.patient())
    )
    policy = policies.gated(tiers=tiers, order="weighted", headroom_max=0.0)
    fleet = Fleet(policy, scenarios.pair(), Wires(late_s=1.0))
    for rank in range(4):
        keep_asking(fleet, Asking(user=f"t{rank}", tier=rank), chat, depth=30, seed=rank)
    return figures.served_between(fleet, figures.tier_of, FROM_S, UNTIL_S)


def test_weighted_order_shares_by_the_weight_of_the_tier() -> None:
    """An operator who sells shares rather than precedence."""
    assert unfair(by_weight(), backlogged(WEIGHTS), WEIGHTS, margin=0.05) == []


def promoted_at(after_s: float, per_s: float) -> list[float]:
    """When requests of the last tier were let go though tier 0 wants everything from second 5."""
    tiers = tuple(replace(tier, min_share=0.0) for tier in policies.patient(tpot_limit_ms=1.0))
    tiers = (policies.patient()[0], *tiers[1:])
    policy = policies.gated(tiers=tiers, ageing=Ageing(after_s=after_s, per_s=per_s))
    fleet = Fleet(policy, scenarios.pair(), Wires(late_s=1.0))
    keep_asking(fleet, Asking(user="first"), chat, depth=64, seed=1)
    keep_asking(fleet, Asking(user="last", tier=3), fixed(100, 50), depth=100, from_s=5.0)
    fleet.run(105.0)
    return sorted(
        job.granted_at
        for job in fleet.jobs.values()
        if job.request.tier == 3 and job.granted_at is not None
    )


def test_ageing_promotes_at_most_so_many_a_second() -> None:
    """Tier 0 must know the price of the promise that was made to the others."""
    after_s, per_s = 5.0, 0.5
    granted = promoted_at(after_s, per_s)
    assert granted[0] >= 5.0 + after_s
    assert len(granted) >= 0.8 * per_s * (105.0 - granted[0])
    for number, instant in enumerate(granted):
        assert number <= per_s * (instant - granted[0]) + 1


@cache
def mixed(policy: str, load: float) -> Fleet:
    """All four tiers at once, as an enterprise asks: a tenth critical, most of it in the middle."""
    fleet = Fleet(policies.named(policy), scenarios.pair(), Wires(late_s=1.0))
    per_s = load * scenarios.capacity_per_s(scenarios.PLAIN)
    for rank, share in enumerate(MIX):
        asking = Asking(user=f"t{rank}", tier=rank)
        arrive(fleet, asking, chat, per_s=share * per_s, seed=rank + 20, until_s=MIXED_UNTIL_S)
    fleet.run(MIXED_UNTIL_S)
    return fleet


def tier_ttft_s(fleet: Fleet, tier: int, share: float) -> float:
    """Percentile of the TTFT of one tier, after the warm-up."""
    found = figures.ttfts_s(fleet, lambda job: job.request.tier == tier, FROM_S, MIXED_UNTIL_S - 10)
    return figures.percentile(found, share)


def test_the_first_tier_hardly_notices_the_others() -> None:
    """Isolation is what tiers are bought for."""
    assert tier_ttft_s(mixed("gate", 1.5), 0, 0.99) <= 0.5
    assert tier_ttft_s(mixed("none", 1.5), 0, 0.99) > 5.0
