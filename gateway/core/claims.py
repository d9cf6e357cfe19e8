"""What flows and tiers have had already, as plain values: the part of a pool that fairness needs.

For a scheduler that takes over from another one. Who waits and what runs is not told here.
"""

from collections.abc import Mapping
from typing import Any

from gateway.core.pool import Pool


def claims(pool: Pool) -> dict[str, Any]:
    """Leads over virtual time, deficits and shares by tier name. O(flows)."""
    tiers = {}
    for rank, tier in enumerate(pool.policy.tiers):
        debts = [list(debt) for debt in pool.queues[rank].debts() if debt[2] > 0 or debt[3] > 0]
        tiers[tier.name] = {"rank": rank, "debts": debts, "deficit": pool.floors.deficits[rank]}
    shares = None if pool.shares is None else pool.shares.snapshot()
    return {"cost": pool.policy.cost, "tiers": tiers, "shares": shares}


def take_claims(pool: Pool, data: Mapping[str, Any]) -> None:
    """Go on from what `claims` gave; tiers of other names, and another unit of cost, are left out.

    Raises LookupError, TypeError or ValueError where it is of another form.
    """
    if data["cost"] != pool.policy.cost:
        return
    rank_of: dict[int, int] = {}
    for rank, tier in enumerate(pool.policy.tiers):
        told = data["tiers"].get(tier.name)
        if told is None:
            continue
        rank_of[int(told["rank"])] = rank
        pool.floors.deficits[rank] = float(told["deficit"])
        for tenant, user, lead, user_lead in told["debts"]:
            debt = (str(tenant), str(user), float(lead), float(user_lead))
            pool.queues[rank].adopt_debt(debt)
    if pool.shares is not None and data["shares"] is not None:
        pool.shares.restore(data["shares"], rank_of)
