"""What happens to a grant, from its first token to the settlement of its charge."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from gateway.core import cost, health
from gateway.core.arrival import evict, fill_behind, refuse
from gateway.core.kinds import Kind
from gateway.core.ledger import Grant
from gateway.core.messages import (
    Adopted,
    Decision,
    Finished,
    Outcome,
    Progressed,
    Reason,
    Request,
    Usage,
)
from gateway.core.pool import Pool
from gateway.core.release import fill_all, fill_replica, unhold
from gateway.core.replica import Replica
from gateway.core.state import State
from gateway.core.weigh import weigh

BUSY_REST_S: Final = 0.25
"""A replica that answered "busy" gets nothing for this long, or until something ends there."""
CHARGE_AHEAD: Final = 1.25
"""A request that outgrows its estimate is charged this much of what it has cost so far: seldom."""
TPOT_TOKENS_MIN: Final = 2
"""A stream of fewer tokens has no time between two of them."""


def started(state: State, request_id: str, *, now: float, out: list[Decision]) -> None:
    """The engine began to answer."""
    found = state.granted.get(request_id)
    if found is None:
        return
    grant, replica = found
    if replica.ledger.start(request_id) is not None:
        replica.speed.take_first_token(grant, now)
        health.began(replica, request_id, now)
        fill_replica(state, replica, now=now, out=out)


def progressed(state: State, event: Progressed, *, now: float, out: list[Decision]) -> None:
    """Running requests produced so many tokens: charge what outgrew its estimate."""
    replica = state.replicas.get(event.replica)
    if replica is None:
        return
    kv_before = replica.ledger.kv_tokens
    replica.held = event.held
    for grant in replica.ledger.produced(event.output_tokens):
        waiting = grant.waiting
        due = cost.produced(
            state.policy, waiting.request, waiting.prompt_tokens, grant.output_tokens
        )
        if due > grant.charged:
            state.charge(grant, due * CHARGE_AHEAD)
    if replica.ledger.kv_tokens != kv_before:
        replica.ledger.note(now)
    if event.heard_at is not None and health.heard(replica, event.heard_at, now):
        fill_replica(state, replica, now=now, out=out)
    else:
        state.touch(replica)


def finished(state: State, event: Finished, *, now: float, out: list[Decision]) -> None:
    """A request ended: granted, or still waiting. Legal in every state, and idempotent."""
    request_id = event.request_id
    found = state.granted.pop(request_id, None)
    if found is None:
        waiting = state.waiting.get(request_id)
        if waiting is not None:
            state.dequeue(waiting, now)
            if state.caps.count:
                unhold(state, waiting.request, now=now, out=out)
            fill_behind(state, waiting, now=now, out=out)
        return
    grant, replica = found
    in_use = (grant.in_use + replica.occupied) / 2
    replica.ledger.leave(request_id, now)
    health.ended(state, grant, replica, event, now=now)
    if event.outcome is Outcome.DONE:
        _learn_end(state, grant, replica, event, in_use=in_use, now=now)
    replica.busy_until = 0.0
    replica.release_rate.add(now)
    _settle(state, grant, replica, event, now=now)
    if replica.is_removed:
        forget_if_gone(state, replica)
    state.touch(replica)
    _ran(state, grant.waiting.request, now=now, out=out)
    fill_replica(state, replica, now=now, out=out)


def _ran(state: State, request: Request, *, now: float, out: list[Decision]) -> None:
    """A request runs no longer: whoever has a cap on it has room again."""
    if request.caps:
        state.caps.leave(request)
        if state.caps.count:
            unhold(state, request, now=now, out=out)


def _learn_end(
    state: State, grant: Grant, replica: Replica, event: Finished, *, in_use: float, now: float
) -> None:
    """What the end of a request says of its replica's speed, with `in_use` there on average."""
    replica.limit.ended(replica.occupied)
    if event.tpot_s is not None:
        tokens = event.usage.output_tokens if event.usage is not None else TPOT_TOKENS_MIN
        target_s = state.policy.tiers[0].tpot_limit_ms / 1e3
        replica.take_tpot(event.tpot_s, tokens, in_use=in_use, now=now, target_s=target_s)
    if not grant.slots:
        replica.speed.take_first_token(grant, now)


def _settle(state: State, grant: Grant, replica: Replica, event: Finished, *, now: float) -> None:
    waiting = grant.waiting
    request, usage = waiting.request, event.usage
    if usage is None:
        output_tokens = grant.output_tokens
        if event.outcome is Outcome.DONE and not output_tokens:
            output_tokens = waiting.output_tokens * request.sequences
        usage = Usage(prompt_tokens=waiting.prompt_tokens, output_tokens=output_tokens)
    else:
        if event.outcome is Outcome.DONE and not request.is_continuation:
            state.predictor.learn(request, usage)
        if not usage.prompt_tokens:
            usage = replace(usage, prompt_tokens=waiting.prompt_tokens)
    prefilled = 1.0
    if event.outcome is Outcome.CANCELLED:
        prefilled = replica.speed.prefilled_share(grant, now)
    outcome = Outcome.DONE if event.goes_on else event.outcome
    actual = cost.settled(state.policy, request, outcome, usage=usage, prefilled=prefilled)
    state.charge(grant, actual)


