"""Derives every sum and index of the scheduler again and compares: for tests and simulators.

O(everything) for each call, so never on a hot path. It judges whether the books agree with one
another; it does not judge whether the decisions were right.
"""

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

from gateway.core.fairqueue import FairQueue, TenantFlow, UserFlow
from gateway.core.heap import KeyedHeap
from gateway.core.ledger import Grant, Ledger
from gateway.core.pool import Pool
from gateway.core.scheduler import Scheduler


def check(scheduler: Scheduler) -> None:
    """Raise AssertionError naming the first sum or index that is off; else do nothing."""
    _check_pools(scheduler)
    for pool in scheduler.pools:
        _check_pool(pool)
    _check_waiting(scheduler)
    _check_grants(scheduler)


def _same(found: object, derived: object, what: str) -> None:
    assert found == derived, f"{what}: kept {found!r}, derived {derived!r}"


def _close(found: float, derived: float, what: str) -> None:
    is_close = math.isclose(found, derived, rel_tol=1e-6, abs_tol=1e-6)
    assert is_close, f"{what}: kept {found!r}, derived {derived!r}"


def _check_pools(scheduler: Scheduler) -> None:
    models = Counter(model for pool in scheduler.pools for model in pool.models)
    assert not models or max(models.values()) == 1, "pools: a model is in two of them"
    for model in models:
        pool = scheduler.pool_of(model)
        assert pool is not None, f"pools: {model} has none"
        assert model in pool.models, f"pools: {model} is looked up in a stranger"
    for pool in scheduler.pools:
        served = {
            name: replica
            for name, replica in scheduler.replicas.items()
            if replica.models & pool.models
        }
        _same(pool.replicas, served, "pools: replicas")


def _check_waiting(scheduler: Scheduler) -> None:
    room = scheduler.room
    placed = [(each, pool) for pool in scheduler.pools for queue in pool.queues for each in queue]
    queued = [waiting for waiting, _ in placed]
    ids = Counter(waiting.request.id for waiting in queued)
    _same(ids, Counter(list(room.requests)), "waiting: ids in the queues")
    _same(set(room.requests) & set(scheduler.granted), set(), "waiting: ids also granted")
    for waiting, pool in placed:
        request = waiting.request
        _same(room.requests[request.id], waiting, "waiting: object")
        assert scheduler.pool_of(request.model) is pool, "waiting: in another pool"
        assert waiting in room.deadlines, "waiting: no deadline"
        _same(room.deadlines.key_of(waiting), waiting.deadline, "waiting: deadline")
    _same(len(room.deadlines), len(queued), "waiting: deadlines")
    _check_heap(room.deadlines, "waiting: deadlines")
    _same(room.body_bytes, sum(each.request.body_bytes for each in queued), "waiting: bytes")
    by_user = Counter((each.request.tenant, each.request.user) for each in queued)
    _same(room.by_user, dict(by_user), "waiting: by user")


def _check_pool(pool: Pool) -> None:
    _same(len(pool.queues), len(pool.policy.tiers), "pool: tiers")
    _same(len(pool.floors.deficits), len(pool.policy.tiers), "pool: floors")
    for tier, queue in enumerate(pool.queues):
        _check_queue(queue)
        for waiting in queue:
            _same(waiting.request.tier, tier, "pool: tier of a waiting request")


def _check_queue(queue: FairQueue) -> None:
    waiting = list(queue)
    _same(queue.count, len(waiting), "queue: count")
    if waiting:
        kept, queue._head_costs = queue.head_costs(), None
        _same(kept, queue.head_costs(), "queue: costs of the heads")
    for name, tenant in queue.tenants.items():
        _same(tenant.name, name, "tenant: name")
        _check_tenant(queue, tenant)
    _same(queue.count, sum(each.count for each in queue.tenants.values()), "queue: by tenant")
    users = [user for tenant in queue.tenants.values() for user in tenant.users.values()]
    _same(queue.active_users, sum(user.count > 0 for user in users), "queue: active users")
    listed = {kind: set(heap.items()) for kind, heap in queue.classes.items()}
    derived: dict[object, set[TenantFlow]] = {}
    for tenant in queue.tenants.values():
        for kind in tenant.queues:
            derived.setdefault(kind, set()).add(tenant)
    _same(listed, derived, "queue: tenants by class")
    for kind, heap in queue.classes.items():
        _check_heap(heap, "queue: class")
        for tenant in heap.items():
            _same(heap.key_of(tenant), tenant.start, f"tenant: key in {kind}")


