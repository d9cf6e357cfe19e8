"""Derives every sum and index of the scheduler again and compares: for tests and simulators.

O(everything) for each call, so never on a hot path. It judges whether the books agree with one
another and with what was judged last; it does not judge whether the decisions were right.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable

from gateway.core.caps import Holder
from gateway.core.fairqueue import FairQueue
from gateway.core.flows import Flow, Lane, WaitHeap, Waiting
from gateway.core.freeness import freeness
from gateway.core.kinds import Kind
from gateway.core.ledger import Grant, Ledger
from gateway.core.pool import Pool
from gateway.core.replica import Replica
from gateway.core.state import State
from gateway.core.tally import Tally
from gateway.core.waitroom import WaitingRoom


def check(state: State) -> None:
    """Raise AssertionError naming the first sum or index that is off; else do nothing."""
    _check_pools(state)
    for pool in state.pools:
        _check_pool(pool)
    _check_waiting(state)
    _check_caps(state)
    _check_grants(state)
    for replica in state.replicas.values():
        _check_ledger(replica.ledger, len(state.policy.tiers), replica.name)
        _check_replica(replica, state.pool_by_replica.get(replica.name))
        is_asked = replica.name in state.drained or replica.is_removed
        assert is_asked or not replica.is_draining, f"{replica.name} is drained by nobody"
    for pool in state.pools:
        check_ranking(pool)


def _same(found: object, derived: object, what: str) -> None:
    assert found == derived, f"{what}: kept {found!r}, derived {derived!r}"


def _close(found: float, derived: float, what: str) -> None:
    is_close = math.isclose(found, derived, rel_tol=1e-6, abs_tol=1e-6)
    assert is_close, f"{what}: kept {found!r}, derived {derived!r}"


# --- pools ------------------------------------------------------------------------------------


def _check_pools(state: State) -> None:
    models = Counter(model for pool in state.pools for model in pool.models)
    assert not models or max(models.values()) == 1, "pools: a model is in two of them"
    _same(set(state.pool_by_model), set(models), "pools: models that can be looked up")
    for model, pool in state.pool_by_model.items():
        assert model in pool.models, f"pools: {model} is looked up in a stranger"
    for pool in state.pools:
        served = {
            name: replica
            for name, replica in state.replicas.items()
            if replica.models & pool.models
        }
        _same(pool.replicas, served, "pools: replicas")
        for name in served:
            assert state.pool_by_replica[name] is pool, f"pools: {name} is looked up in a stranger"
    placed = sum(len(pool.replicas) for pool in state.pools)
    _same(len(state.pool_by_replica), placed, "pools: replicas that can be looked up")
    for replica in state.replicas.values():
        is_gone = replica.is_removed and not replica.ledger.grants
        assert not is_gone, f"pools: {replica.name} is removed, idle, and still known"


def _check_pool(pool: Pool) -> None:
    tiers = len(pool.policy.tiers)
    for kept in (pool.queues, pool.floors.deficits, pool.forecasts, pool.headroom):
        _same(len(kept), tiers, "pool: tiers")
    waiting = [each for queue in pool.queues for each in queue]
    _same(pool.count, len(waiting), "pool: count")
    _same(pool.drain_rate.is_running, bool(waiting), "pool: its drain is measured")
    slotless = sum(not each.kind.decodes for each in waiting)
    _same(pool.slotless, slotless, "pool: waiting without need of a slot")
    for tier, queue in enumerate(pool.queues):
        _check_queue(queue)
        for each in queue:
            _same(each.request.tier, tier, "pool: tier of a waiting request")
    for name, replica in pool.open.items():
        assert pool.replicas.get(name) is replica, f"pool: {name} is open and a stranger"
    for name, replica in pool.replicas.items():
        is_listed = name in pool.open or replica.open_tiers == 0
        assert is_listed, f"pool: {name} is not looked at, and was not judged shut"
    for each in waiting:
        _check_kind(pool, each)
    _check_elders(pool, waiting)
    _check_shares(pool)


def check_ranking(pool: Pool) -> None:
    """Raise AssertionError where the order of the replicas is not that of their freeness."""
    ranking = pool._ranking
    for name, replica in pool.replicas.items():
        is_bridging = bool(replica.open_tiers) and replica.has_queue
        assert is_bridging <= (name in ranking.bridging), f"ranking: time may shut {name} unseen"
    for tier, free in enumerate(ranking._freeness):
        unranked, winners = ranking.unranked(tier), ranking._winners[tier]
        _same(len(unranked), len(set(unranked)), "ranking: looked up anew once each")
        for match in range(len(free) - 1, 0, -1):
            one, other = winners[2 * match], winners[2 * match + 1]
            best = min((-free[one], one), (-free[other], other))[1]
            _same(winners[match], best, "ranking: a winner")
        for name, replica in pool.replicas.items():
            assert ranking._replicas[replica.place] is replica, f"ranking: the place of {name}"
            is_ranked = bool(replica.ranked >> tier & 1)
            _same(is_ranked, replica not in unranked, f"ranking: whether {name} is known")
            if is_ranked:
                open_tiers = replica.open_tiers
                assert open_tiers is not None, f"ranking: {name} changed unseen"
                is_open = open_tiers > tier
                found = freeness(replica, pool.headroom, tier) if is_open else -math.inf
                _same(free[replica.place], found, f"ranking: freeness of {name}")


def _check_kind(pool: Pool, waiting: Waiting) -> None:
    request, kind = waiting.request, waiting.kind
    fitting = {
        replica.name
        for replica in pool.replicas.values()
        if request.model in replica.models and request.only in (None, replica.name)
    }
    _same(kind.replicas, fitting - request.excluded, f"class of {request.id}: replicas")
    _same(kind.sequences, request.sequences, f"class of {request.id}: sequences")
    _same(kind.decodes, request.output_tokens_max != 0, f"class of {request.id}: decodes")


def _check_elders(pool: Pool, waiting: Iterable[Waiting]) -> None:
    if pool.elders is None:
        return
    by_kind = _by_kind(each for each in waiting if each.request.tier > 0)
    heaps = pool.elders._by_kind
    _same(set(heaps), set(by_kind), "elders: classes")
    for kind, heap in heaps.items():
        keys = {each: each.request.arrived_at for each in by_kind[kind]}
        _check_wait_heap(heap, keys, "elders")


def _check_shares(pool: Pool) -> None:
    shares = pool.shares
    assert (shares is not None) == (pool.policy.order == "weighted"), "shares: of another order"
    if shares is None:
        return
    for start, entered in zip(shares.starts, shares._entered, strict=True):
        assert start >= entered, "shares: a tier was refunded below its start"
        assert entered <= shares.virtual, "shares: a tier entered after virtual time"


# --- queues -----------------------------------------------------------------------------------


def _check_queue(queue: FairQueue) -> None:
    waiting = list(queue)
    _same(queue.count, len(waiting), "queue: count")
    _same(queue.kv_tokens, sum(each.kv_tokens for each in waiting), "queue: KV tokens")
    if waiting and queue._head_costs is not None:
        kept, queue._head_costs = queue._head_costs, None
        _same(kept, queue.head_costs(), "queue: costs of the heads")
    for name, tenant in queue.tenants.items():
        _same(tenant.name, name, "tenant: name")
        assert tenant.start >= tenant.entered, "tenant: refunded below its start"
        _check_tenant(tenant)
    tenants = list(queue.tenants.values())
    users = [user for tenant in tenants for user in tenant.users.values()]
    _same(queue.count, sum(each.count for each in tenants), "queue: by tenant")
    _same(queue.active_users, sum(user.count > 0 for user in users), "queue: active users")
    weight = sum(each.weight for each in tenants if each.count)
    _close(queue.active_weight, weight, "queue: weights of the active tenants")
    _same(set(queue.classes), {each.kind for each in waiting}, "queue: classes")
    for kind, root in queue.classes.items():
        _check_root(queue, root, kind)
    _check_front(queue, waiting)
    _check_heaviest(queue)


def _check_tenant(tenant: Flow) -> None:
    users = list(tenant.users.values())
    _same(tenant.count, sum(user.count for user in users), "tenant: count")
    weight = sum(user.weight for user in users if user.count)
    _close(tenant.active_weight, weight, "tenant: weights of the active users")
    for user in users:
        assert user.start >= user.entered, "user: refunded below its start"
        in_lanes = [each for lane in user.lanes.values() for each in lane.requests]
        _close(user.cost, sum(each.cost for each in in_lanes), "user: cost")
        _same(user.count, sum(lane.count for lane in user.lanes.values()), "user: count")
    _same(tenant.count, sum(lane.count for lane in tenant.lanes.values()), "tenant: by class")


def _check_root(queue: FairQueue, root: Lane, kind: Kind) -> None:
    assert root.flow is None, "lanes: a root belongs to nobody"
    total = 0
    for tenant, lane in root.lanes.items():
        assert queue.tenants.get(tenant.name) is tenant, "lanes: a tenant nobody knows"
        _check_lane(lane, tenant, root, kind)
        below = 0
        for user, own in lane.lanes.items():
            assert tenant.users.get(user.name) is user, "lanes: a user nobody knows"
            _check_lane(own, user, lane, kind)
            _check_requests(queue, own)
            below += own.count
        _same(lane.count, below, "lanes: count of a tenant's lane")
        total += lane.count
    _same(root.count, total, "lanes: count of a class")


def _check_lane(lane: Lane, flow: Flow, parent: Lane, kind: Kind) -> None:
    assert lane.flow is flow, "lanes: of another flow"
    assert lane.parent is parent, "lanes: under another parent"
    assert lane.kind is kind, "lanes: of another class"
    assert flow.lanes.get(kind) is lane, "lanes: its flow does not know it"
    assert lane.count > 0, "lanes: an empty one is still listed"
    listed = [entry for entry in parent.heap if entry[2] is lane and entry[0] == lane.listed_at]
    assert listed, "lanes: not in its parent's heap"
    assert lane.listed_at <= flow.start, "lanes: listed behind its flow's tag"
    _check_heap([entry[:2] for entry in parent.heap], "lanes")


def _check_requests(queue: FairQueue, lane: Lane) -> None:
    plain = list(lane.requests)
    _check_wait_heap(lane.requests, {each: each.key for each in plain}, "lane")
    in_front = [each for each in queue.front.get(lane.kind, ()) if each.lane is lane]
    _same(lane.count, len(plain) + len(in_front), "lanes: count of a user's lane")
    for each in plain:
        assert each.lane is lane, "lanes: a request believes it is elsewhere"
        assert each.kind is lane.kind, "lanes: a request of another class"
        last = lane.last
        assert last is not None, "lanes: the last is not known"
        assert each.order <= last.order, "lanes: a request behind the last"
    assert (lane.groups is not None) == queue._by_prefix, "groups: of another order"
    if lane.groups is not None:
        grouped: dict[int, list[Waiting]] = {}
        for each in plain:
            prefix = each.request.prefix
            grouped.setdefault(prefix[0] if prefix else 0, []).append(each)
        _same(set(lane.groups), set(grouped), "groups: first blocks")
        for first, heap in lane.groups.items():
            _check_wait_heap(heap, {each: each.key for each in grouped[first]}, "groups")


def _check_front(queue: FairQueue, waiting: Iterable[Waiting]) -> None:
    by_kind = _by_kind(each for each in waiting if each.request.is_continuation)
    _same(set(queue.front), set(by_kind), "front: classes")
    for kind, heap in queue.front.items():
        _check_wait_heap(heap, {each: each.key for each in by_kind[kind]}, "front")


def _check_heaviest(queue: FairQueue) -> None:
    heavy = queue._heavy
    if heavy is None:
        return
    for tenant in queue.tenants.values():
        for user in tenant.users.values():
            if user.count:
                bound = -user.cost / (user.weight * tenant.weight)
                assert (tenant, user) in heavy, "heaviest: somebody who waits is not in it"
                is_bound = heavy.key_of((tenant, user)) <= bound + 1e-6
                assert is_bound, "heaviest: somebody is heavier than is known"


def _check_wait_heap(heap: WaitHeap, keys: dict[Waiting, float], what: str) -> None:
    """All of `keys`, and nobody else, are in `heap`, each by its key and present ticket."""
    alive = [entry for entry in heap.entries if entry[3].ticket == entry[2]]
    _same(heap.live, len(alive), f"{what}: live entries of the heap")
    _same({entry[3] for entry in alive}, set(keys), f"{what}: who is in the heap")
    for key, sequence, _, waiting in alive:
        _same(key, keys[waiting], f"{what}: key in the heap")
        _same(sequence, waiting.sequence, f"{what}: sequence in the heap")
    _check_heap([entry[:3] for entry in heap.entries], what)


def _check_heap(entries: list[tuple[float, ...]], what: str) -> None:
    for place in range(1, len(entries)):
        is_heap = entries[(place - 1) // 2] <= entries[place]
        assert is_heap, f"{what}: the heap is out of order"


def _by_kind(waiting: Iterable[Waiting]) -> dict[Kind, list[Waiting]]:
    found: dict[Kind, list[Waiting]] = {}
    for each in waiting:
        found.setdefault(each.kind, []).append(each)
    return found


# --- what waits -------------------------------------------------------------------------------


def _check_waiting(state: State) -> None:
    room = state.room
    placed = [(each, pool) for pool in state.pools for queue in pool.queues for each in queue]
    for waiting, _ in placed:
        assert waiting.holder is None, "waiting: in a queue and held"
    placed += [
        (waiting, state.pool_by_model[waiting.request.model])
        for holder in state.caps.holders.values()
        for waiting in holder
    ]
    queued = [waiting for waiting, _ in placed]
    ids = Counter(waiting.request.id for waiting in queued)
    _same(ids, Counter(list(room.requests)), "waiting: ids in the queues")
    _same(set(room.requests) & set(state.granted), set(), "waiting: ids also granted")
    for waiting, pool in placed:
        request = waiting.request
        assert room.requests[request.id] is waiting, "waiting: another object of that id"
        assert state.pool_by_model[request.model] is pool, "waiting: in another pool"
        assert 0 < waiting.ticket <= state.sequence, "waiting: without a ticket"
    tickets = {waiting.ticket for waiting in queued}
    _same(len(tickets), len(queued), "waiting: tickets of their own")
    _check_wait_heap(room.deadlines, {each: each.deadline for each in queued}, "deadlines")
    _check_tallies(room, queued)
    if queued:
        first = min(each.deadline for each in queued)
        assert state.wake_at is not None, "waiting: nobody asked to be woken"
        assert state.wake_at <= first, "waiting: woken after the first deadline"


def _check_tallies(room: WaitingRoom, queued: list[Waiting]) -> None:
    _check_tally(room.all, queued, "tally of all")
    for tier, tally in enumerate(room.by_tier):
        of_tier = [each for each in queued if each.request.tier == tier]
        _check_tally(tally, of_tier, f"tally of tier {tier}")
    by_tenant: dict[Hashable, list[Waiting]] = {}
    by_user: dict[Hashable, list[Waiting]] = {}
    for each in queued:
        request = each.request
        by_tenant.setdefault(request.tenant, []).append(each)
        by_user.setdefault((request.tenant, request.user), []).append(each)
    _same(set(room.by_tenant), set(by_tenant), "tally of tenants: who waits")
    _same(set(room.by_user), set(by_user), "tally of users: who waits")
    for tenant, tally in room.by_tenant.items():
        _check_tally(tally, by_tenant[tenant], f"tally of {tenant}")
    for user, tally in room.by_user.items():
        _check_tally(tally, by_user[user], f"tally of {user}")


def _check_tally(tally: Tally, waiting: list[Waiting], what: str) -> None:
    _same(tally.requests, len(waiting), f"{what}: requests")
    _same(tally.body_bytes, sum(each.request.body_bytes for each in waiting), f"{what}: bytes")
    _same(tally.tokens, sum(each.kv_tokens for each in waiting), f"{what}: tokens")


def _check_caps(state: State) -> None:
    caps, running = state.caps, dict[str, set[str]]()
    for request_id, (grant, _) in state.granted.items():
        for name, _most in grant.waiting.request.caps:
            running.setdefault(name, set()).add(request_id)
    held = [each for each in state.waiting.values() if each.holder is not None]
    names = set(running) | {each.holder for each in held}
    _same(set(caps.holders), names, "caps: holders")
    _same(caps.count, len(held), "caps: held in all")
    for holder in caps.holders.values():
        own = [each for each in held if each.holder == holder.name]
        _same(holder.running, running.get(holder.name, set()), f"cap of {holder.name}: running")
        _same(holder.held, len(own), f"cap of {holder.name}: held")
        by_group = dict[Hashable, list[Waiting]]()
        for each in own:
            assert each.lane is None, "caps: held and in a lane"
            by_group.setdefault((each.request.tier, each.kind), []).append(each)
        _same(set(holder.groups), set(by_group), f"cap of {holder.name}: groups")
        for group, heap in holder.groups.items():
            _check_wait_heap(heap, {each: each.key for each in by_group[group]}, "held")
        _check_progress(state, holder)
    by_tier = dict[int, list[Waiting]]()
    for each in held:
        by_tier.setdefault(each.request.tier, []).append(each)
    _same(set(caps.newest), set(by_tier), "caps: tiers of what is held")
    for tier, heap in caps.newest.items():
        _check_wait_heap(heap, {each: -each.sequence for each in by_tier[tier]}, "newest held")


def _check_progress(state: State, holder: Holder) -> None:
    """One that has room holds nothing of a group of which nothing goes before it.

    That is in the queue, or came to its turn and is kept back by another of its holders.
    """
    if holder.is_full or state.is_closed:
        return
    before = {
        (each.request.tier, each.kind)
        for each in state.waiting.values()
        if each.holder != holder.name and holder.name in dict(each.request.caps)
    }
    assert set(holder.groups) <= before, f"cap of {holder.name}: it has room, and nobody goes"


# --- what runs --------------------------------------------------------------------------------


def _check_grants(state: State) -> None:
    for request_id, (grant, replica) in state.granted.items():
        waiting = grant.waiting
        _same(waiting.request.id, request_id, "grants: id")
        assert replica.ledger.grants.get(request_id) is grant, "grants: not in the ledger"
        assert state.replicas.get(replica.name) is replica, "grants: on a replica nobody knows"
        _same(waiting.ticket, 0, "grants: ticket of one that runs")
        assert waiting.lane is None, "grants: still in a lane"
        assert not waiting.tallies, "grants: still counted as waiting"
    entered = sum(len(replica.ledger.grants) for replica in state.replicas.values())
    _same(entered, len(state.granted), "grants: all ledgers together")


def _check_ledger(ledger: Ledger, tiers: int, name: str) -> None:
    grants = list(ledger.grants.values())
    unstarted = [grant for grant in grants if not grant.is_started]
    what = f"ledger of {name}"
    _same(list(ledger.unstarted.values()), unstarted, f"{what}: unstarted")
    _same(ledger.sequences, sum(each.slots for each in grants), f"{what}: sequences")
    _same(ledger.in_flight, sum(each.sequences for each in grants), f"{what}: in flight")
    _same(ledger.kv_tokens, sum(each.kv_tokens for each in grants), f"{what}: KV tokens")
    _same(
        ledger.unstarted_sequences,
        sum(each.slots for each in unstarted),
        f"{what}: unstarted sequences",
    )
    _same(
        ledger.unstarted_prompt_tokens,
        sum(each.prefill_tokens for each in unstarted),
        f"{what}: unstarted prompt tokens",
    )
    _same(ledger.by_tier, _by_tier(grants, tiers, of=_one), f"{what}: grants by tier")
    endable = [each for each in grants if each.is_endable]
    _same(
        ledger.endable_by_tier,
        _by_tier(endable, tiers, of=_slots),
        f"{what}: slots of what may end",
    )
    _same(
        ledger.endable_kv_by_tier,
        _by_tier(endable, tiers, of=_kv_tokens),
        f"{what}: KV tokens of what may end",
    )
    _same(
        ledger.unstarted_kv_by_tier,
        _by_tier(unstarted, tiers, of=_kv_tokens),
        f"{what}: unstarted KV by tier",
    )
    if ledger._history:
        _, in_flight, _ = ledger._history[-1]
        _same(in_flight, ledger.in_flight, f"{what}: in flight, as remembered")


def _by_tier(grants: Iterable[Grant], tiers: int, *, of: Callable[[Grant], int]) -> list[int]:
    sums = [0] * tiers
    for grant in grants:
        sums[grant.tier] += of(grant)
    return sums


def _one(_: Grant) -> int:
    return 1


def _slots(grant: Grant) -> int:
    return grant.slots


def _kv_tokens(grant: Grant) -> int:
    return grant.kv_tokens


def _check_replica(replica: Replica, pool: Pool | None) -> None:
    what = f"replica {replica.name}"
    is_kept_out = replica.is_lost or replica.is_draining or replica.is_removed
    _same(replica.is_usable, not is_kept_out, f"{what}: usable")
    circuit = replica.circuit
    if circuit.trial is not None:
        assert circuit.reason is not None, f"{what}: a trial of a closed circuit"
        assert circuit.trial in replica.ledger.grants, f"{what}: its trial is gone"
    slots, replica.away = replica.slots, replica.away
    replica.count_slots()
    _same(slots, replica.slots, f"{what}: slots")
    if pool is None:
        return
    kept, replica.scores = replica.scores, {}
    for tier, score in kept.items():
        _same(score, freeness(replica, pool.headroom, tier), f"{what}: freeness")
    replica.scores = kept
    is_known = replica.away is not None and replica.away_of is pool.gates.reserved
    if is_known and replica.slots is not None:
        away, replica.away = replica.away, None
        _same(away, pool.gates.away(replica, replica.slots), f"{what}: slots kept away")
    if replica.open_tiers is not None:
        judged = pool.gates.open_tiers(replica, replica.judged_at)
        _same(replica.open_tiers, judged, f"{what}: open tiers")
