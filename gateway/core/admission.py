"""May a request wait at all, and when should a refused one come back?

Bounds are by user, by count and by bytes. When a *shared* bound is hit, the flow with the largest
waiting cost over weight in the lowest waiting tier loses its newest request: a full queue must not
let the power user have the others refused.
"""

import math
from collections.abc import Iterable

from gateway.core.fairqueue import Waiting
from gateway.core.policy import Bounds
from gateway.core.pool import Pool

RETRY_AFTER_S_MIN = 1.0


def victim(pools: Iterable[Pool]) -> Waiting:
    """The request that gives way when a shared bound is exceeded; something must wait."""
    backlogged = [
        (rank, pool) for pool in pools for rank, queue in enumerate(pool.queues) if queue.count
    ]
    tier = max(rank for rank, _ in backlogged)
    (_, tenant, user), pool = max(
        ((pool.queues[tier].heaviest(), pool) for rank, pool in backlogged if rank == tier),
        key=lambda candidate: candidate[0],
    )
    return pool.queues[tier].newest(tenant, user)


def position(pool: Pool, tier: int, ahead_in_flow: int) -> int:
    """Place in the line, 1 is next, of a request with `ahead_in_flow` requests of its own before.

    Under fair queueing each active user is served about once before this flow is served again,
    so the place follows from the flow's own depth; it is an estimate, not a promise.
    """
    above = sum(queue.count for queue in pool.queues[:tier])
    queue = pool.queues[tier]
    return above + min(queue.count, ahead_in_flow * max(1, queue.active_users) + 1)


def wait_s(pool: Pool, place: int, now: float) -> float | None:
    """Expected wait at `place` from the measured drain rate; None before anything drained."""
    rate = pool.drain_rate.per_s(now)
    return place / rate if rate > 0.0 else None


def retry_after_s(pool: Pool | None, place: int, now: float, bounds: Bounds) -> float:
    """Seconds after which a refused client has a chance, whole, 1 .. `retry_after_s_max`."""
    expected_s = wait_s(pool, place, now) if pool is not None else None
    if expected_s is None:
        return bounds.retry_after_s_max
    return float(min(bounds.retry_after_s_max, max(RETRY_AFTER_S_MIN, math.ceil(expected_s))))
