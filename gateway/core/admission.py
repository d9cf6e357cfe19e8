"""May a request wait at all, and when should a refused one come back?

Bounds are by count, bytes and tokens, for each user, tenant and tier and for all. When a *shared*
bound is hit, the flow with the largest waiting cost over weight in the lowest waiting tier loses
its newest request: a full queue must not let the power user have the others refused.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Final

from gateway.core.caps import Caps
from gateway.core.flows import Flow, Waiting
from gateway.core.policy import Bounds
from gateway.core.pool import Pool

RETRY_AFTER_S_MIN: Final = 1.0


def victim(
    pools: Sequence[Pool], *, tier: int | None = None, caps: Caps | None = None
) -> Waiting | None:
    """The request that gives way when a shared bound is exceeded; something must wait.

    What waits since its holder has enough running goes before what waits for a replica.

    `tier`: it must be one of that tier, whose own bound was hit; None: of the lowest that waits.
    None where only continuations wait: no bound is for them.
    """
    ranks = {rank for pool in pools for rank, queue in enumerate(pool.queues) if queue.count}
    held = caps.newest if caps is not None else {}
    for rank in sorted(ranks | set(held), reverse=True):
        if tier not in {None, rank}:
            continue
        if rank in held:
            return held[rank].first()
        flows = [pool.queues[rank].heaviest() for pool in pools if pool.queues[rank].count]
        found = newest(max(flows, key=lambda each: each[0])[2])
        if found is not None:
            return found
    return None


def victim_of_tenant(
    pools: Iterable[Pool], tenant: str, *, caps: Caps | None = None
) -> Waiting | None:
    """The request of `tenant` that gives way when its own bound is exceeded. O(its users)."""
    held = caps.newest_of_tenant(tenant) if caps is not None and caps.count else None
    if held is not None:
        return held
    backlogged = [
        (rank, user.cost / user.weight, user)
        for pool in pools
        for rank, queue in enumerate(pool.queues)
        if tenant in queue.tenants
        for user in queue.tenants[tenant].users.values()
        if newest(user) is not None
    ]
    return newest(max(backlogged, key=lambda each: each[:2])[2]) if backlogged else None


def newest(user: Flow) -> Waiting | None:
    """The request of this flow that came last. O(its requests)."""
    waiting = (each for lane in user.lanes.values() for each in lane.requests)
    return max(waiting, key=lambda each: each.sequence, default=None)


def position(pool: Pool, waiting: Waiting, *, caps: Caps | None = None) -> int:
    """Estimated place in the line, 1 is next, of a request that waits.

    O(requests of its user), O(1) for the newest.
    """
    request, lane = waiting.request, waiting.lane
    if waiting.holder is not None and caps is not None:
        queued = pool.queues[request.tier].user_count(request.tenant, request.user)
        ahead = queued + caps.ahead_of(waiting)
        return place(pool, request.tier, request.tenant, request.user, ahead=ahead)
    assert lane is not None
    user = lane.flow
    assert user is not None
    if len(user.lanes) == 1 and waiting is lane.last:
        ahead = user.count - 1
    else:
        order = waiting.order
        ahead = sum(each.order < order for other in user.lanes.values() for each in other.requests)
    return place(pool, request.tier, request.tenant, request.user, ahead=ahead)


def place(pool: Pool, tier: int, tenant: str, user: str, *, ahead: int) -> int:
    """Place in the line of a request with `ahead` requests of its own flow before it.

    Under fair queueing this flow gets its share of what its tier releases, so that many requests
    of others go between two of its own; it is an estimate, not a promise.
    """
    queue = pool.queues[tier]
    above = 0
    for rank in range(tier):
        above += pool.queues[rank].count
    turns = math.ceil((ahead + 1) / queue.share(tenant, user) - 1e-9)
    return above + min(max(queue.count, ahead + 1), turns)


def wait_s(pool: Pool, in_line: int, now: float) -> float | None:
    """Expected wait at this place from the measured drain rate; None before anything drained."""
    rate = pool.drain_rate.per_s(now)
    return in_line / rate if rate > 0.0 else None


def is_hopeless(pool: Pool, waiting: Waiting, now: float) -> bool:
    """Whether a request that has just begun to wait would most likely not be served in time.

    Remembers the wait that was expected, so that the forecast learns from what comes of it.
    """
    waiting.expected_s = wait_s(pool, position(pool, waiting), now)
    if waiting.expected_s is None or waiting.request.is_continuation:
        return False
    lower_s = pool.forecasts[waiting.request.tier].lower(waiting.expected_s)
    return lower_s is not None and now + lower_s > waiting.deadline


def retry_after_s(pool: Pool | None, in_line: int, now: float, bounds: Bounds) -> float:
    """Seconds after which a refused client has a chance, whole, 1 .. `retry_after_s_max`.

    The longest where nothing can serve it: nobody knows when something will.
    """
    if pool is None or not any(replica.is_usable for replica in pool.replicas.values()):
        return bounds.retry_after_s_max
    expected_s = in_line / pool.drain_rate.guess_per_s(now)
    return float(min(bounds.retry_after_s_max, max(RETRY_AFTER_S_MIN, math.ceil(expected_s))))
