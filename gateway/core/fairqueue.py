"""Who is next inside one tier: start-time fair queueing over tenants, then over their users.

Theory. Each flow carries a virtual start tag; the flow with the smallest tag is served, and being
served moves its tag on by cost / weight (Goyal et al., start-time fair queueing, SIGCOMM'96; with
token costs and no knowledge of the output it is VTC, arXiv 2401.00588). The queue's virtual time
is the start tag of the last grant and never goes back. A flow that becomes backlogged starts at
`max(own tag, virtual time)`, so idle time earns nothing and an old low tag lets nobody jump; a
refund takes it no further back than the virtual time of that moment. The same rule runs twice:
tenants share the tier, users share their tenant.

What is let go out of turn (a floor, an age, a class whose replicas are faster) takes the virtual
time with it, so a newcomer starts no later than the next of its own class (VTC's lift).

The rest of a broken stream goes before all of them: its client has been served once already.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf
from typing import Any

from gateway.core.flows import Flow, Lane, WaitHeap, Waiting
from gateway.core.heap import KeyedHeap
from gateway.core.kinds import Kind
from gateway.core.policy import Policy

Rank = tuple[float, float, float, int]
SWEEP_SLACK = 64
"""Idle flows are looked for when so many more were made than were kept at the last look."""


class FairQueue:
    """The waiting requests of one tier of one pool, in fair order."""

    __slots__ = (
        "_by_prefix", "_head_costs", "_heavy", "_kept", "_made", "_number", "_policy",
        "active_users", "active_weight", "classes", "count", "front", "kv_tokens", "tenants",
        "virtual",
    )  # fmt: skip

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._by_prefix = policy.within_user == "prefix"
        self._head_costs: tuple[float, float] | None = None
        self._heavy: KeyedHeap[tuple[Flow, Flow]] | None = None
        self._kept = 0
        self._made = 0
        self._number = 0
        self.virtual = 0.0
        self.count = 0
        self.kv_tokens = 0
        """What all that waits here will hold at its end."""
        self.active_users = 0
        """Users of whom something waits here."""
        self.active_weight = 0.0
        """Weights of the tenants of whom something waits here."""
        self.tenants: dict[str, Flow] = {}
        self.classes: dict[Kind, Lane] = {}
        self.front: dict[Kind, WaitHeap] = {}
        """Continuations, before everybody else."""

    def __iter__(self) -> Iterator[Waiting]:
        for root in self.classes.values():
            for tenant in root.lanes.values():
                for user in tenant.lanes.values():
                    yield from user.requests
        for heap in self.front.values():
            yield from heap

    # What waits.

    def push(self, waiting: Waiting) -> None:
        """Add a request that has its ticket to its flow. O(log n)."""
        request = waiting.request
        tenant, user = self._flows(request.tenant, request.user)
        if not user.count:
            self._wake(tenant, user, waiting.kind)
        tenant.count += 1
        user.count += 1
        self.count += 1
        self._head_costs = None
        self.kv_tokens += waiting.kv_tokens
        kind = waiting.kind
        root = self.classes.get(kind)
        if root is None:
            root = self.classes[kind] = Lane(None, None, kind)
        lane = self._lane(self._lane(root, tenant), user)
        waiting.lane = lane
        if request.is_continuation:
            self._front(kind).push(waiting.key, waiting)
        else:
            user.cost += waiting.cost
            lane.requests.push(waiting.key, waiting)
            if lane.last is None or waiting.order > lane.last.order:
                lane.last = waiting
            if lane.groups is not None:
                first = request.prefix[0] if request.prefix else 0
                lane.groups.setdefault(first, WaitHeap()).push(waiting.key, waiting)
        lane.count += 1
        lane.parent.count += 1  # type: ignore[union-attr]  # a user's lane has a tenant's
        root.count += 1
        if self._heavy is not None:
            self._heavy.set((tenant, user), -user.cost / (user.weight * tenant.weight))

    def head(self, kind: Kind) -> Waiting | None:
        """The request that is next among those of class `kind`; it stays where it is."""
        if self.front:
            heap = self.front.get(kind)
            first = heap.first() if heap is not None else None
            if first is not None:
                return first
        root = self.classes.get(kind)
        if root is None:
            return None
        tenant = root.first()
        assert tenant is not None, "a class is kept only while something of it waits"
        user = tenant.first()
        assert user is not None, "a tenant is listed only while one of its users waits"
        return user.requests.first()

    def rank(self, waiting: Waiting) -> Rank:
        """Sort key of `waiting` among the heads of all classes; the smallest is served first."""
        if waiting.request.is_continuation:
            return (float("-inf"), 0.0, waiting.key, waiting.sequence)
        user, tenant = _flows_of(waiting)
        return (tenant.start, user.start, waiting.key, waiting.sequence)

    def head_costs(self) -> tuple[float, float]:
        """(smallest, largest) cost among the heads of all classes; something must wait."""
        if self._head_costs is None:
            least, most = inf, 0.0
            for kind in self.classes:
                head = self.head(kind)
                assert head is not None, "a class is kept only while something of it waits"
                least, most = min(least, head.cost), max(most, head.cost)
            self._head_costs = least, most
        return self._head_costs

    def take(self, waiting: Waiting) -> None:
        """Release `waiting`: remove it and charge its flow the estimated cost."""
        user, tenant = _flows_of(waiting)
        self.virtual = max(self.virtual, tenant.start)
        tenant.virtual = max(tenant.virtual, user.start)
        self._unlink(waiting, tenant, user)
        self._charge(tenant, user, waiting.cost)

    def remove(self, waiting: Waiting) -> None:
        """Remove `waiting` without charge: cancelled, expired or evicted."""
        user, tenant = _flows_of(waiting)
        self._unlink(waiting, tenant, user)

    # What is charged.

    def pass_by(self, waiting: Waiting) -> None:
        """Charge a request that is released at once, as if it had waited for no time."""
        request = waiting.request
        tenant, user = self._flows(request.tenant, request.user)
        _enter(tenant, self.virtual)
        self.virtual = tenant.start
        _enter(user, tenant.virtual)
        tenant.virtual = user.start
        self._charge(tenant, user, waiting.cost)

    def settle(self, tenant_name: str, user_name: str, difference: float) -> None:
        """Correct an earlier charge by `difference` (negative: a refund) on both levels."""
        tenant = self.tenants.get(tenant_name)
        user = tenant.users.get(user_name) if tenant is not None else None
        if user is None:
            if difference <= 0.0:
                # Forgotten: whoever has no tag has nothing to be refunded.
                if tenant is not None:
                    self._charge(tenant, None, difference)
                return
            tenant, user = self._flows(tenant_name, user_name)
            if len(tenant.users) == 1 and not tenant.start:
                _enter(tenant, self.virtual)
            _enter(user, tenant.virtual)
        assert tenant is not None
        self._charge(tenant, user, difference)

    def debts(self) -> list[tuple[str, str, float, float]]:
        """(tenant, user, tenant's lead, user's lead over virtual time), to survive a regroup."""
        return [
            (tenant.name, user.name, tenant.start - self.virtual, user.start - tenant.virtual)
            for tenant in self.tenants.values()
            for user in tenant.users.values()
        ]

    def adopt_debt(self, debt: tuple[str, str, float, float]) -> None:
        """Let a flow keep the lead it had in another queue."""
        tenant, user = self._flows(debt[0], debt[1])
        tenant.start = max(tenant.start, self.virtual + debt[2])
        user.start = max(user.start, tenant.virtual + debt[3])

    def snapshot(self) -> dict[str, Any]:
        """Virtual time, counters, and the largest flows as they were last ranked."""
        heavy = None
        if self._heavy is not None:
            heavy = [
                [tenant.name, user.name, self._heavy.key_of((tenant, user))]
                for tenant, user in self._heavy.in_order()
                if (known := self.tenants.get(tenant.name)) is tenant
                and known.users.get(user.name) is user
            ]
        return {
            "virtual": self.virtual, "number": self._number, "kept": self._kept,
            "made": self._made, "heavy": heavy,
        }  # fmt: skip

    def restore(self, data: Mapping[str, Any]) -> None:
        """Go on from what `snapshot` gave; the flows are there already."""
        self.virtual = float(data["virtual"])
        self._number, self._kept, self._made = data["number"], data["kept"], data["made"]
        self._heavy = None
        if data["heavy"] is not None:
            self._heavy = KeyedHeap()
            for tenant_name, user_name, key in data["heavy"]:
                tenant = self.tenants[tenant_name]
                self._heavy.set((tenant, tenant.users[user_name]), key)

    # Who is here.

    def user_count(self, tenant_name: str, user_name: str) -> int:
        """Requests of this user waiting here."""
        tenant = self.tenants.get(tenant_name)
        user = tenant.users.get(user_name) if tenant else None
        return user.count if user else 0

    def share(self, tenant_name: str, user_name: str) -> float:
        """Share of this user in what is served, 0..1, if it waited among those who wait now."""
        policy = self._policy
        tenant = self.tenants.get(tenant_name)
        user = tenant.users.get(user_name) if tenant else None
        tenant_weight = policy.tenant_weight(tenant_name)
        user_weight = policy.user_weight(tenant_name, user_name)
        tenants, users = self.active_weight, tenant.active_weight if tenant else 0.0
        if tenant is None or not tenant.count:
            tenants += tenant_weight
        if user is None or not user.count:
            users += user_weight
        return tenant_weight / tenants * user_weight / users

    def heaviest(self) -> tuple[float, Flow, Flow]:
        """(waiting cost over weight, tenant, user) of the largest flow; something must wait."""
        if self._heavy is None:
            self._heavy = KeyedHeap()
            for tenant in self.tenants.values():
                for user in tenant.users.values():
                    if user.count:
                        key = -user.cost / (user.weight * tenant.weight)
                        self._heavy.set((tenant, user), key)
        while True:
            # Its key is an upper bound: what was taken since is seen only now.
            found = self._heavy.first()
            assert found is not None, "something waits"
            tenant, user = found
            key = -user.cost / (user.weight * tenant.weight)
            if not user.count:
                self._heavy.discard(found)
            elif self._heavy.key_of(found) == key:
                return -key, tenant, user
            else:
                self._heavy.set(found, key)

    def _flows(self, tenant_name: str, user_name: str) -> tuple[Flow, Flow]:
        tenant = self.tenants.get(tenant_name)
        if tenant is None:
            tenant = Flow(tenant_name, self._policy.tenant_weight(tenant_name))
            self.tenants[tenant_name] = tenant
        user = tenant.users.get(user_name)
        if user is None:
            user = Flow(user_name, self._policy.user_weight(tenant_name, user_name))
            tenant.users[user_name] = user
            self._made += 1
            if self._made > 2 * self._kept + SWEEP_SLACK:
                self._sweep(user)
        return tenant, user

    def _wake(self, tenant: Flow, user: Flow, kind: Kind) -> None:
        """Something of `user` begins to wait."""
        if not tenant.count:
            self.active_weight += tenant.weight
            root = self.classes.get(kind)
            _enter(tenant, _joining(self.virtual, root))
        self.active_users += 1
        tenant.active_weight += user.weight
        _enter(user, _joining(tenant.virtual, tenant.lanes.get(kind)))

    def _lane(self, parent: Lane, flow: Flow) -> Lane:
        lane = parent.lanes.get(flow)
        if lane is None:
            lane = parent.lanes[flow] = flow.lanes[parent.kind] = Lane(flow, parent, parent.kind)
            if self._by_prefix:
                lane.groups = {}
            self._list(lane)
        return lane

    def _list(self, lane: Lane) -> None:
        assert lane.parent is not None
        self._number += 1
        lane.parent.enlist(lane, self._number)

    def _front(self, kind: Kind) -> WaitHeap:
        return self.front.setdefault(kind, WaitHeap())

    def _charge(self, tenant: Flow, user: Flow | None, cost: float) -> None:
        self._head_costs = None
        if user is not None and user.charge(cost):
            for lane in user.lanes.values():
                self._list(lane)
        if tenant.charge(cost):
            for lane in tenant.lanes.values():
                self._list(lane)

    def _unlink(self, waiting: Waiting, tenant: Flow, user: Flow) -> None:
        lane = waiting.lane
        assert lane is not None
        parent = lane.parent
        assert parent is not None
        root = parent.parent
        assert root is not None
        waiting.lane = None
        waiting.ticket = 0
        tenant.count -= 1
        user.count -= 1
        self.count -= 1
        self._head_costs = None
        self.kv_tokens -= waiting.kv_tokens
        if not waiting.request.is_continuation:
            user.cost -= waiting.cost
        if not user.count:
            self._rest(tenant, user)
        self._left_heap(waiting, lane)
        lane.count -= 1
        parent.count -= 1
        root.count -= 1
        if not lane.count:
            del parent.lanes[user], user.lanes[lane.kind]
            if not parent.count:
                del root.lanes[tenant], tenant.lanes[lane.kind]
                if not root.count:
                    del self.classes[lane.kind]

    def _left_heap(self, waiting: Waiting, lane: Lane) -> None:
        request = waiting.request
        if request.is_continuation:
            heap = self.front[lane.kind]
            heap.left()
            if not heap.live:
                del self.front[lane.kind]
            return
        lane.requests.left()
        if lane.groups is not None:
            first = request.prefix[0] if request.prefix else 0
            group = lane.groups[first]
            group.left()
            if not group.live:
                del lane.groups[first]

    def _rest(self, tenant: Flow, user: Flow) -> None:
        """Nothing of `user` waits any more."""
        user.cost = 0.0
        self.active_users -= 1
        tenant.active_weight -= user.weight
        if not tenant.count:
            tenant.active_weight = 0.0
            self.active_weight -= tenant.weight
            if not self.count:
                self.active_weight = 0.0
                self._heavy = None

    def _sweep(self, newcomer: Flow) -> None:
        """Drop flows whose tag a newcomer would get anyway."""
        kept = 0
        for tenant in list(self.tenants.values()):
            for user in list(tenant.users.values()):
                if user.count or user is newcomer or user.start > tenant.virtual:
                    kept += 1
                else:
                    del tenant.users[user.name]
            if not tenant.users and tenant.start <= self.virtual:
                del self.tenants[tenant.name]
        self._kept, self._made = kept, 0


def _flows_of(waiting: Waiting) -> tuple[Flow, Flow]:
    """(user, tenant) of a request that waits."""
    lane = waiting.lane
    assert lane is not None
    assert lane.flow is not None
    assert lane.parent is not None
    assert lane.parent.flow is not None
    return lane.flow, lane.parent.flow


def _joining(virtual: float, parent: Lane | None) -> float:
    """Where a flow begins that joins those of `parent`: at V, or level with the next of them."""
    lane = parent.first() if parent is not None else None
    if lane is None:
        return virtual
    assert lane.flow is not None
    return min(virtual, lane.flow.start)


def _enter(flow: Flow, virtual: float) -> None:
    """A flow becomes backlogged at virtual time `virtual`."""
    flow.entered = virtual
    flow.start = max(flow.start, virtual)
