"""A request arrives: may it run here at all, may it wait, and who gives way if not?"""

from __future__ import annotations

from gateway.core import admission
from gateway.core.advice import consider_scaling
from gateway.core.caps import Holder
from gateway.core.flows import Waiting
from gateway.core.messages import Decision, Reason, Refused, Request
from gateway.core.policy import Room
from gateway.core.pool import Pool
from gateway.core.release import at_once, fill_for, fill_pool, forward, take_back, unhold
from gateway.core.state import State
from gateway.core.tally import Tally
from gateway.core.weigh import weigh

NOTHING = Tally()
"""What waits of a user of whom nothing waits; never written."""


def arrived(state: State, request: Request, *, now: float, out: list[Decision]) -> None:
    """Grant, queue or refuse a new request, or one that is tried again."""
    assert request.id not in state.waiting, "an id waits once"
    assert request.id not in state.granted, "an id is granted once"
    pool = state.pool_by_model.get(request.model)
    if state.is_closed or pool is None:
        reason = Reason.SHUTTING_DOWN if state.is_closed else Reason.NO_REPLICA
        refuse(state, request, reason, now=now, out=out)
        return
    waiting = weigh(pool, state.predictor, request, sequence=state.number())
    objection = _objection(pool, waiting, now)
    if objection is Reason.NO_REPLICA:
        consider_scaling(state, pool, now=now, out=out, is_asked_for=True)
    if objection is not None:
        refuse(state, request, objection, now=now, out=out)
        return
    pool.saw(request.tier, now)
    if request.caps:
        state.caps.learn(request)
    if state.policy.release_at_once:
        forward(state, pool, waiting, now=now, out=out)
    elif request.caps and (holder := state.full(request)) is not None:
        _hold(state, waiting, holder, now=now, out=out)
    elif not pool.is_first(request) or not at_once(state, pool, waiting, now=now, out=out):
        _wait(state, pool, waiting, now=now, out=out)
    if request.caps and state.caps.count:
        # It may have told of a cap that was raised.
        unhold(state, request, now=now, out=out)


def _objection(pool: Pool, waiting: Waiting, now: float) -> Reason | None:
    """Why a request is refused whatever else waits; None: it is not."""
    request = waiting.request
    if not pool.can_serve(waiting.kind):
        # Whoever asks again and again for the replica that failed it learns when to stop.
        is_over = bool(request.excluded) and now > waiting.deadline
        return Reason.PATIENCE_SPENT if is_over else Reason.NO_REPLICA
    if request.prompt_tokens is not None:
        longest = pool.context_tokens(request.model)
        if longest is not None and request.prompt_tokens > longest:
            return Reason.PROMPT_TOO_LONG
    return None


def _wait(state: State, pool: Pool, waiting: Waiting, *, now: float, out: list[Decision]) -> None:
    """Queue it, unless it is hopeless; if it is the next of its class, look where it fits."""
    request = waiting.request
    if not request.is_continuation and _is_full_for(state, waiting):
        refuse(state, request, Reason.USER_QUEUE_FULL, now=now, out=out)
        return
    queue = pool.queues[request.tier]
    state.enqueue(pool, waiting, now)
    # Behind another of its class nothing is open for it that was not for that one.
    if queue.head(waiting.kind) is waiting:
        fill_for(state, pool, waiting, now=now, out=out)
        if waiting.ticket and state.policy.recall:
            take_back(state, pool, now=now, out=out)
    if waiting.ticket and waiting.holder is None and admission.is_hopeless(pool, waiting, now):
        evict(state, waiting, Reason.WAIT_TOO_LONG, now=now, out=out)
    if waiting.ticket and not request.is_continuation:
        _make_room(state, waiting, now=now, out=out)


def _hold(
    state: State, waiting: Waiting, holder: Holder, *, now: float, out: list[Decision]
) -> None:
    """As many of its holder run as may: it waits outside the queue, within the same bounds."""
    if _is_full_for(state, waiting):
        refuse(state, waiting.request, Reason.USER_QUEUE_FULL, now=now, out=out)
        return
    state.hold(waiting, holder, now)
    _make_room(state, waiting, now=now, out=out)


