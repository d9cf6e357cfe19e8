"""Brute force against the scheduler's own choice: was it allowed, was it the right one?

It looks at everything that waits, one by one, where the scheduler looks at the tops of heaps.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from gateway.core.fairqueue import FairQueue, Waiting
from gateway.core.gate import unfit_by
from gateway.core.placement import Choice
from gateway.core.pool import Pool
from gateway.core.replica import Replica

Choose = Callable[[Pool, Sequence[Replica], float], Choice | None]


def judged(choose: Choose) -> Choose:
    """`choose`, with every answer judged before it is given."""

    def choose_judged(pool: Pool, replicas: Sequence[Replica], now: float) -> Choice | None:
        choice = choose(pool, replicas, now)
        if choice is None:
            idle = list(eligible(pool, replicas, now))
            assert not idle, f"{idle[0].request.id} fits, and nothing was chosen"
            return None
        _judge_order(pool, replicas, choice, now)
        _judge_capacity(pool, choice, now)
        return choice

    return choose_judged


def eligible(pool: Pool, replicas: Iterable[Replica], now: float) -> Iterator[Waiting]:
    """All that is first of its class and could go to one of `replicas` by its own tier's gates."""
    known = list(replicas)
    for tier, queue in enumerate(pool.queues):
        for head in _heads(queue):
            if any(_takes(pool, replica, head, tier, now) for replica in known):
                yield head


def ranks_before(queue: FairQueue, one: Waiting, other: Waiting) -> bool:
    """Whether `one` ranks strictly before `other`: by tenant, by user, by arrival."""
    a, b = one.request, other.request
    if a.tenant != b.tenant:
        return queue.tenants[a.tenant].start < queue.tenants[b.tenant].start
    users = queue.tenants[a.tenant].users
    if a.user != b.user:
        return users[a.user].start < users[b.user].start
    return one.order < other.order


def _heads(queue: FairQueue) -> Iterator[Waiting]:
    """The first of each class, after a look whether it is; among equals either may be."""
    waiting = list(queue)
    for kind in {each.kind: None for each in waiting}:
        head = queue.head(kind)
        assert head is not None, f"{kind} waits and has no head"
        for other in waiting:
            if other.kind == kind and ranks_before(queue, other, head):
                raise AssertionError(f"{other.request.id} is behind {head.request.id}")
        yield head


def _takes(pool: Pool, replica: Replica, waiting: Waiting, tier: int, now: float) -> bool:
    reserved = pool.reserved(now)
    judge = pool.policy.tiers[tier]
    return (
        # A gate that time alone may have opened since is looked at when the scheduler wakes.
        tier < (replica.open_tiers or 0)
        and replica.may_serve(waiting.request)
        and unfit_by(waiting, replica, judge, reserved=reserved[tier]) is None
    )


def _judge_order(pool: Pool, replicas: Sequence[Replica], choice: Choice, now: float) -> None:
    chosen, tier = choice.waiting, choice.waiting.request.tier
    name = chosen.request.id
    queue = pool.queues[tier]
    for other in queue:
        if other.kind == chosen.kind:
            assert not ranks_before(queue, other, chosen), f"{name} overtook its own class"
    if choice.is_owed:
        deficit = pool.floors.deficits[tier]
        assert deficit >= chosen.cost, f"{name} was not owed the floor: {deficit}"
        return
    for passed in eligible(pool, replicas, now):
        rank = passed.request.tier
        assert rank >= tier, f"{name} overtook {passed.request.id} of a higher tier"
        if rank == tier:
            overtaken = ranks_before(queue, passed, chosen)
            assert not overtaken, f"{name} overtook {passed.request.id}"


def _judge_capacity(pool: Pool, choice: Choice, now: float) -> None:
    waiting, replica, policy = choice.waiting, choice.replica, pool.policy
    name = waiting.request.id
    tier = 0 if choice.is_owed else waiting.request.tier
    limit = policy.tiers[tier].queue_limit
    grants = list(replica.ledger.grants.values())
    held = sum(grant.sequences for grant in grants) + replica.foreign
    unstarted = [grant for grant in grants if not grant.is_started]
    assert replica.may_serve(waiting.request), f"{name} cannot run on {replica.name}"
    assert now >= replica.busy_until, f"{name} was put on a busy replica"
    if held == 0:
        return
    sequences = waiting.request.sequences
    if replica.slots is not None:
        sequences = min(sequences, replica.slots)
        reserve = _slot_reserve(pool, tier, replica.slots, now)
        room = replica.slots - reserve + (limit if reserve == 0 else 0)
        assert held + sequences <= room, f"{name} went beyond the slots: {held}/{room}"
    else:
        open_ended = sum(grant.sequences for grant in unstarted)
        beyond = min(open_ended, held - replica.proven_sequences)
        assert beyond <= 0 or beyond < limit, f"{name} went beyond the unstarted allowance"
    kv_tokens = replica.kv_tokens + waiting.kv_tokens
    if replica.kv_capacity_tokens is not None:
        share = 1.0 - _reserved(pool, tier, now)
        assert kv_tokens <= replica.kv_capacity_tokens * share, f"{name} does not fit the KV"
    prompts = sum(grant.waiting.prompt_tokens for grant in unstarted)
    if prompts:
        seconds = (prompts + waiting.prompt_tokens) / replica.prefill_rate
        assert seconds <= policy.tiers[tier].prefill_limit_s, f"{name} queues up prefill"


def _reserved(pool: Pool, tier: int, now: float) -> float:
    """The definition: the headroom of every active tier above, or of all of them."""
    policy = pool.policy
    last = max(1, len(policy.tiers) - 1)
    shares = 0.0
    for rank in range(tier if len(policy.tiers) > 1 else 0):
        seen = pool._last_seen[rank]
        if not policy.lend or (seen is not None and now - seen <= policy.hold_s):
            shares += policy.headroom_max * math.exp(-2.5 / last * rank)
    return shares


def _slot_reserve(pool: Pool, tier: int, slots: int, now: float) -> int:
    return min(slots - 1, math.ceil(_reserved(pool, tier, now) * slots - 1e-9))
