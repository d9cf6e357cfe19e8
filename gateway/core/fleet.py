"""What happens to replicas: found, heard, lost, drained, removed; and whether there are enough."""

from __future__ import annotations

from gateway.core.endings import forget_if_gone
from gateway.core.freeness import SLOTS_UNKNOWN, capacity_and_use
from gateway.core.messages import (
    Decision,
    DrainAsked,
    ReplicaFound,
    ReplicaReported,
    ScaleAdvised,
)
from gateway.core.pool import Pool
from gateway.core.release import fill_all, fill_replica
from gateway.core.replica import Replica
from gateway.core.scaling import signal
from gateway.core.state import State

LOOK_EVERY_S = 1.0
"""How often the number of a pool's replicas is thought about."""


def found(state: State, event: ReplicaFound, *, now: float, out: list[Decision]) -> None:
    """A replica answers, or what it serves changed."""
    replica = state.replicas.get(event.replica)
    is_fresh = replica is None or replica.is_lost
    if replica is None:
        bounds = state.policy.bounds
        replica = state.replicas[event.replica] = Replica(
            event.replica,
            tiers=len(state.policy.tiers),
            blocks=bounds.prefixes,
        )
    elif replica.is_lost:
        replica.forget()
    replica.mark(lost=False, removed=False)
    replica.configured_slots = event.slots
    replica.context_tokens = event.context_tokens
    replica.count_slots()
    replica.weight = event.weight
    if replica.models != event.models:
        replica.models = event.models
        state.regroup()
    if is_fresh:
        _warm_up(state, replica, now)
    fill_all(state, now=now, out=out)


def _warm_up(state: State, replica: Replica, now: float) -> None:
    """One that joins others is filled slowly; where all are fresh nobody could wait for them."""
    pool = state.pool_by_replica.get(replica.name)
    if pool is None or not state.policy.warm_up_s:
        return
    others = [each for each in pool.replicas.values() if each is not replica and each.is_usable]
    if any(each.ledger.grants and now >= each.warm_until for each in others):
        replica.warm_from = now
        replica.warm_until = now + state.policy.warm_up_s


def reported(state: State, event: ReplicaReported, *, now: float, out: list[Decision]) -> None:
    """A scrape came back."""
    replica = state.replicas.get(event.replica)
    if replica is None or replica.is_lost:
        return
    replica.take_report(
        event.report,
        sent_at=event.sent_at,
        now=now,
        round_trip_s=event.round_trip_s,
        interval_s=state.policy.scrape_interval_s,
        target_s=state.policy.tiers[0].tpot_limit_ms / 1e3,
    )
    fill_replica(state, replica, now=now, out=out)
    pool = state.pool_by_replica.get(event.replica)
    if pool is not None:
        consider_scaling(state, pool, now=now, out=out)


def lost(state: State, name: str) -> None:
    """A replica is gone; its grants end by themselves."""
    replica = state.replicas.get(name)
    if replica is not None:
        replica.mark(lost=True)
        replica.forget()
        state.touch(replica)
        pool = state.pool_by_replica.get(name)
        if pool is not None:
            pool.ties.drop(name)


def removed(state: State, name: str) -> None:
    """A replica is no longer configured."""
    replica = state.replicas.get(name)
    if replica is not None:
        replica.mark(removed=True)
        state.touch(replica)
        forget_if_gone(state, replica)


def drain(state: State, event: DrainAsked, *, now: float, out: list[Decision]) -> None:
    """Nothing new goes to a replica, or it may be used again."""
    replica = state.replicas.get(event.replica)
    if replica is not None:
        replica.mark(draining=event.draining)
        fill_replica(state, replica, now=now, out=out)


def consider_scaling(state: State, pool: Pool, *, now: float, out: list[Decision]) -> None:
    """Say so when the pool should have another number of replicas."""
    if now < pool.looked_at + LOOK_EVERY_S:
        return
    pool.looked_at = now
    usable = [each for each in pool.replicas.values() if each.is_usable]
    value = _signal(pool, usable)
    advised = pool.advisor.advise(
        value, replicas=len(usable), has_waiting=pool.count > 0, now=now,
        scaling=state.policy.scaling,
    )  # fmt: skip
    if advised is not None:
        remove = _least_busy(usable) if advised < len(usable) else None
        out.append(ScaleAdvised(pool.models, advised, remove))


def _signal(pool: Pool, usable: list[Replica]) -> float:
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
