"""A new policy, the passing of time, and the end."""

from __future__ import annotations

from gateway.core.advice import consider_scaling
from gateway.core.arrival import evict
from gateway.core.messages import Decision, PolicyChanged, Reason
from gateway.core.moving import move
from gateway.core.release import fill_all, take_back
from gateway.core.state import State
from gateway.core.waitroom import WaitingRoom, room_of_all, room_of_user
from gateway.core.weigh import reweigh


def policy_changed(state: State, event: PolicyChanged, *, now: float, out: list[Decision]) -> None:
    """Everything that waits or runs is ranked and priced anew; nothing is lost."""
    old, new = state.policy, event.policy
    rank_of = {tier.name: rank for rank, tier in enumerate(new.tiers)}
    tier_of = {
        rank: rank_of[event.moved_to.get(tier.name, tier.name)]
        for rank, tier in enumerate(old.tiers)
    }
    for replica in state.replicas.values():
        replica.ledger.resize(tier_of, len(new.tiers))
        replica.reserved_for = None
        replica.cache.resize(new.bounds.prefixes)
    same_tiers = all(tier_of[rank] == rank for rank in tier_of) and len(tier_of) == len(rank_of)
    keeps_debts = same_tiers and old.cost == new.cost
    for waiting in state.waiting.values():
        reweigh(waiting, new, tier_of)
    for grant, _ in state.granted.values():
        reweigh(grant.waiting, new, tier_of)
        if not keeps_debts and not old.release_at_once:
            grant.charged = grant.waiting.cost
    state.is_crowded &= old.shared_like(new) == new
    state.policy = new
    state.predictor.resize(new.bounds.predictions)
    state.room_of_all, state.room_of_user = room_of_all(new.bounds), room_of_user(new.bounds)
    _count_anew(state)
    state.regroup(keeps_debts=keeps_debts)
    state.caps.share(new.sharers)
    for pool in state.pools:
        before, sharers = old.sharers_of(pool.models), pool.policy.sharers
        if sharers != before:
            pool.drain_rate.scale(before / sharers)
    if (new.release_at_once or new.sharers < old.sharers) and state.caps.count:
        # Whichever comes to its turn and has no room is held again.
        for waiting in [each for each in state.waiting.values() if each.holder is not None]:
            state.enqueue(state.dequeue(waiting, now), waiting, now)
    fill_all(state, now=now, out=out)


def _count_anew(state: State) -> None:
    """Tallies go by tier, and every stay gets its ticket again."""
    line = sorted(state.waiting.values(), key=lambda each: each.ticket)
    state.room = WaitingRoom(len(state.policy.tiers))
    for waiting in line:
        waiting.ticket = state.number()
        state.room.enter(waiting)


def woke(state: State, *, now: float, out: list[Decision]) -> None:
    """Time passed: patience ends, reports become stale, gates open."""
    state.wake_at = None
    expire(state, now=now, out=out)
    for replica in state.replicas.values():
        replica.pass_time(now)
        if replica.report is None or now >= replica.fresh_until:
            replica.start_plain(now, queued=0)
    fill_all(state, now=now, out=out)
    for pool in state.pools:
        if state.policy.recall:
            take_back(state, pool, now=now, out=out)
        move(state, pool, now=now, out=out)
        consider_scaling(state, pool, now=now, out=out)


def expire(state: State, *, now: float, out: list[Decision]) -> None:
    """Refuse those whose patience has ended."""
    while (waiting := state.room.expired(now)) is not None:
        pool = state.pool_by_model[waiting.request.model]
        served = pool.can_serve(waiting.kind)
        reason = Reason.PATIENCE_SPENT if served else Reason.NO_REPLICA
        evict(state, waiting, reason, now=now, out=out)


def close(state: State, *, now: float, out: list[Decision]) -> None:
    """The gateway shuts down: what waits is refused, what runs is left alone."""
    state.is_closed = True
    for waiting in list(state.waiting.values()):
        evict(state, waiting, Reason.SHUTTING_DOWN, now=now, out=out)
