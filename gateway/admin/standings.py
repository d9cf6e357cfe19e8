"""Who runs how much, and how much each would run by the weights, at one instant.

The fair part is what max-min fairness by weight leaves of what runs *now*: in each tier of each
pool, its running requests are dealt out among the tenants that want any, to nobody more than it
wants. What the scheduler does about a difference is not decided here; it shares costs, so requests
that last longer than others of their cost show as a lasting difference of counts.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gateway.core.pool import Pool
from gateway.core.state import State


@dataclass(slots=True)
class Standing:
    """Of one tenant, or of one tier: requests, and how many would run if it had its fair part."""

    waiting: int = 0
    """In the queue; what a cap holds back is not in it."""
    held: int = 0
    running: int = 0
    fair: float = 0.0

    def add(self, other: "Standing") -> None:
        """Count another one too."""
        self.waiting += other.waiting
        self.held += other.held
        self.running += other.running
        self.fair += other.fair

    @property
    def wanted(self) -> int:
        """What would run if there were room for everything."""
        return self.waiting + self.running


@dataclass(slots=True)
class Picture:
    """All standings at one instant."""

    tiers: list[Standing]
    tenants: dict[str, Standing] = field(default_factory=dict)
    places: dict[tuple[str, int], Standing] = field(default_factory=dict)
    """By tenant and tier."""
    running: int = 0
    are_tiers_weighted: bool = False
    """Whether tiers have a fair part at all; by rank they have none."""


def picture_of(state: State) -> Picture:
    """What waits and runs. O(tenants with anything here + requests that run + capped holders)."""
    policy = state.policy
    picture = Picture([Standing() for _ in policy.tiers])
    picture.are_tiers_weighted = policy.order == "weighted"
    running = _running(state)
    for pool in state.pools:
        by_tier = []
        for tier in range(len(policy.tiers)):
            found = _in_tier(pool, tier, running.get((id(pool), tier), {}))
            by_tier.append(_sum(found))
            for tenant, standing in found.items():
                picture.places.setdefault((tenant, tier), Standing()).add(standing)
        _deal(
            {tier.name: each for tier, each in zip(policy.tiers, by_tier, strict=True)},
            {tier.name: tier.weight for tier in policy.tiers},
        )
        for total, part in zip(picture.tiers, by_tier, strict=True):
            total.add(part)
    for tenant, tier, count in _held(state):
        picture.places.setdefault((tenant, tier), Standing()).held += count
        picture.tiers[tier].held += count
    for (tenant, _), standing in picture.places.items():
        picture.tenants.setdefault(tenant, Standing()).add(standing)
    picture.running = sum(each.running for each in picture.tiers)
    return picture


def fair_parts(
    amount: float, wanted: Mapping[str, float], weights: Mapping[str, float]
) -> dict[str, float]:
    """`amount` dealt out by weight, to nobody more than is wanted (weighted max-min)."""
    parts: dict[str, float] = {}
    left, weight_left = amount, sum(weights[name] for name in wanted)
    for name in sorted(wanted, key=lambda each: (wanted[each] / weights[each], each)):
        parts[name] = min(wanted[name], left * weights[name] / weight_left)
        left -= parts[name]
        weight_left -= weights[name]
    return parts


def _running(state: State) -> dict[tuple[int, int], dict[str, int]]:
    """Running requests by pool and tier, then by tenant."""
    counts: dict[tuple[int, int], dict[str, int]] = {}
    for grant, _ in state.granted.values():
        request = grant.waiting.request
        pool = state.pool_by_model.get(request.model)
        by_tenant = counts.setdefault((id(pool), grant.tier), {})
        by_tenant[request.tenant] = by_tenant.get(request.tenant, 0) + 1
    return counts


def _in_tier(pool: Pool, tier: int, running: Mapping[str, int]) -> dict[str, Standing]:
    found = {name: Standing(running=count) for name, count in running.items()}
    for name, flow in pool.queues[tier].tenants.items():
        if flow.count:
            found.setdefault(name, Standing()).waiting = flow.count
    _deal(found, {name: pool.policy.tenant_weight(name) for name in found})
    return found


def _deal(standings: Mapping[str, Standing], weights: Mapping[str, float]) -> None:
    """Note what each would run of all that they run."""
    wanted = {name: float(each.wanted) for name, each in standings.items()}
    amount = float(sum(each.running for each in standings.values()))
    for name, part in fair_parts(amount, wanted, weights).items():
        standings[name].fair = part


def _sum(standings: Mapping[str, Standing]) -> Standing:
    total = Standing()
    for each in standings.values():
        total.add(each)
    return total


def _held(state: State) -> Iterator[tuple[str, int, int]]:
    """(tenant, tier, requests) of what caps hold back: a holder is of one tenant."""
    for holder in state.caps.holders.values() if state.caps.count else ():
        for (tier, _), line in holder.groups.items():
            first = next(iter(line), None)
            if first is not None:
                yield first.request.tenant, tier, line.live
