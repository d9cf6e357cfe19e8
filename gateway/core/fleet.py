"""What happens to replicas: found, heard, lost, drained, removed."""

from __future__ import annotations

from gateway.core import health
from gateway.core.advice import consider_scaling
from gateway.core.endings import forget_if_gone
from gateway.core.messages import (
    Decision,
    DrainAsked,
    ReplicaFound,
    ReplicaReported,
)
from gateway.core.moving import move
from gateway.core.release import fill_all, fill_replica
from gateway.core.replica import Replica
from gateway.core.state import State


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
    replica.mark(lost=False, removed=False, draining=event.replica in state.drained)
    replica.configured_slots = event.slots
    replica.context_tokens = event.context_tokens
    replica.orders_by_tier = event.orders_by_tier
    replica.count_slots()
    replica.weight = event.weight
    if replica.models != event.models:
        replica.models = event.models
        state.regroup()
    if is_fresh:
        if replica.circuit.found(now):
            state.wake_by(replica.circuit.until)
            health.rest_briefly(state, replica, now)
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
    replica.pass_time(now)
    did, is_new = replica.take_report(
        event.report,
        sent_at=event.sent_at,
        now=now,
        round_trip_s=event.round_trip_s,
        interval_s=state.policy.scrape_interval_s,
        target_s=state.policy.tiers[0].tpot_limit_ms / 1e3,
    )
    health.reported(state, replica, now, did=did, is_new=is_new)
    health.look_for_absent(replica, sent_at=event.sent_at, now=now)
    pool = state.pool_by_replica.get(event.replica)
    if pool is not None and replica.ledger.unstarted and replica.waiting:
        pool.has_queued = True
    fill_replica(state, replica, now=now, out=out)
    if pool is not None:
        move(state, pool, now=now, out=out)
        consider_scaling(state, pool, now=now, out=out)


def refused(state: State, name: str, *, now: float) -> None:
    """Nobody listens at a replica's address."""
    replica = state.replicas.get(name)
    if replica is not None:
        health.refused(state, replica, now)
        state.touch(replica)


def lost(state: State, name: str, *, now: float) -> None:
    """A replica is gone; its grants end by themselves."""
    replica = state.replicas.get(name)
    if replica is not None:
        if not replica.is_lost:
            replica.circuit.lost(now)
        replica.mark(lost=True)
        replica.forget()
        state.touch(replica)
        health.rest_briefly(state, replica, now)
        pool = state.pool_by_replica.get(name)
        if pool is not None:
            pool.ties.drop(name)


def removed(state: State, name: str) -> None:
    """A replica is no longer configured; whoever configures it again begins anew."""
    state.drained.discard(name)
    replica = state.replicas.get(name)
    if replica is not None:
        replica.mark(removed=True)
        state.touch(replica)
        forget_if_gone(state, replica)


def drain(state: State, event: DrainAsked, *, now: float, out: list[Decision]) -> None:
    """Nothing new goes to a replica, or it may be used again; it need not have answered yet."""
    if event.draining:
        state.drained.add(event.replica)
    else:
        state.drained.discard(event.replica)
    replica = state.replicas.get(event.replica)
    if replica is not None:
        replica.mark(draining=event.draining)
        health.rest_briefly(state, replica, now)
        fill_replica(state, replica, now=now, out=out)
        pool = state.pool_by_replica.get(event.replica)
        if pool is not None:
            move(state, pool, now=now, out=out)
