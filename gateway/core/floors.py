"""The floor of the lower tiers: a share of what is released, whatever the tiers above want.

A deficit counter per tier grows by `min_share x released cost` while the tier waits and is spent
by the cost of what it releases; both are corrected when the true cost is known. A tier whose
deficit covers a request is *owed* it: the request goes first and is judged by tier 0's gates,
since a saturating tier 0 would keep the lower gates shut and the floor would only order what
never runs.
"""

from collections.abc import Sequence

from gateway.core.policy import Policy


class Floors:
    """One deficit per tier, in the policy's cost unit; below zero where more was spent."""

    __slots__ = ("_policy", "deficits")

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.deficits = [0.0] * len(policy.tiers)

    def released(self, tier: int, cost: float, backlog: Sequence[int]) -> None:
        """`tier` released `cost`; `backlog[q]` requests wait in tier q after that."""
        self._grow(tier, cost, backlog)
        for rank, count in enumerate(backlog):
            if not count:
                self.deficits[rank] = min(self.deficits[rank], 0.0)
        deficit = self.deficits[tier]
        self.deficits[tier] = min(deficit, max(0.0, deficit - cost))

    def settled(
        self, tier: int, difference: float, backlog: Sequence[int], *, was_owed: bool
    ) -> None:
        """A release of `tier` cost `difference` more (negative: less) than was thought."""
        self._grow(tier, difference, backlog)
        if was_owed:
            self.deficits[tier] -= difference

    def cap(self, tier: int, cost: float) -> None:
        """A tier that could not be served must not save up more than one request of `cost`."""
        self.deficits[tier] = min(self.deficits[tier], cost)

    def is_owed(self, tier: int, cost: float) -> bool:
        """Whether the floor lets a request of `tier` that costs this much go first now."""
        deficit = self.deficits[tier]
        return deficit > 0.0 and deficit >= cost

    def _grow(self, tier: int, cost: float, backlog: Sequence[int]) -> None:
        for rank, count in enumerate(backlog):
            if count and rank != tier:
                self.deficits[rank] += self._policy.tiers[rank].min_share * cost
