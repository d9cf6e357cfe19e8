"""Requests in the queue, and the two levels that share it: tenants, and their users.

Every flow has one start tag, and one *lane* for each eligibility class of which it has something
waiting. A lane is listed in the heap of its parent by the tag that its flow had then. Tags mostly
grow, so a listed tag is a lower bound: it is corrected when it surfaces, and a charge touches no
heap. Only a refund, which lowers a tag, lists the flow's lanes anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush, heapreplace
from typing import Final

from gateway.core.kinds import Kind
from gateway.core.messages import Request
from gateway.core.tally import Tally

STALE_SLACK: Final = 64
"""A heap with fewer dead entries than this is not rebuilt: it would cost more than it saves."""


class Waiting:
    """One request, with what was predicted for it, from its arrival until its grant has ended."""

    __slots__ = (
        "cost", "deadline", "entered_at", "expected_s", "holder", "key", "kind", "kv_tokens",
        "lane", "output_tokens", "prompt_tokens", "request", "sequence", "skipped_since", "tallies",
        "ticket", "was_recalled",
    )  # fmt: skip

    def __init__(self, request: Request, *, kind: Kind, sequence: int) -> None:
        self.request = request
        self.kind = kind
        self.sequence = sequence
        """Breaks ties between equal keys: the order of arrival at this scheduler."""
        self.key = request.arrived_at
        """Its place among the requests of its user: the smallest is first."""
        self.cost = 0.0
        self.prompt_tokens = 0
        self.output_tokens = 0
        self.kv_tokens = 0
        """KV tokens it will hold at its end, prompt and predicted output of every sequence."""
        self.deadline = float("inf")
        self.ticket = 0
        """Number of its present stay in the queue; 0 while it does not wait."""
        self.lane: Lane | None = None
        self.holder: str | None = None
        """Whose cap keeps it out of the queue."""
        self.tallies: tuple[Tally, ...] = ()
        self.entered_at = request.arrived_at
        self.expected_s: float | None = None
        """The wait that was predicted when it began to wait."""
        self.skipped_since: float | None = None
        """When one that ranks behind it was first released because this one did not fit."""
        self.was_recalled = False

    @property
    def order(self) -> tuple[float, int]:
        """Sort key among the requests of its user."""
        return (self.key, self.sequence)


class WaitHeap:
    """Waiting requests by ascending key. One leaves by its ticket, without being searched for."""

    __slots__ = ("entries", "live")

    def __init__(self) -> None:
        self.entries: list[tuple[float, int, int, Waiting]] = []
        self.live = 0

    def push(self, key: float, waiting: Waiting) -> None:
        """Add a request that has its ticket. O(log n)."""
        self.live += 1
        heappush(self.entries, (key, waiting.sequence, waiting.ticket, waiting))

    def left(self) -> None:
        """One of the requests no longer waits; its ticket is gone already."""
        self.live -= 1
        if len(self.entries) > 2 * self.live + STALE_SLACK:
            self.entries = [entry for entry in self.entries if entry[3].ticket == entry[2]]
            heapify(self.entries)

    def first(self) -> Waiting | None:
        """The request with the smallest key, or None; it stays."""
        entries = self.entries
        while entries:
            entry = entries[0]
            if entry[3].ticket == entry[2]:
                return entry[3]
            heappop(entries)
        return None

    def __iter__(self) -> Iterator[Waiting]:
        return (entry[3] for entry in self.entries if entry[3].ticket == entry[2])


class Flow:
    """Whoever shares: a tenant, or a user of one. Tags are costs over weight."""

    __slots__ = ("active_weight", "cost", "count", "entered", "lanes", "name", "start", "users",
                 "virtual", "weight")  # fmt: skip

    def __init__(self, name: str, weight: float) -> None:
        self.name = name
        self.weight = weight
        self.start = 0.0
        self.entered = 0.0
        """Virtual time when it last became backlogged: no refund takes `start` below this."""
        self.count = 0
        """Requests waiting."""
        self.cost = 0.0
        """What they are predicted to cost; kept for users only."""
        self.virtual = 0.0
        """Virtual time among the users of a tenant."""
        self.active_weight = 0.0
        """Weights of the users of whom something waits."""
        self.users: dict[str, Flow] = {}
        self.lanes: dict[Kind, Lane] = {}

    def charge(self, cost: float) -> bool:
        """Move the tag on by `cost`, negative for a refund; whether it went back."""
        start = self.start + cost / self.weight
        start = max(start, self.entered)
        went_back = start < self.start
        self.start = start
        return went_back


class Lane:
    """What one flow has waiting in one class: a heap of its users' lanes, or of requests."""

    __slots__ = ("count", "flow", "groups", "heap", "kind", "lanes", "last", "listed_at", "number",
                 "overtaken", "parent", "requests")  # fmt: skip

    def __init__(self, flow: Flow | None, parent: Lane | None, kind: Kind) -> None:
        self.flow = flow
        """None for the root, which lists the tenants of a class."""
        self.parent = parent
        self.kind = kind
        self.count = 0
        self.listed_at = 0.0
        """The tag by which the parent lists it."""
        self.number = 0
        """Of its entry there; an entry of another number is stale."""
        self.lanes: dict[Flow, Lane] = {}
        self.heap: list[tuple[float, int, Lane]] = []
        self.requests = WaitHeap()
        self.last: Waiting | None = None
        """No request that waits here comes after this one, which may be gone."""
        self.groups: dict[int, WaitHeap] | None = None
        """The requests once more, by their first block; only where a user's order is by prefix."""
        self.overtaken = 0
        """Predicted tokens of what overtook the first request of the lane by its cached prefix."""

    def first(self) -> Lane | None:
        """The lane of the flow with the smallest tag, or None."""
        heap = self.heap
        while heap:
            tag, number, lane = heap[0]
            flow = lane.flow
            assert flow is not None
            if not lane.count or lane.number != number:
                heappop(heap)
            elif flow.start != tag:
                lane.listed_at = flow.start
                heapreplace(heap, (flow.start, number, lane))
            else:
                return lane
        return None

    def enlist(self, lane: Lane, number: int) -> None:
        """List `lane` by the tag that its flow has now; `number` breaks ties."""
        if len(self.heap) > 2 * len(self.lanes) + STALE_SLACK:
            self.heap = [
                entry for entry in self.heap if entry[2].count and entry[2].number == entry[1]
            ]
            heapify(self.heap)
        flow = lane.flow
        assert flow is not None
        lane.listed_at, lane.number = flow.start, number
        heappush(self.heap, (flow.start, number, lane))