def bounced(state: State, request_id: str, *, now: float, out: list[Decision]) -> None:
    """The engine was busy: back to the queue, and a lesson for the limit."""
    found = state.granted.get(request_id)
    if found is None:
        return
    _, replica = found
    replica.limit.busy(replica.occupied - 1)
    replica.busy_until = now + BUSY_REST_S
    state.wake_by(replica.busy_until)
    _go_back(state, request_id, now=now, out=out)


def recalled(state: State, request_id: str, *, now: float, out: list[Decision]) -> None:
    """A recall came in time: back to the queue, with the whole charge refunded."""
    if request_id in state.granted:
        _go_back(state, request_id, now=now, out=out)


def kept(state: State, request_id: str) -> None:
    """A recall came too late: the request stays where it is."""
    found = state.granted.get(request_id)
    if found is not None:
        found[0].is_recalled = False


def _go_back(state: State, request_id: str, *, now: float, out: list[Decision]) -> None:
    grant, replica = state.granted.pop(request_id)
    waiting = grant.waiting
    request = waiting.request
    replica.ledger.leave(request_id, now)
    health.went_back(replica, request_id)
    state.charge(grant, 0.0)
    if request.caps:
        state.caps.leave(request)
    forget_if_gone(state, replica)
    pool = state.pool_by_model.get(request.model)
    if pool is not None:
        waiting.kind = pool.kind_of(request, waiting.kv_tokens)
    if pool is None or not may_wait(pool, waiting.kind):
        refuse(state, request, Reason.NO_REPLICA, now=now, out=out)
    else:
        state.enqueue(pool, waiting, now)
    fill_all(state, now=now, out=out)
    if state.caps.count:
        unhold(state, request, now=now, out=out)
    if state.is_closed and waiting.ticket:
        evict(state, waiting, Reason.SHUTTING_DOWN, now=now, out=out)


def may_wait(pool: Pool, kind: Kind) -> bool:
    """Whether some replica can take it, or may come back: what was let in is not thrown away."""
    return any(not pool.replicas[name].is_removed for name in kind.replicas)


def adopted(state: State, event: Adopted, *, now: float) -> None:
    """A request that runs already enters the books as if it had been granted here."""
    request, replica = event.request, state.replicas.get(event.replica)
    pool = state.pool_by_model.get(request.model)
    if replica is None or pool is None or request.id in state.granted:
        return
    waiting = weigh(pool, state.predictor, request, sequence=state.number())
    sequences = request.sequences
    if replica.slots is not None:
        sequences = min(sequences, replica.slots)
    grant = Grant(waiting, sequences=sequences, cached_tokens=0, granted_at=now - event.running_s)
    replica.ledger.enter(grant, now)
    if event.is_started:
        replica.ledger.start(request.id)
    replica.ledger.produced({request.id: event.output_tokens})
    state.granted[request.id] = (grant, replica)
    state.caps.enter(request)
    if state.policy.release_at_once:
        grant.charged = 0.0
    elif pool.count:
        pool.settle(request, grant.charged, tier=grant.tier, was_favoured=False)
    else:
        # Virtual time goes with it: what runs elsewhere for hours must not become a debt.
        pool.pass_by(waiting)
    pool.saw(request.tier, now)
    state.touch(replica)


def disowned(state: State, request_id: str, *, now: float, out: list[Decision]) -> None:
    """A granted request leaves the books, and takes no load off its replica by that."""
    found = state.granted.pop(request_id, None)
    if found is None:
        finished(state, Finished(request_id, Outcome.CANCELLED), now=now, out=out)
        return
    grant, replica = found
    replica.ledger.leave(request_id, now)
    health.went_back(replica, request_id)
    report = replica.report
    if report is not None and report.running is not None and not replica.is_stale:
        replica.foreign += grant.sequences
        replica.sightings.add_foreign(grant.sequences)
    forget_if_gone(state, replica)
    state.touch(replica)
    _ran(state, grant.waiting.request, now=now, out=out)
    fill_replica(state, replica, now=now, out=out)  # what tells of nobody has room for one more


def forget_if_gone(state: State, replica: Replica) -> None:
    """A replica that is no longer configured is forgotten once its last grant has ended."""
    if replica.is_removed and not replica.ledger.grants:
        state.replicas.pop(replica.name, None)
        state.regroup()
