"""Whether a pool has enough replicas: its signal, worked out from what is believed of them."""

from __future__ import annotations

from typing import Final

from gateway.core.freeness import SLOTS_UNKNOWN, capacity_and_use
from gateway.core.messages import Decision, ScaleAdvised
from gateway.core.pool import Pool
from gateway.core.replica import Replica
from gateway.core.scaling import signal
from gateway.core.state import State

LOOK_EVERY_S: Final = 1.0
"""How often the number of a pool's replicas is thought about."""


def consider_scaling(
    state: State, pool: Pool, *, now: float, out: list[Decision], is_asked_for: bool = False
) -> None:
    """Say so when the pool should have another number of replicas.

    `is_asked_for`: a request came that nothing can serve; it counts as waiting, and at once.
    """
    if now < pool.looked_at + LOOK_EVERY_S and not is_asked_for:
        return
    pool.looked_at = now
    usable = [each for each in pool.replicas.values() if each.is_usable]
    value = fleet_signal(pool, usable)
    advised = pool.advisor.advise(
        value, replicas=len(usable), has_waiting=is_asked_for or pool.count > 0, now=now,
        scaling=state.policy.scaling,
    )  # fmt: skip
    if advised is not None:
        remove = _least_busy(usable) if advised < len(usable) else None
        out.append(ScaleAdvised(pool.models, advised, remove))


def fleet_signal(pool: Pool, usable: list[Replica]) -> float:
    """Free capacity less what waits, as a share of the fleet's capacity.

    A replica is as full as whatever it has least of: KV, slots, or sequences at its TPOT limit.
    Headroom is left out: with all tiers present a third of the fleet would always count as used.
    """
    has_kv = all(each.kv_capacity_tokens is not None for each in usable)
    capacity = used = slots = 0.0
    for replica in usable:
        total, taken = capacity_and_use(replica, len(pool.queues) - 1)
        able = min(float(replica.slots or SLOTS_UNKNOWN), pool.gates.limit(replica))
        unit = total if has_kv else 1.0
        capacity += unit
        slots += able
        used += unit * max(taken / total, replica.occupied / able)
    waiting = 0.0
    if pool.count and capacity:
        kv_share = sum(queue.kv_tokens for queue in pool.queues) / capacity if has_kv else 0.0
        waiting = capacity * max(kv_share, pool.count / slots)
    elif pool.count:
        waiting = float(pool.count)
    return signal(capacity=capacity, used=used, waiting=waiting)


def _least_busy(usable: list[Replica]) -> str:
    return min(usable, key=lambda each: (len(each.ledger.grants), each.name)).name
