"""What the experiments share: fleets, policies, and dispatchers by name.

Policies here refuse nobody and expire nobody, for they are compared with dispatchers that cannot.
"""

from collections.abc import Sequence
from dataclasses import replace

from gateway.core.policy import DEFAULT_TIERS, Bounds, Policy, Tier
from gateway.sim.baselines.catalogue import BASELINES, baseline_named
from gateway.sim.engine_config import EngineConfig
from gateway.sim.profiles import Profile, profile_named
from gateway.sim.world.dispatch import Dispatch
from gateway.sim.world.fairgate import Fairgate
from gateway.sim.world.plan import Engines, Plan

FAIRGATE = "fairgate"
DISPATCHERS = (FAIRGATE, *(baseline.name for baseline in BASELINES))

NO_BOUNDS = Bounds(waiting=10**7, waiting_per_user=10**7, waiting_bytes=1 << 50)
"""Whoever is refused drops out of every percentile: nobody is, here as in the baselines."""
NO_PATIENCE_S = 1e6
QUEUE_LIMITS = (10, 9, 8, 7)
"""What each tier may leave waiting inside an engine whose steps admit dozens: a step takes tens of
milliseconds, and what waits at its beginning is what it admits."""
WATERMARK = 0.01
"""Share of the KV blocks that an admission leaves free, as in vLLM."""


def tiers_of(
    count: int, *, floor: float = 0.0, queue_limits: Sequence[int] = QUEUE_LIMITS
) -> tuple[Tier, ...]:
    """`count` tiers (>= 1) with the targets of the default ones, spread over them."""
    tiers = []
    for rank in range(count):
        like = min(3, rank * 4 // count) if count > 1 else 0
        tiers.append(
            replace(
                DEFAULT_TIERS[like],
                name=f"tier-{rank}",
                queue_limit=queue_limits[min(like, len(queue_limits) - 1)],
                patience_s=NO_PATIENCE_S,
                min_share=floor if rank else 0.0,
            )
        )
    return tuple(tiers)


def policy_of(count: int, *, headroom_max: float = 0.0, floor: float = 0.0) -> Policy:
    """Strict tiers before engines that hold a short queue; the same that the experiments vary."""
    return Policy(
        tiers=tiers_of(count, floor=floor),
        allowance="constant",
        limiter="static",
        headroom_max=headroom_max,
        bounds=NO_BOUNDS,
    )


def fleet(
    profile: Profile, replicas: int, *, kv_blocks: int | None = None, by_priority: bool = False
) -> Plan:
    """So many engines of a profile, vLLM as it is configured by default."""
    blocks = profile.kv_blocks if kv_blocks is None else kv_blocks
    config = EngineConfig(
        max_num_seqs=profile.max_num_seqs,
        kv_blocks=blocks,
        block_tokens=profile.block_tokens,
        watermark_blocks=int(WATERMARK * blocks),
        policy="priority" if by_priority else "fcfs",
    )
    return Plan(engines=(Engines(n=replicas, profile=profile, config=config),))


def dispatcher(name: str, tiers: int, policy: Policy | None = None) -> Dispatch:
    """A fresh one of that name; `policy` is fairgate's, by default `policy_of(tiers)`.

    Raises:
        ValueError: nobody is called that.
    """
    if name == FAIRGATE:
        return Fairgate(policy or policy_of(tiers))
    try:
        return baseline_named(name).make(tiers)
    except ValueError:
        raise ValueError(f"unknown dispatcher {name!r}; known: {', '.join(DISPATCHERS)}") from None


def served_by(name: str, plan: Plan) -> Plan:
    """The plan with engines that serve by priority where the dispatcher needs them to."""
    if name == FAIRGATE or not baseline_named(name).needs_priority:
        return plan
    engines = tuple(
        replace(each, config=replace(each.config, policy="priority")) for each in plan.engines
    )
    return replace(plan, engines=engines)


def profile_of(name: str) -> Profile:
    """See `profile_named`."""
    return profile_named(name)
