"""The release gate and the order, once more, by definition: was a choice allowed, was it right?

It adds up grants one by one and looks at everything that waits, where the scheduler keeps sums,
caches and heaps. What it takes over from the scheduler are beliefs about an engine (slots, foreign
load, speeds) and the tags of the flows; what it derives again is all that follows from them.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from gateway.core.fairqueue import FairQueue
from gateway.core.flows import Waiting
from gateway.core.ledger import Grant
from gateway.core.placement import Choice
from gateway.core.pool import Pool
from gateway.core.replica import Replica

OVERTAKING_TOKENS_MAX = 16_384
"""What may go before the first request of a user for its cached prefix."""

Choose = Callable[[Pool, list[Replica], float], Choice | None]


class Engine:
    """What one replica holds, added up grant by grant."""

    def __init__(self, pool: Pool, replica: Replica) -> None:
        self.pool = pool
        self.replica = replica
        grants = replica.ledger.grants.values()
        fresh = [each for each in grants if not each.is_started]
        own = sum(each.sequences for each in grants if each.waiting.kind.decodes)
        self.held = own + replica.foreign
        self.unstarted = sum(each.sequences for each in fresh if each.waiting.kind.decodes)
        self.prefill_tokens = sum(
            each.waiting.prompt_tokens - each.cached_tokens for each in fresh
        )  # fmt: skip

    def waits(self) -> int:
        """Estimate of what waits inside it."""
        replica = self.replica
        if replica.slots is None:
            return max(0, min(self.unstarted, self.held - replica.sightings.proven_sequences))
        capacity = replica.kv_capacity_tokens
        if capacity is not None and replica.kv_tokens > capacity:
            return max(self.unstarted, self.held - replica.slots)
        return max(0, self.held - replica.slots)

    def makes_way(self, rank: int) -> list[Grant]:
        """What ends, or waits inside it for longer, when a request of tier `rank` comes."""
        if not self.replica.orders_by_tier:
            return []
        tiers = self.pool.policy.tiers
        return [
            each
            for each in self.replica.ledger.grants.values()
            if each.tier > rank
            and tiers[each.tier].preemptible
            and not (each.waiting.request.streams or each.was_favoured)
        ]

    def makes_way_slots(self, rank: int) -> int:
        """The slots of these."""
        return sum(each.sequences for each in self.makes_way(rank) if each.waiting.kind.decodes)

    def allowance(self, tier: int, now: float) -> int:
        """What `tier` may leave waiting inside it."""
        policy, replica = self.pool.policy, self.replica
        limit = min(each.queue_limit for each in policy.tiers[: tier + 1])
        if policy.allowance == "constant" or limit <= 1:
            return limit
        bridged_s = replica.round_trip_s + replica.speed.step_s
        bridged = math.ceil(replica.release_rate.per_s(now) * bridged_s - 1e-9)
        return min(limit, max(1, bridged))

    def limit(self) -> float:
        """Most sequences in it, whatever its slots."""
        policy = self.pool.policy
        limit = math.inf if policy.inflight_limit is None else float(policy.inflight_limit)
        return min(limit, self.replica.limit.limit) if policy.limiter == "adaptive" else limit

    def away(self, tier: int, now: float) -> int:
        """Slots kept from `tier`."""
        slots = self.replica.slots
        if slots is None:
            return 0
        return min(slots - 1, math.ceil(reserved(self.pool, tier, now) * slots - 1e-9))


def objection(
    pool: Pool, replica: Replica, waiting: Waiting, *, tier: int, now: float
) -> str | None:
    """Why this request may not go there by the gates of `tier`; None: it may."""
    request, kind = waiting.request, waiting.kind
    if replica.is_lost or replica.is_draining or replica.is_removed:
        return "unusable"
    if request.model not in replica.models or replica.name in request.excluded:
        return "elsewhere"
    if request.only not in (None, replica.name):
        return "elsewhere"
    if now < replica.busy_until:
        return "busy"
    if not (pool.policy.release_at_once or replica.circuit.lets(now)):
        return "tripped"
    other = replica.reserved_for
    if other not in (None, waiting) and other.ticket and now < replica.reserved_until:
        rank, elders = other.request.tier, pool.elders
        is_owed = pool.floors.is_owed(rank, other.cost)
        if rank <= request.tier or is_owed or (elders and elders.is_aged(other, now)):
            return "reserved"
    engine = Engine(pool, replica)
    if not pool.policy.release_at_once and kind.decodes:
        shut = _gate(engine, tier, now, rank=request.tier)
        if shut is not None:
            return shut
    return _size(engine, waiting, tier, now)


def _gate(engine: Engine, tier: int, now: float, *, rank: int) -> str | None:
    """What shuts the gate of `tier` to an ordinary request, which is of tier `rank`."""
    replica, policy = engine.replica, engine.pool.policy
    waits, allowance, held, slots = (
        engine.waits(), engine.allowance(tier, now), engine.held, replica.slots,
    )  # fmt: skip
    free = engine.makes_way_slots(rank)
    waits = max(0, waits - free)
    is_full = slots is not None and held - free >= slots
    if (waits or (is_full and allowance == 0)) and waits >= allowance:
        return "queue"
    if held == 0:
        return None
    away = engine.away(tier, now)
    if slots is not None and away and held - free >= slots - away:
        return "headroom"
    limit_s = min(each.tpot_limit_ms for each in policy.tiers[: tier + 1]) / 1e3
    if (
        replica.speed.tpot_s is not None
        and held >= policy.min_inflight
        # With so many fewer than when it was measured it is fast enough.
        and (held + 1) * replica.speed.tpot_s > replica.speed.tpot_in_use * limit_s
    ):
        silent_s = max(0.0, now - replica.speed.tpot_at)
        if (replica.speed.tpot_s - limit_s) * 0.5 ** (silent_s / 5.0) > 0.02 * limit_s:
            return "speed"
    if held + 1 > engine.limit():
        return "limit"
    if now < replica.warm_until:
        share = (now - replica.warm_from) / (replica.warm_until - replica.warm_from)
        if held >= max(1.0, share * (slots or replica.sightings.proven_sequences or 1)):
            return "warm-up"
    return None


def _size(engine: Engine, waiting: Waiting, tier: int, now: float) -> str | None:
    """What keeps off this request for its size."""
    replica, pool, request = engine.replica, engine.pool, waiting.request
    cached = min(waiting.prompt_tokens, replica.cache.cached_tokens(request.prefix))
    if engine.prefill_tokens:
        tokens = engine.prefill_tokens + waiting.prompt_tokens - cached
        limit_s = min(each.prefill_limit_s for each in pool.policy.tiers[: tier + 1])
        if tokens / replica.speed.prefill_rate > limit_s + 1e-9:
            return "prefill"
    if not waiting.kind.decodes or engine.held == 0:
        return None
    capacity = replica.kv_capacity_tokens
    if capacity is not None:
        share = 1.0 - reserved(pool, tier, now)
        held = sum(each.kv_tokens for each in engine.makes_way(request.tier)) * replica.kv_share
        if replica.kv_tokens - held + waiting.kv_tokens - cached > capacity * share + 1e-6:
            return "kv"
    slots, sequences = replica.slots, request.sequences
    if sequences > 1 and engine.held + min(sequences, slots or sequences) > engine.limit():
        return "limit"
    if slots is not None and sequences > 1:
        away = engine.away(tier, now)
        spare = 0 if away else engine.allowance(tier, now)
        claimed = engine.held - engine.makes_way_slots(request.tier)
        if claimed + min(sequences, slots) > slots - away + spare:
            return "sequences"
    return None


def reserved(pool: Pool, tier: int, now: float) -> float:
    """Share kept from `tier`: the headroom of every active tier above, or of all of them."""
    policy = pool.policy
    last = len(policy.tiers) - 1
    shares = 0.0
    for rank in range(tier if last else 0):
        seen = pool._last_seen[rank]
        if not policy.lend or (seen is not None and now - seen <= policy.hold_s):
            shares += policy.headroom_max * math.exp(-2.5 / last * rank)
    return shares


# --- the order --------------------------------------------------------------------------------


def judged(choose: Choose) -> Choose:
    """`choose`, with every answer judged before it is given."""

    def choose_judged(pool: Pool, replicas: list[Replica], now: float) -> Choice | None:
        known = list(replicas)
        choice = choose(pool, known, now)
        if choice is None:
            for tier, head in eligible(pool, known, now):
                raise AssertionError(f"{head.request.id} of {tier} fits, and nothing was chosen")
            return None
        judge_order(pool, known, choice, now)
        waiting, replica = choice.waiting, choice.replica
        is_favoured = choice.is_owed or choice.is_aged
        tier = 0 if is_favoured else waiting.request.tier
        shut = objection(pool, replica, waiting, tier=tier, now=now)
        assert shut is None, f"{waiting.request.id} was put on {replica.name} despite {shut}"
        return choice

    return choose_judged


def eligible(pool: Pool, replicas: Iterable[Replica], now: float) -> Iterator[tuple[int, Waiting]]:
    """(tier, request): all first of their class that may go to one of `replicas` as they are."""
    known = list(replicas)
    for tier, queue in enumerate(pool.queues):
        for head in heads(queue):
            if any(objection(pool, each, head, tier=tier, now=now) is None for each in known):
                yield tier, head


def overdue(
    pool: Pool, looked_at: Mapping[str, float], now: float
) -> Iterator[tuple[Waiting, Replica]]:
    """(request, replica): all that could have gone when the replica was last looked at.

    A gate that time alone has opened since is looked at again when the scheduler wakes.
    """
    for tier, queue in enumerate(pool.queues):
        for head in heads(queue):
            for replica in pool.replicas.values():
                is_due = now < replica.fresh_until or replica.is_stale
                since = min(replica.judged_at, looked_at.get(replica.name, replica.judged_at))
                if is_due and all(
                    objection(pool, replica, head, tier=tier, now=at) is None for at in (since, now)
                ):
                    yield head, replica


def heads(queue: FairQueue) -> Iterator[Waiting]:
    """The first of each class, after a look whether it is; among equals either may be."""
    waiting = list(queue)
    for kind in {each.kind: None for each in waiting}:
        head = queue.head(kind)
        assert head is not None, "a class waits and has no head"
        for other in waiting:
            if other.kind is kind and ranks_before(queue, other, head):
                raise AssertionError(f"{other.request.id} is behind {head.request.id}")
        yield head


def ranks_before(queue: FairQueue, one: Waiting, other: Waiting) -> bool:
    """Whether `one` ranks strictly before `other`: by tenant, by user, by the user's own order."""
    a, b = one.request, other.request
    if a.is_continuation or b.is_continuation:
        if a.is_continuation and b.is_continuation:
            return one.order < other.order
        return a.is_continuation
    if a.tenant != b.tenant:
        return queue.tenants[a.tenant].start < queue.tenants[b.tenant].start
    users = queue.tenants[a.tenant].users
    if a.user != b.user:
        return users[a.user].start < users[b.user].start
    return one.order < other.order


