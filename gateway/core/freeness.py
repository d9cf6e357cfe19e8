"""How free a replica is for a tier: the K-tier freeness of Llumnix, normalised.

`F = (M - V)/max(1, B)` while V fits into M, else `(M - V)/M`; V counts the KV in use, the demand
of all unstarted work of the same or a higher tier, and the headroom of each tier present.
Normalised `f = F * B_ref / M`, so an idle replica scores its own slots and thresholds have one
unit whatever the model: "free slots' worth". More load never raises it.
"""

from collections.abc import Sequence

from gateway.core.replica import Replica

SLOTS_UNKNOWN = 64
"""Reference batch of a replica whose slots are not known yet."""


def freeness(replica: Replica, headroom: Sequence[float], tier: int) -> float:
    """Normalised freeness of `replica` for `tier`; minus infinity when it takes nothing.

    `headroom[q]` is the share of the replica reserved for tier q, 0..1.
    """
    if not replica.is_usable:
        return float("-inf")
    slots = replica.slots or SLOTS_UNKNOWN
    capacity, used = _capacity_and_use(replica, slots, tier)
    ledger = replica.ledger
    for rank, present in enumerate(ledger.by_tier):
        if present:
            used += headroom[rank] * capacity
    if used <= capacity:
        free = (capacity - used) / max(1, replica.occupied)
    else:
        free = (capacity - used) / capacity
    return free * slots / capacity * replica.weight if free > 0 else free * slots / capacity


def _capacity_and_use(replica: Replica, slots: int, tier: int) -> tuple[float, float]:
    """(M, V without headroom) in KV tokens, or in slots where the engine reports no KV."""
    ledger = replica.ledger
    if replica.kv_capacity_tokens is None:
        return float(slots), float(replica.occupied)
    lower = sum(ledger.unstarted_kv_by_tier[tier + 1 :])
    return float(replica.kv_capacity_tokens), max(0.0, replica.kv_tokens - lower)
