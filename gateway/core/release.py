"""From a choice to a grant: the queue is charged, the ledger entered, the decision told."""

from __future__ import annotations

from gateway.core import health, preemption, recall, reservation
from gateway.core.flows import Waiting
from gateway.core.ledger import Grant
from gateway.core.messages import Decision, Granted, Recalled, Request
from gateway.core.placement import Search, choose, freest
from gateway.core.pool import Pool
from gateway.core.replica import Replica
from gateway.core.state import State


def fill(
    state: State, pool: Pool, replicas: list[Replica], *, now: float, out: list[Decision]
) -> None:
    """Release onto `replicas` until nothing more may go there."""
    changed: dict[Pool, None] = {}
    while pool.count and (choice := choose(pool, replicas, now)) is not None:
        waiting, lane = choice.waiting, choice.waiting.lane
        assert lane is not None
        if pool.policy.within_user == "prefix" and not waiting.request.is_continuation:
            is_first = lane.requests.first() is waiting
            lane.overtaken = 0 if is_first else lane.overtaken + waiting.kv_tokens
        if waiting.request.caps and (holder := state.full(waiting.request)) is not None:
            state.dequeue(waiting, now)
            state.hold(waiting, holder, now)
            continue
        expected_s = waiting.expected_s
        pool.take(waiting)
        state.room.leave(waiting)
        is_favoured = choice.is_owed or choice.is_aged
        grant = _grant(state, waiting, choice.replica, now=now, out=out, is_favoured=is_favoured)
        if not pool.count:
            pool.drain_rate.end(now)
        if choice.is_aged and pool.elders is not None:
            pool.elders.promoted(now)
        if expected_s is not None:
            pool.forecasts[grant.tier].add(expected_s, now - waiting.entered_at)
            waiting.expected_s = None
        if choice.passed_over:
            reservation.passed_over(pool, choice.passed_over, now)
        if waiting.skipped_since is not None and reservation.fulfilled(pool, waiting):
            changed[pool] = None
        if waiting.request.caps and state.caps.count:
            # Where a cap was raised, its holder has room for more than this one.
            changed.update(dict.fromkeys(requeue(state, waiting.request, now=now)))
    for each in changed:
        fill_pool(state, each, now=now, out=out)


def fill_replica(state: State, replica: Replica, *, now: float, out: list[Decision]) -> None:
    """`replica` changed: release onto it what it can take now."""
    pool = state.pool_by_replica.get(replica.name)
    if pool is None:
        return
    pool.touch(replica)
    if pool.count and replica.is_usable:
        fill(state, pool, [replica], now=now, out=out)
    if pool.policy.recall:
        take_back(state, pool, now=now, out=out)


def fill_pool(state: State, pool: Pool, *, now: float, out: list[Decision]) -> None:
    """Something that waits changed: release what can go wherever a gate may be open."""
    if pool.count and (pool.open or pool.slotless):
        replicas = pool.replicas if pool.slotless else pool.open
        fill(state, pool, list(replicas.values()), now=now, out=out)


def fill_for(
    state: State, pool: Pool, newcomer: Waiting, *, now: float, out: list[Decision]
) -> None:
    """As `fill_pool`, where only `newcomer` may fit where nothing did before."""
    tier = newcomer.request.tier
    if (
        pool.slotless
        or pool.elders is not None
        or pool.floors.deficits[tier] > 0.0
        or any(
            replica.open_tiers is None or replica.open_tiers > tier
            for replica in pool.open.values()
        )
    ):
        fill_pool(state, pool, now=now, out=out)


def unhold(state: State, left: Request, *, now: float, out: list[Decision]) -> None:
    """`left` runs no longer, or will not: its holders may have room for what they held back.

    Of each tier and class the first goes back to the queue; whichever comes to its turn first
    takes the room, and the others are held again.
    """
    for pool in requeue(state, left, now=now):
        fill_pool(state, pool, now=now, out=out)


def requeue(state: State, left: Request, *, now: float) -> list[Pool]:
    """As `unhold`, but nothing is released; returns the pools where something may be."""
    changed: list[Pool] = []
    for first in state.caps.firsts(left):
        waiting: Waiting | None = first
        while waiting is not None and not state.is_closed:
            holder = state.caps.holders[waiting.holder or ""]
            heap = holder.groups[waiting.request.tier, waiting.kind]
            pool = state.dequeue(waiting, now)
            other = state.full(waiting.request)
            if other is None:
                state.enqueue(pool, waiting, now)
                changed.append(pool)
                break
            state.hold(waiting, other, now)
            waiting = None if other is holder else heap.first()
    return changed