def judge_order(pool: Pool, replicas: Sequence[Replica], choice: Choice, now: float) -> None:
    """Nobody who could have gone instead ranks before the chosen one."""
    chosen, tier = choice.waiting, choice.waiting.request.tier
    name, queue = chosen.request.id, pool.queues[choice.waiting.request.tier]
    if choice.is_aged:
        _judge_age(pool, choice, now)
        return
    by_prefix = pool.policy.within_user == "prefix"
    for other in queue:
        if other.kind is chosen.kind and not (by_prefix and _is_of_one_user(other, chosen)):
            assert not ranks_before(queue, other, chosen), f"{name} overtook its own class"
    if by_prefix:
        _judge_prefix(choice)
    if choice.is_owed:
        deficit = pool.floors.deficits[tier]
        assert deficit >= chosen.cost * (1.0 - 1e-6), f"{name} was not owed the floor: {deficit}"
        return
    for rank, passed in eligible(pool, replicas, now):
        if rank == tier:
            is_own = by_prefix and _is_of_one_user(passed, chosen)
            is_before = not is_own and ranks_before(queue, passed, chosen)
        elif pool.shares is None:
            is_before = rank < tier
        else:
            is_before = pool.shares.starts[rank] < pool.shares.starts[tier]
        assert not is_before, f"{name} of {tier} overtook {passed.request.id} of {rank}"


