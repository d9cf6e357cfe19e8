"""The policies that are compared: the gate as it is, a constant threshold, and none at all."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gateway.core.policy import DEFAULT_TIERS, Bounds, Policy, Tenant, Tier

ROOMY = Bounds(waiting_per_user=100_000, waiting=100_000, users_per_tenant=100_000)
"""For runs that are about order and pace, not about refusals."""
THRESHOLD = 3
"""The constant of "Efficient Request Queueing" (2025)."""
STANDARD = 2
"""The tier of most runs, so that the two above are there and idle."""


def patient(**changes: Any) -> tuple[Tier, ...]:
    """The four default tiers, with everybody waiting as long as it takes."""
    return tuple(replace(tier, patience_s=1e6, **changes) for tier in DEFAULT_TIERS)


def one_tier(**changes: Any) -> tuple[Tier, ...]:
    """A single tier, so that nothing is reserved for anybody."""
    return (replace(Tier(name="all", queue_limit=4, patience_s=1e6), **changes),)


def gated(**changes: Any) -> Policy:
    """The product's own defaults."""
    return replace(Policy(tiers=patient(), bounds=ROOMY), **changes)


def constant() -> Policy:
    """Every tier may leave three waiting in each engine, whatever the engine does."""
    return gated(tiers=patient(queue_limit=THRESHOLD), allowance="constant")


def none() -> Policy:
    """Everything is sent on at once, to the replica with the least outstanding."""
    return gated(release_at_once=True, recall=False)


def named(name: str) -> Policy:
    """`gate`, `constant 3`, `none`."""
    return {"gate": gated, f"constant {THRESHOLD}": constant, "none": none}[name]()


def weighted_users(weights: Mapping[str, float]) -> dict[str, Tenant]:
    """The one tenant of most runs, with users of other weights than 1."""
    return {"t": Tenant(users=weights)}