def _is_full_for(state: State, waiting: Waiting) -> bool:
    """Whether its user has as much waiting as it may."""
    request = waiting.request
    user = state.room.by_user.get((request.tenant, request.user), NOTHING)
    return user.is_full_for(
        state.room_of_user, body_bytes=request.body_bytes, tokens=waiting.kv_tokens
    )


def _make_room(state: State, newcomer: Waiting, *, now: float, out: list[Decision]) -> None:
    """While a shared bound is exceeded, somebody gives way."""
    in_all, in_tier, in_tenant, _ = newcomer.tallies
    policy, request = state.policy, newcomer.request
    tenant = policy.tenants.get(request.tenant)
    room, room_of_tier = state.room_of_all, policy.tiers[request.tier].room
    room_of_tenant = None if tenant is None else tenant.room
    if state.is_crowded:
        room, room_of_tier = (
            _beside(newcomer, in_all, room),
            _beside(newcomer, in_tier, room_of_tier),
        )
        room_of_tenant = room_of_tenant and _beside(newcomer, in_tenant, room_of_tenant)
    while newcomer.ticket:
        if room_of_tenant is not None and in_tenant.exceeds(room_of_tenant):
            victim = admission.victim_of_tenant(state.pools, request.tenant, caps=state.caps)
            reason = Reason.TENANT_QUEUE_FULL
        elif in_tier.exceeds(room_of_tier):
            victim = admission.victim(state.pools, tier=request.tier, caps=state.caps)
            reason = Reason.QUEUE_FULL
        elif in_all.exceeds(room):
            victim = admission.victim(state.pools, caps=state.caps)
            reason = Reason.QUEUE_FULL
        else:
            return
        if victim is None:
            return
        is_own = victim is newcomer
        evict(state, victim, reason if is_own else Reason.SHED, now=now, out=out)
        fill_behind(state, victim, now=now, out=out)


def _beside(newcomer: Waiting, tally: Tally, room: Room) -> Room:
    """`room`, or as much as waited before `newcomer` came, where that was more."""
    return Room(
        requests=_at_least(room.requests, tally.requests - 1),
        body_bytes=_at_least(room.body_bytes, tally.body_bytes - newcomer.request.body_bytes),
        tokens=_at_least(room.tokens, tally.tokens - newcomer.kv_tokens),
    )


def _at_least(most: int | None, present: int) -> int | None:
    return None if most is None else max(most, present)


def evict(
    state: State, waiting: Waiting, reason: Reason, *, now: float, out: list[Decision]
) -> None:
    """A waiting request is refused."""
    state.dequeue(waiting, now)
    refuse(state, waiting.request, reason, now=now, out=out)
    if state.caps.count:
        unhold(state, waiting.request, now=now, out=out)


def fill_behind(state: State, gone: Waiting, *, now: float, out: list[Decision]) -> None:
    """One that waited went: the next of its class may fit where it did not."""
    pool = state.pool_by_model[gone.request.model]
    is_kind_left = gone.kind in pool.queues[gone.request.tier].classes
    if is_kind_left or gone.skipped_since is not None:
        fill_pool(state, pool, now=now, out=out)


def refuse(
    state: State, request: Request, reason: Reason, *, now: float, out: list[Decision]
) -> None:
    """Tell a client to come back when its turn would have been."""
    pool = state.pool_by_model.get(request.model)
    in_line = 1
    if pool is not None:
        tier, tenant, user = request.tier, request.tenant, request.user
        ahead = pool.queues[tier].user_count(tenant, user)
        in_line = admission.place(pool, tier, tenant, user, ahead=ahead)
    after_s = admission.retry_after_s(pool, in_line, now, state.policy.bounds)
    out.append(Refused(request.id, reason, after_s))
