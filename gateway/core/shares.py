"""Shares between tiers by weight, for `order: weighted`: start-time fair queueing once more.

Strict order serves a lower tier only what the higher ones leave (and its floor); shares give each
tier that waits its weight's part of what is released, whatever its rank. Rank still decides the
headroom and how deep a tier may queue inside an engine.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from gateway.core.policy import Policy


class TierShares:
    """One start tag for each tier, in the policy's cost unit over weight."""

    __slots__ = ("_entered", "_weights", "starts", "virtual")

    def __init__(self, policy: Policy) -> None:
        self._weights = [tier.weight for tier in policy.tiers]
        self.starts = [0.0] * len(policy.tiers)
        self._entered = [0.0] * len(policy.tiers)
        self.virtual = 0.0

    def in_order(self, tiers: Iterable[int]) -> list[int]:
        """`tiers` by start tag, ties by rank."""
        return sorted(tiers, key=lambda tier: (self.starts[tier], tier))

    def wake(self, tier: int) -> None:
        """Something of `tier` begins to wait: idle time earned it nothing."""
        self._entered[tier] = self.virtual
        self.starts[tier] = max(self.starts[tier], self.virtual)

    def released(self, tier: int, cost: float) -> None:
        """`tier` released a request of this estimated cost."""
        self.virtual = max(self.virtual, self.starts[tier])
        self.charge(tier, cost)

    def charge(self, tier: int, cost: float) -> None:
        """Move the tag of `tier` on by `cost`, negative for a refund."""
        start = self.starts[tier] + cost / self._weights[tier]
        self.starts[tier] = max(self._entered[tier], start)

    def snapshot(self) -> dict[str, Any]:
        """All tags, by rank."""
        return {
            "starts": list(self.starts), "entered": list(self._entered), "virtual": self.virtual
        }  # fmt: skip

    def restore(self, data: Mapping[str, Any], rank_of: Mapping[int, int]) -> None:
        """Take over what `snapshot` gave of the tiers in `rank_of`, old ranks to new ones."""
        self.virtual = float(data["virtual"])
        for old, new in rank_of.items():
            self.starts[new] = float(data["starts"][old])
            self._entered[new] = float(data["entered"][old])

    def adopt(self, other: "TierShares") -> None:
        """Keep the leads that the tiers had in a pool that this one replaces."""
        for tier, start in enumerate(other.starts):
            lead = self.virtual + start - other.virtual
            self.starts[tier] = max(self.starts[tier], lead)
