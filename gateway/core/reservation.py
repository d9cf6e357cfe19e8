"""A request too large for what is free gets a replica drained for it, after a while.

On a busy replica a small request always fits sooner, so one that needs several slots, or much KV,
would be passed over for ever. Once it has been passed over for `reserve_after_s`, one replica
takes nothing else of its tier or a lower one until it fits there. Then it goes, whoever ranks first
by now; a replica that has emptied and still cannot take it is let go. A long prompt that waits only
for shorter ones to be computed would have begun within `prefill_limit_s` had nobody gone past it,
so it is kept waiting no longer: no slot idles meanwhile, for the engine has all that to compute.
"""

from collections.abc import Iterable

from gateway.core.flows import Waiting
from gateway.core.freeness import freeness
from gateway.core.pool import Pool
from gateway.core.replica import Replica

RESERVED_S_MAX = 60.0
"""No replica is held longer than this for one request: foreign load may never leave."""
RESERVED_SHARE_MAX = 0.5
"""Of a pool's replicas at most so many are held at once, but always one."""


def passed_over(pool: Pool, passed: Iterable[Waiting], now: float) -> None:
    """Others were released before these, which fitted nowhere."""
    for waiting in passed:
        if waiting.skipped_since is None:
            waiting.skipped_since = now
            continue
        skipped_s = now - waiting.skipped_since
        if skipped_s >= pool.policy.reserve_after_s:
            _reserve(pool, waiting, pool.replicas.values(), now)
        elif skipped_s >= pool.gates.ceilings[waiting.request.tier].prefill_s:
            _reserve(pool, waiting, _computing(pool, waiting, now), now)


def release(replica: Replica, now: float) -> None:
    """Let go of a reservation that has served its purpose, or never will."""
    waiting = replica.reserved_for
    if waiting is not None and not is_held(replica, now):
        replica.reserved_for = None
        if waiting.ticket:
            waiting.skipped_since = now


def fulfilled(pool: Pool, waiting: Waiting) -> bool:
    """`waiting` was released: nobody is kept for it any more. Whether anybody was."""
    kept = [each for each in pool.replicas.values() if each.reserved_for is waiting]
    for replica in kept:
        replica.reserved_for = None
        pool.touch(replica)
    return bool(kept)


def is_held(replica: Replica, now: float) -> bool:
    """Whether a replica is still drained for a request that waits for it."""
    waiting = replica.reserved_for
    if waiting is None or waiting.holder is not None or not waiting.ticket:
        return False
    return replica.is_usable and now < replica.reserved_until


def keeps_out(pool: Pool, replica: Replica, waiting: Waiting, now: float) -> bool:
    """Whether `replica` is kept for another.

    A better tier need not wait for it, unless the other goes before all tiers by now: for what its
    tier is owed, or for its age.
    """
    kept_for = replica.reserved_for
    if kept_for is None or kept_for is waiting:
        return False
    tier = kept_for.request.tier
    if waiting.request.tier >= tier or pool.floors.is_owed(tier, kept_for.cost):
        return True
    return pool.elders is not None and pool.elders.is_aged(kept_for, now)


def let_go(replica: Replica, now: float) -> None:
    """Others may have it: what it was kept for does not fit, and nothing more will leave."""
    waiting = replica.reserved_for
    replica.reserved_for = None
    if waiting is not None:
        waiting.skipped_since = now


def _computing(pool: Pool, waiting: Waiting, now: float) -> list[Replica]:
    """Open replicas that it fits on as soon as they have computed what they have."""
    tier, gates = waiting.request.tier, pool.gates
    return [
        each
        for each in list(pool.open.values())
        if pool.open_tiers(each, now) > tier
        and gates.is_only_behind_prefill(waiting, each, tier, now)
    ]


def _reserve(pool: Pool, waiting: Waiting, among: Iterable[Replica], now: float) -> None:
    held = [each for each in pool.replicas.values() if each.reserved_for is not None]
    if any(each.reserved_for is waiting for each in held):
        return
    if len(held) >= max(1, int(RESERVED_SHARE_MAX * len(pool.replicas))):
        return
    free = [each for each in among if each.reserved_for is None and each.may_serve(waiting.kind)]
    if free:
        tier = waiting.request.tier
        replica = max(free, key=lambda each: (freeness(each, pool.headroom, tier), each.name))
        replica.reserved_for = waiting
        replica.reserved_until = now + RESERVED_S_MAX
        pool.touch(replica)
