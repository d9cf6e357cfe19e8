"""Ending what a preemptible tier runs, so that a request above it gets its slot and its KV.

Only a plain request is ended: its client has seen nothing, and it begins anew at its place in the
queue, with what it had computed lost. The youngest goes, which loses the least, as many as free
what is missing; what a floor or its age let go stays. Which tiers allow it is the operator's word.
"""

from math import inf

from gateway.core.gate import Gates
from gateway.core.ledger import Grant
from gateway.core.replica import Replica


def victims(gates: Gates, replica: Replica, newcomer: Grant) -> list[Grant]:
    """What to take back from `replica`, which `newcomer` has just entered; O(slots)."""
    lower = gates.displaced_by[newcomer.tier]
    if not lower:
        return []
    grants = replica.ledger.grants.values()
    yielding = [
        each for each in grants if each.tier in lower and each.slots and each.is_endable
    ]  # fmt: skip
    if replica.orders_by_tier and replica.slots is not None:
        return _by_tier(replica, replica.slots, newcomer, yielding)
    return [] if newcomer.found_room else _by_arrival(replica, newcomer, yielding)


def _by_tier(
    replica: Replica, slots: int, newcomer: Grant, yielding: list[Grant]
) -> list[Grant]:  # fmt: skip
    """Those that ran in what is left by all others, and for `newcomer` would not any more.

    The engine begins with the oldest of the highest tier, so it is they who run, and those that
    there is no room for wait: their end would free none. Where nothing is left for any, all go: in
    a step in which more others end than wait there some begin, and nothing here shows it, since
    each that ends lets the next one in.
    """
    yielding.sort(key=_tier_of)
    left = slots - replica.occupied + sum([each.slots for each in yielding])
    kv_left = _kv_left(replica, newcomer, yielding)
    # Foreign load is known from scrapes: what it has by now may have been theirs a moment ago.
    ran_in = left + newcomer.slots + replica.foreign
    found: list[Grant] = []
    taken, kv_taken = 0, 0.0
    for grant in yielding:
        if grant.is_recalled:
            continue
        ran = left <= 0 or taken < ran_in
        taken += grant.slots
        kv_taken += grant.kv_tokens
        if ran and (taken > left or kv_taken > kv_left):
            found.append(grant)
    return found


def _kv_left(replica: Replica, newcomer: Grant, yielding: list[Grant]) -> float:
    """KV tokens, as the ledger counts them, that those which yield may keep.

    At most as many fewer as `newcomer` takes: what the engine reports may have grown for all.
    """
    capacity = replica.kv_capacity_tokens
    if capacity is None:
        return inf
    held = sum([each.kv_tokens for each in yielding])
    staying = sum([each.kv_tokens for each in yielding if not each.is_recalled])
    beyond = (replica.kv_tokens - capacity) / replica.kv_share
    return max(held - beyond, float(staying - newcomer.kv_tokens))


def _by_arrival(replica: Replica, newcomer: Grant, yielding: list[Grant]) -> list[Grant]:
    """The youngest that run, one slot for each of `newcomer`'s; it begins once all before it do."""
    found: list[Grant] = []
    wanted, queued = newcomer.slots, _queued(replica, newcomer)
    for grant in reversed(yielding):
        if wanted <= 0:
            break
        if not grant.is_recalled and grant.waiting.request.id not in queued:
            found.append(grant)
            wanted -= grant.slots
    return found


def _queued(replica: Replica, newcomer: Grant) -> frozenset[str]:
    """What waits inside the engine, beside `newcomer`: its end would free no slot."""
    found, waiting = [], replica.waiting - newcomer.slots
    for grant in reversed(list(replica.ledger.unstarted.values())):
        if waiting <= 0:
            break
        if grant is not newcomer:
            found.append(grant.waiting.request.id)
            waiting -= grant.slots
    return frozenset(found)


def _tier_of(grant: Grant) -> int:
    return grant.tier
