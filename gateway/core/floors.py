"""The floor of the lower tiers: a share of what is released, whatever the tiers above want.

A deficit counter per tier grows by `min_share x released cost` while the tier waits and is spent
by the cost of what it releases. A tier whose deficit covers its head is *owed*: it goes first and
is judged by tier 0's gates, since a saturating tier 0 would keep the lower gates shut and the
floor would only order what never runs.
"""

from collections.abc import Sequence

from gateway.core.policy import Policy


class Floors:
    """One deficit per tier, in the policy's cost unit, never negative."""

    __slots__ = ("_policy", "deficits")

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.deficits = [0.0] * len(policy.tiers)

    def released(self, tier: int, cost: float, backlog: Sequence[int]) -> None:
        """`tier` released `cost`; `backlog[q]` requests wait in tier q after that."""
        for rank, count in enumerate(backlog):
            if not count:
                self.deficits[rank] = 0.0
            elif rank != tier:
                self.deficits[rank] += self._policy.tiers[rank].min_share * cost
        self.deficits[tier] = max(0.0, self.deficits[tier] - cost)

    def is_owed(self, tier: int, head_cost: float) -> bool:
        """Whether the floor lets this tier go first now."""
        if self.deficits[tier] < head_cost:
            return False
        # Capped at one head: a tier that could not be served cannot save up a burst.
        self.deficits[tier] = head_cost
        return True