def fill_all(state: State, *, now: float, out: list[Decision]) -> None:
    """All gates are judged again, and what can go goes."""
    for pool in state.pools:
        pool.touch_all()
        fill_pool(state, pool, now=now, out=out)


def at_once(state: State, pool: Pool, waiting: Waiting, *, now: float, out: list[Decision]) -> bool:
    """Nothing ranks before it: grant this request without queueing it, if it fits anywhere."""
    pool.refresh_if_due(now)
    replica = None
    if waiting.kind.decodes and len(waiting.kind.replicas) == len(pool.replicas):
        first = pool.freest(waiting.request.tier, now)
        if first is None:
            return False
        replica = freest(pool, waiting, first, now)
    if replica is None:
        search = Search(pool, _open_to(pool, waiting, now), now)
        replica = search.place(waiting, judged_as=waiting.request.tier)
    if replica is None:
        return False
    pool.pass_by(waiting)
    _grant(state, waiting, replica, now=now, out=out)
    return True


def _open_to(pool: Pool, waiting: Waiting, now: float) -> list[Replica]:
    """Replicas whose gate is open to a request that nothing ranks before. O(replicas)."""
    tier, decodes, candidates = waiting.request.tier, waiting.kind.decodes, []
    for each in list(pool.open.values()) if decodes else pool.replicas.values():
        if each.reserved_for is not None:
            reservation.release(each, now)
        tiers = each.open_tiers
        if tiers is None or each.has_queue:
            tiers = pool.open_tiers(each, now)
        if tiers > tier or (not decodes and pool.gates.takes(each, now)):
            candidates.append(each)
    return candidates


def forward(state: State, pool: Pool, waiting: Waiting, *, now: float, out: list[Decision]) -> None:
    """The contrast: no queue and no gate, to the replica with the least outstanding."""
    fitting = [each for each in pool.replicas.values() if each.may_serve(waiting.kind)]
    replica = min(fitting, key=lambda each: (each.ledger.in_flight, each.name))
    _grant(state, waiting, replica, now=now, out=out).charged = 0.0


def take_back(state: State, pool: Pool, *, now: float, out: list[Decision]) -> None:
    """Recall one request that waits inside an engine, where that helps."""
    if state.is_closed or state.policy.release_at_once:
        return
    found = recall.wanted(pool, now)
    if found is None:
        if pool.recall_due_at is not None:
            state.wake_by(pool.recall_due_at)
    else:
        grant, replica = found
        grant.is_recalled = grant.waiting.was_recalled = True
        replica.recalled_at = now
        out.append(Recalled(grant.waiting.request.id, replica.name))


def _grant(
    state: State,
    waiting: Waiting,
    replica: Replica,
    *,
    now: float,
    out: list[Decision],
    is_favoured: bool = False,
) -> Grant:
    pool = state.pool_by_replica[replica.name]
    request = waiting.request
    sequences, slots = request.sequences, replica.slots
    if slots is not None and sequences > slots:
        sequences = slots
    cached = 0
    if request.prefix:
        cached = min(waiting.prompt_tokens, replica.cache.cached_tokens(request.prefix))
        replica.cache.sent(request.prefix)
    if request.prefix or request.session is not None or pool.has_adapters:
        pool.ties.sent(request, replica.name, has_adapters=pool.has_adapters)
    grant = Grant(waiting, sequences=sequences, cached_tokens=cached, granted_at=now)
    grant.was_favoured = is_favoured
    grant.found_room = replica.has_room_for(grant.slots)
    replica.ledger.enter(grant, now)
    if not grant.found_room:
        pool.has_queued = True
    for victim in preemption.victims(pool.gates, replica, grant):
        victim.is_recalled = True
        out.append(Recalled(victim.waiting.request.id, replica.name))
    grant.in_use = replica.occupied
    health.sent(replica, request.id, now)
    pool.touch(replica)
    state.granted[request.id] = (grant, replica)
    if request.caps:
        state.caps.enter(request)
    pool.drain_rate.add(now)
    waited_s = now - request.arrived_at
    out.append(Granted(request.id, replica.name, max(0.0, waited_s)))
    return grant
