"""The flows of one tier's queue, their tags and their places in line, as plain values and back.

Requests are put into the queue by whoever restores it; here only the tags are set that pushing
them would have begun anew.
"""

from collections.abc import Mapping, Sequence
from heapq import heapify
from typing import Any

from gateway.core.fairqueue import FairQueue
from gateway.core.flows import Flow, Lane, Waiting
from gateway.core.kinds import Kind
from gateway.core.policy import Policy
from gateway.core.snapshot_replica import KindTable, gone_waiting


class Known:
    """What the numbers in a snapshot stand for, in the clock of `now`."""

    __slots__ = ("kinds", "now", "requests")

    def __init__(self, kinds: Sequence[Kind], now: float) -> None:
        self.kinds = kinds
        self.now = now
        self.requests: dict[int, Waiting] = {}
        """All that waits or runs, by sequence."""

    def request(self, key_age_s: float, sequence: int) -> Waiting:
        """The request of this sequence, or what stands for one that is no more."""
        found = self.requests.get(sequence)
        if found is None:
            found = gone_waiting()
            found.key, found.sequence = self.now - key_age_s, sequence
        return found


def plain_queue(queue: FairQueue, kinds: KindTable, now: float) -> dict[str, Any]:
    """Everything of a queue but its requests."""
    return {
        "book": queue.snapshot(),
        "tenants": [
            {
                "name": tenant.name,
                "start": tenant.start,
                "entered": tenant.entered,
                "virtual": tenant.virtual,
                "users": [
                    [user.name, user.start, user.entered, user.cost]
                    for user in tenant.users.values()
                ],
            }
            for tenant in queue.tenants.values()
        ],
        "classes": [
            {
                "kind": kinds.number_of(kind),
                "heap": _plain_heap(root),
                "tenants": [_plain_lane(lane, now) for lane in root.lanes.values()],
            }
            for kind, root in queue.classes.items()
        ],
    }


def _plain_lane(tenant: Lane, now: float) -> dict[str, Any]:
    return {
        "name": _name_of(tenant),
        "listed_at": tenant.listed_at,
        "heap": _plain_heap(tenant),
        "users": [
            {
                "name": _name_of(lane),
                "listed_at": lane.listed_at,
                "last": None if lane.last is None else [now - lane.last.key, lane.last.sequence],
                "groups": None if lane.groups is None else list(lane.groups),
                "overtaken": lane.overtaken,
            }
            for lane in tenant.lanes.values()
        ],
    }


def _plain_heap(parent: Lane) -> list[list[Any]]:
    """Where its lanes are listed; entries of lanes that are gone can never count again."""
    return [
        [tag, number, _name_of(lane)]
        for tag, number, lane in parent.heap
        if lane.flow is not None and parent.lanes.get(lane.flow) is lane
    ]


def _name_of(lane: Lane) -> str:
    assert lane.flow is not None
    return lane.flow.name


def make_flows(queue: FairQueue, data: Mapping[str, Any], policy: Policy) -> None:
    """The flows of a snapshot in their order, those without requests too."""
    for plain in data["tenants"]:
        name = plain["name"]
        tenant = queue.tenants[name] = Flow(name, policy.tenant_weight(name))
        for user_name, _, _, _ in plain["users"]:
            weight = policy.user_weight(name, user_name)
            tenant.users[user_name] = Flow(user_name, weight)


def restore_queue(queue: FairQueue, data: Mapping[str, Any], known: Known) -> None:
    """Set all tags and places; the flows were made and what waited was pushed before."""
    for plain in data["tenants"]:
        tenant = queue.tenants[plain["name"]]
        tenant.start, tenant.entered = plain["start"], plain["entered"]
        tenant.virtual = plain["virtual"]
        for user_name, start, entered, cost in plain["users"]:
            user = tenant.users[user_name]
            user.start, user.entered, user.cost = start, entered, cost
    roots = {}
    for plain in data["classes"]:
        kind = known.kinds[plain["kind"]]
        root = roots[kind] = queue.classes[kind]
        tenants = {_name_of(lane): lane for lane in root.lanes.values()}
        _restore_heap(root, plain["heap"], tenants)
        for plain_tenant in plain["tenants"]:
            _restore_lane(tenants[plain_tenant["name"]], plain_tenant, known)
    if len(roots) != len(queue.classes):
        raise ValueError("not a snapshot: something waits in a class that no queue lists")
    queue.classes = roots
    queue.restore(data["book"])


def _restore_lane(tenant: Lane, data: Mapping[str, Any], known: Known) -> None:
    tenant.listed_at = data["listed_at"]
    users = {_name_of(lane): lane for lane in tenant.lanes.values()}
    _restore_heap(tenant, data["heap"], users)
    for plain in data["users"]:
        lane = users[plain["name"]]
        lane.listed_at = plain["listed_at"]
        lane.last = None if plain["last"] is None else known.request(*plain["last"])
        lane.overtaken = plain["overtaken"]
        if lane.groups is not None:
            lane.groups = {first: lane.groups[first] for first in plain["groups"]}


def _restore_heap(parent: Lane, data: Sequence[Sequence[Any]], lanes: Mapping[str, Lane]) -> None:
    parent.heap = [(float(tag), int(number), lanes[name]) for tag, number, name in data]
    heapify(parent.heap)


def debts(data: Mapping[str, Any]) -> list[tuple[str, str, float, float]]:
    """As `FairQueue.debts`, of the queue that a snapshot tells of."""
    virtual = data["book"]["virtual"]
    return [
        (plain["name"], user, plain["start"] - virtual, start - plain["virtual"])
        for plain in data["tenants"]
        for user, start, _, _ in plain["users"]
    ]