def _is_of_one_user(one: Waiting, other: Waiting) -> bool:
    a, b = one.request, other.request
    return (a.tenant, a.user) == (b.tenant, b.user)


def _judge_age(pool: Pool, choice: Choice, now: float) -> None:
    request, after_s = choice.waiting.request, pool.policy.ageing.after_s
    assert after_s is not None, "nobody ages under this policy"
    assert request.tier > 0, f"{request.id} was promoted from the first tier"
    assert now - request.arrived_at >= after_s, f"{request.id} is too young to be promoted"
    for queue in pool.queues[1:]:
        for other in queue:
            if other.kind is choice.waiting.kind:
                is_older = other.request.arrived_at < request.arrived_at
                assert not is_older, f"{other.request.id} is older than {request.id}"


def _judge_prefix(choice: Choice) -> None:
    """Whoever is not the first of its user must have more of its prompt cached there."""
    chosen, lane = choice.waiting, choice.waiting.lane
    assert lane is not None
    first = min(lane.requests, key=lambda each: each.order, default=chosen)
    if first is chosen or chosen.request.is_continuation:
        return
    warmth = choice.replica.cache
    mine = warmth.cached_tokens(chosen.request.prefix)
    theirs = warmth.cached_tokens(first.request.prefix)
    assert mine > theirs, f"{chosen.request.id} overtook without a warmer prefix"
    assert lane.overtaken < OVERTAKING_TOKENS_MAX, f"{chosen.request.id} overtook for too long"
