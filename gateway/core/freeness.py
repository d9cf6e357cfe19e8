"""How free a replica is for a tier: the K-tier freeness of Llumnix, normalised.

`F = (M - V)/max(1, B)` while V fits into M, else `(M - V)/M`; V counts the KV in use, the demand
of all unstarted work of the same or a higher tier, and the headroom of each tier present.
Normalised `f = F * B_ref / M`, so an idle replica scores its own slots and thresholds have one
unit whatever the model: "free slots' worth". More load never raises it.
"""

from typing import Final

from gateway.core.replica import Replica

SLOTS_UNKNOWN: Final = 64
"""Reference batch of a replica whose slots are not known yet."""


def freeness(replica: Replica, headroom: tuple[float, ...], tier: int) -> float:
    """Normalised freeness of `replica` for `tier`; minus infinity when it takes nothing.

    `headroom[q]` is the share of the replica reserved for tier q, 0..1.
    """
    if not replica.is_usable:
        return float("-inf")
    known = replica.scores.get(tier)
    if known is not None:
        return known
    capacity, used = capacity_and_use(replica, tier)
    by_tier = replica.ledger.by_tier
    for rank in range(len(by_tier)):
        if by_tier[rank]:
            used += headroom[rank] * capacity
    found = replica.scores[tier] = score(replica, capacity, used, replica.occupied)
    return found


def score(replica: Replica, capacity: float, used: float, occupied: int) -> float:
    """Normalised freeness from (M, V) and the number of sequences there."""
    slots = replica.slots or SLOTS_UNKNOWN
    free = capacity - used
    if free <= 0:
        return free * slots / (capacity * capacity)
    # The weight says how fast it is for its slots, so that it scales what is free.
    return free / max(1, occupied) * slots / capacity * replica.weight


def capacity_and_use(replica: Replica, tier: int) -> tuple[float, float]:
    """(M, V without headroom) in KV tokens, or in slots where the engine reports no KV."""
    capacity = replica.kv_capacity_tokens
    if capacity is None:
        return float(replica.slots or SLOTS_UNKNOWN), float(replica.occupied)
    used = replica.kv_tokens
    unstarted = replica.ledger.unstarted_kv_by_tier
    for rank in range(tier + 1, len(unstarted)):
        used -= unstarted[rank]
    return float(capacity), max(0.0, used)
