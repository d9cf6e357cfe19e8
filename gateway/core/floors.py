"""The floor of the lower tiers: a share of what is released, whatever the tiers above want.

A deficit counter per tier grows by `min_share x released cost` while the tier waits and is spent
by the cost of what it releases; both are corrected when the true cost is known. A tier whose
deficit covers a request is *owed* it: the request goes first and is judged by tier 0's gates,
since a saturating tier 0 would keep the lower gates shut and the floor would only order what
never runs.
"""

from typing import Final

from gateway.core.policy import Policy

ROUNDING: Final = 1e-9
"""Ten times a tenth of a cost must make one."""


class Floors:
    """One deficit per tier, in the policy's cost unit; below zero where more was spent."""

    __slots__ = ("_min_shares", "deficits", "may_owe")

    def __init__(self, policy: Policy) -> None:
        self._min_shares = [tier.min_share for tier in policy.tiers]
        self.may_owe = any(self._min_shares)
        """False: no tier has a floor, and nothing here is of use."""
        self.deficits = [0.0] * len(policy.tiers)

    def released(self, tier: int, cost: float, waiting: list[int]) -> None:
        """`tier` released `cost`; `waiting[q]` requests wait in tier q after that."""
        if not self.may_owe:
            return
        deficits = self.deficits
        for rank, count in enumerate(waiting):
            deficit = deficits[rank]
            if rank == tier:
                if deficit > 0.0:
                    deficit = max(0.0, deficit - cost)
            elif count:
                deficit += self._min_shares[rank] * cost
            if not count and deficit > 0.0:
                deficit = 0.0
            deficits[rank] = deficit

    def settled(self, tier: int, difference: float, waiting: list[int], *, was_owed: bool) -> None:
        """A release of `tier` cost `difference` more (negative: less) than was thought."""
        if not self.may_owe:
            return
        deficits, shares = self.deficits, self._min_shares
        for rank, count in enumerate(waiting):
            if count and rank != tier:
                deficits[rank] += shares[rank] * difference
        if was_owed:
            deficits[tier] -= difference

    def cap(self, tier: int, cost: float) -> None:
        """A tier that could not be served must not save up more than one request of `cost`."""
        self.deficits[tier] = min(self.deficits[tier], cost)

    def is_owed(self, tier: int, cost: float) -> bool:
        """Whether the floor lets a request of `tier` that costs this much go first now."""
        deficit = self.deficits[tier]
        return deficit > 0.0 and deficit >= cost * (1 - ROUNDING)
