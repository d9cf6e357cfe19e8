"""What waits changes schedulers: it leaves this one, or comes from one that had let it in.

Nobody hears of that, and nothing is judged again. Who decides, and why, is not known here.
"""

from __future__ import annotations

from collections.abc import Iterable

from gateway.core.arrival import arrived, refuse
from gateway.core.endings import may_wait
from gateway.core.messages import Decision, Reason, Request
from gateway.core.pool import Pool
from gateway.core.release import fill_pool, requeue, unhold
from gateway.core.state import State
from gateway.core.weigh import weigh


def withdrawn(state: State, request_ids: Iterable[str], *, now: float) -> None:
    """They leave the queue; nothing is released for that, since nothing may be any more."""
    left = [state.waiting[each] for each in request_ids if each in state.waiting]
    for waiting in left:
        state.dequeue(waiting, now)
    if state.caps.count:
        for waiting in left:
            requeue(state, waiting.request, now=now)


def readmitted(
    state: State, requests: Iterable[Request], *, now: float, out: list[Decision]
) -> None:
    """Queue them whatever the bounds; then release what fits, by turn and not by arrival."""
    state.is_crowded = True
    changed: dict[Pool, None] = {}
    capped: list[Request] = []
    for request in requests:
        pool = state.pool_by_model.get(request.model)
        if state.is_closed or pool is None or state.policy.release_at_once:
            arrived(state, request, now=now, out=out)
            continue
        waiting = weigh(pool, state.predictor, request, sequence=state.number())
        if not may_wait(pool, waiting.kind):
            refuse(state, request, Reason.NO_REPLICA, now=now, out=out)
            continue
        pool.saw(request.tier, now)
        if request.caps:
            state.caps.learn(request)
            capped.append(request)
        state.enqueue(pool, waiting, now)
        changed[pool] = None
    for pool in changed:
        fill_pool(state, pool, now=now, out=out)
    for request in capped:
        if state.caps.count:
            unhold(state, request, now=now, out=out)
