"""Ending what a preemptible tier runs, so that a request above it gets its slot and its KV.

Only a plain request is ended: its client has seen nothing, and it begins anew at its place in the
queue, with what it had computed lost. The youngest goes, which loses the least, as many as free
what is missing; what a floor or its age let go stays. Which tiers allow it is the operator's word.
"""

from gateway.core.gate import Gates
from gateway.core.ledger import Grant
from gateway.core.replica import Replica


def victims(gates: Gates, replica: Replica, newcomer: Grant) -> list[Grant]:
    """What to take back from `replica`, which `newcomer` has just entered; O(slots)."""
    if not gates.displaced_by[newcomer.tier]:
        return []
    slots = 0 if newcomer.found_room else newcomer.slots
    kv_tokens = _lacking_kv(replica)
    if slots <= 0 and kv_tokens <= 0:
        return []
    found: list[Grant] = []
    queued, share = _queued(replica, newcomer), replica.kv_share
    for grant in reversed(list(replica.ledger.grants.values())):
        if slots <= 0 and kv_tokens <= 0:
            break
        if not _makes_way(gates, grant, newcomer.tier):
            continue
        kv_tokens -= grant.kv_tokens * share  # it ends, or begins after the newcomer
        if not grant.is_recalled and grant.waiting.request.id not in queued:
            found.append(grant)
            slots -= grant.slots
    return found


def _queued(replica: Replica, newcomer: Grant) -> frozenset[str]:
    """What waits inside the engine for a slot, beside `newcomer`: its end would free none."""
    slots = replica.slots
    waiting = replica.waiting if slots is None else max(0, replica.occupied - slots)
    waiting -= newcomer.slots
    found = []
    for grant in reversed(replica.next_begun()):
        if waiting <= 0:
            break
        if grant is not newcomer:
            found.append(grant.waiting.request.id)
            waiting -= grant.slots
    return frozenset(found)


def _lacking_kv(replica: Replica) -> float:
    """KV tokens beyond what the engine has."""
    capacity = replica.kv_capacity_tokens
    return 0.0 if capacity is None else replica.kv_tokens - capacity


def _makes_way(gates: Gates, grant: Grant, tier: int) -> bool:
    return grant.slots > 0 and grant.is_endable and grant.tier in gates.displaced_by[tier]
