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
                "tenants": [_plain_lane(lane, now) for lane in root.lanes.values()],
            }
            for kind, root in queue.classes.items()
        ],
    }


def _plain_lane(tenant: Lane, now: float) -> dict[str, Any]:
    return {
        "name": _name_of(tenant),
        "listed": [tenant.listed_at, tenant.number],
        "users": [
            {
                "name": _name_of(lane),
                "listed": [lane.listed_at, lane.number],
                "last": None if lane.last is None else [now - lane.last.key, lane.last.sequence],
                "groups": None if lane.groups is None else list(lane.groups),
                "overtaken": lane.overtaken,
            }
            for lane in tenant.lanes.values()
        ],
    }


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
        for plain_tenant in plain["tenants"]:
            tenant_lane = tenants[plain_tenant["name"]]
            tenant_lane.listed_at, tenant_lane.number = plain_tenant["listed"]
            _restore_users(tenant_lane, plain_tenant["users"], known)
        _list(root)
    if len(roots) != len(queue.classes):
        raise ValueError("not a snapshot: something waits in a class that no queue lists")
    queue.classes = roots
    queue.restore(data["book"])


def _restore_users(tenant: Lane, data: Sequence[Mapping[str, Any]], known: Known) -> None:
    lanes = {_name_of(lane): lane for lane in tenant.lanes.values()}
    for plain in data:
        lane = lanes[plain["name"]]
        lane.listed_at, lane.number = plain["listed"]
        lane.last = None if plain["last"] is None else known.request(*plain["last"])
        lane.overtaken = plain["overtaken"]
        if lane.groups is not None:
            lane.groups = {first: lane.groups[first] for first in plain["groups"]}
    _list(tenant)


def _list(parent: Lane) -> None:
    """List its lanes anew by the tags and numbers that they have."""
    parent.heap = [(lane.listed_at, lane.number, lane) for lane in parent.lanes.values()]
    heapify(parent.heap)


def debts(data: Mapping[str, Any]) -> list[tuple[str, str, float, float]]:
    """As `FairQueue.debts`, of the queue that a snapshot tells of."""
    virtual = data["book"]["virtual"]
    return [
        (plain["name"], user, plain["start"] - virtual, start - plain["virtual"])
        for plain in data["tenants"]
        for user, start, _, _ in plain["users"]
    ]