def _check_tenant(queue: FairQueue, tenant: TenantFlow) -> None:
    assert tenant.start >= tenant.entered, "tenant: refunded below its start"
    assert tenant.entered <= queue.virtual, "tenant: entered after virtual time"
    _same(tenant.count, sum(user.count for user in tenant.users.values()), "tenant: count")
    derived: dict[object, set[UserFlow]] = {}
    for user in tenant.users.values():
        _check_user(tenant, user)
        for kind in user.queues:
            derived.setdefault(kind, set()).add(user)
    listed = {kind: set(heap.items()) for kind, heap in tenant.queues.items()}
    _same(listed, derived, "tenant: users by class")
    for kind, heap in tenant.queues.items():
        _check_heap(heap, "tenant: class")
        for user in heap.items():
            _same(heap.key_of(user), user.start, f"user: key in {kind}")


def _check_user(tenant: TenantFlow, user: UserFlow) -> None:
    waiting = [each for heap in user.queues.values() for each in heap.items()]
    assert user.start >= user.entered, "user: refunded below its start"
    assert user.entered <= tenant.virtual, "user: entered after virtual time"
    _same(user.count, len(waiting), "user: count")
    _close(user.cost, sum(each.cost for each in waiting), "user: cost")
    for kind, heap in user.queues.items():
        assert heap, "user: an empty class is still listed"
        _check_heap(heap, "user: class")
        for each in heap.items():
            _same(each.kind, kind, "user: class of a waiting request")
            _same(heap.key_of(each), each.order, "user: order of a waiting request")


def _check_heap(heap: KeyedHeap[Any], what: str) -> None:
    keys = [heap.key_of(item) for item in heap.items()]
    _same(heap.first_key(), min(keys, default=None), f"{what}: first of the heap")


def _check_grants(scheduler: Scheduler) -> None:
    for request_id, (grant, replica) in scheduler.granted.items():
        _same(grant.waiting.request.id, request_id, "grants: id")
        _same(replica.ledger.grants.get(request_id), grant, "grants: in the ledger")
    entered = sum(len(replica.ledger.grants) for replica in scheduler.replicas.values())
    _same(entered, len(scheduler.granted), "grants: all ledgers together")
    for replica in scheduler.replicas.values():
        _check_ledger(replica.ledger, len(scheduler.policy.tiers), replica.name)


def _check_ledger(ledger: Ledger, tiers: int, name: str) -> None:
    grants = list(ledger.grants.values())
    unstarted = [grant for grant in grants if not grant.is_started]
    _same(set(ledger.unstarted.values()), set(unstarted), f"ledger of {name}: unstarted")
    _same(ledger.sequences, sum(each.sequences for each in grants), f"ledger of {name}: sequences")
    _same(ledger.kv_tokens, sum(each.kv_tokens for each in grants), f"ledger of {name}: KV tokens")
    _same(
        ledger.unstarted_sequences,
        sum(each.sequences for each in unstarted),
        f"ledger of {name}: unstarted sequences",
    )
    _same(
        ledger.unstarted_prompt_tokens,
        sum(each.waiting.prompt_tokens for each in unstarted),
        f"ledger of {name}: unstarted prompt tokens",
    )
    _same(ledger.by_tier, _by_tier(grants, tiers), f"ledger of {name}: grants by tier")
    _same(
        ledger.unstarted_kv_by_tier,
        _by_tier(unstarted, tiers, in_kv=True),
        f"ledger of {name}: unstarted KV by tier",
    )


def _by_tier(grants: Iterable[Grant], tiers: int, *, in_kv: bool = False) -> list[int]:
    sums = [0] * tiers
    for grant in grants:
        sums[grant.tier] += grant.kv_tokens if in_kv else 1
    return sums
