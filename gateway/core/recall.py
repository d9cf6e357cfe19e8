"""Taking back what waits inside an engine: for a higher tier, or to a replica that is freer.

Only what has produced nothing is recalled, each request at most once, and what a floor or its age
let go never. The slot is free when the caller confirms; the request then goes back to its place,
and late binding sends it where it fits. Moves need a gap of freeness that they shrink without
turning it round (Llumnix, OSDI'24), so nothing is moved to and fro.
"""

from collections.abc import Iterator
from typing import Final

from gateway.core.freeness import capacity_and_use, freeness, score
from gateway.core.gate import Closed
from gateway.core.ledger import Grant
from gateway.core.placement import Search
from gateway.core.pool import Pool
from gateway.core.replica import Replica

CHECK_EVERY_S: Final = 0.05
"""Least time between two looks at one pool."""
REST_S: Final = 0.1
"""Least time between two recalls from one replica."""


def wanted(pool: Pool, now: float) -> tuple[Grant, Replica] | None:
    """What to take back now, and from where; None: nothing, or it is too soon to look again."""
    if not pool.policy.recall:
        return None
    if now < pool.recall_checked_at + CHECK_EVERY_S:
        if pool.recall_due_at is None and pool.has_queued:
            pool.recall_due_at = pool.recall_checked_at + CHECK_EVERY_S
        return None
    pool.recall_checked_at, pool.recall_due_at = now, None
    if not pool.has_queued:
        return None
    pool.has_queued = any(each.ledger.unstarted and each.waiting for each in pool.replicas.values())
    queued = [
        (grant, replica)
        for replica in pool.replicas.values()
        if replica.ledger.unstarted and now >= replica.recalled_at + REST_S and replica.waiting
        for grant in _recallable(replica)
    ]
    if not queued:
        return None
    return _for_higher_tier(pool, queued, now) or _to_freer_replica(pool, queued, now)


def _recallable(replica: Replica) -> Iterator[Grant]:
    """The grants there that may be taken back: those that the engine would begin last."""
    left = replica.waiting
    for grant in reversed(list(replica.ledger.unstarted.values())):
        if left <= 0:
            return
        left -= grant.slots
        waiting = grant.waiting
        if grant.slots and not (grant.was_favoured or grant.is_recalled or waiting.was_recalled):
            yield grant


def _for_higher_tier(
    pool: Pool, queued: list[tuple[Grant, Replica]], now: float
) -> tuple[Grant, Replica] | None:
    """One of the lowest tier whose place opens the queue gate for a request that ranks above."""
    waiting_tiers = [tier for tier, queue in enumerate(pool.queues) if queue.count]
    for grant, replica in sorted(queued, key=lambda each: -each[0].tier):
        for tier in waiting_tiers:
            if tier >= grant.tier:
                break
            left, gates = max(0, replica.waiting - grant.slots), pool.gates
            if gates.closed_by(replica, tier, replica.waiting, now) is not Closed.QUEUE:
                continue
            shut = gates.closed_by(replica, tier, left, now, without=grant.slots)
            if shut is None and _is_asked_for(pool, tier, replica):
                return grant, replica
    return None


def _is_asked_for(pool: Pool, tier: int, replica: Replica) -> bool:
    """Whether something that waits in `tier` could run on `replica`."""
    return any(replica.name in kind.replicas for kind in pool.queues[tier].classes)


def _to_freer_replica(
    pool: Pool, queued: list[tuple[Grant, Replica]], now: float
) -> tuple[Grant, Replica] | None:
    """One that another replica could begin at once, where that evens out the two."""
    for grant, source in queued:
        others = [
            each
            for each in list(pool.open.values())
            if each is not source and not each.waiting and pool.open_tiers(each, now)
        ]
        target = Search(pool, others, now).place(grant.waiting, judged_as=grant.tier)
        if target is None or not target.has_room_for(grant.slots):
            continue
        before = gap(pool, target, source, grant.tier)
        after = gap_after(grant, target, source)
        if before > pool.policy.recall_gap and 0.0 <= after < before:
            return grant, source
    return None


def gap(pool: Pool, target: Replica, source: Replica, tier: int) -> float:
    """How much freer `target` is, in normalised freeness; a draining source is not free at all."""
    return freeness(target, pool.headroom, tier) - freeness(source, pool.headroom, tier)


def gap_after(grant: Grant, target: Replica, source: Replica) -> float:
    """The gap if `grant` were on `target`; headroom, which is on both sides, left out."""
    if not source.is_usable:
        return 0.0  # away from a draining replica any move is right
    found = []
    for replica, sign in ((target, 1), (source, -1)):
        capacity, used = capacity_and_use(replica, grant.tier)
        has_kv = replica.kv_capacity_tokens is not None
        used = max(0.0, used + sign * (grant.kv_tokens if has_kv else grant.slots))
        found.append(score(replica, capacity, used, replica.occupied + sign * grant.slots))
    return found[0] - found[1]
