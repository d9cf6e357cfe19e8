"""Which open replica is the freest for a tier, without a look at all of them.

A heap for each tier lists the replicas by their freeness as it was when they were last looked at.
What changed since is listed anew by whoever asks next; an entry that is not a replica's last one
is stale, and is dropped when it surfaces. It knows neither requests nor what draws them.
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from gateway.core.freeness import freeness
from gateway.core.replica import Replica

Place = tuple[float, str, int, Replica]
"""Freeness, negative; name, for ties; a number of its own, from 1; whose it is."""

STALE_SLACK = 64
"""A heap with fewer stale entries than this is not rebuilt: it would cost more than it saves."""


class Ranking:
    """The replicas of one pool in the order of their freeness, one order for each tier."""

    __slots__ = ("_changed", "_heaps", "_number", "_replicas", "bridging")

    def __init__(self, tiers: int, replicas: Sequence[Replica]) -> None:
        self._replicas = len(replicas)
        self._changed = [list(replicas) for _ in range(tiers)]
        """Those to be listed anew, each once: all whose bit in `ranked` is not set."""
        self._heaps: list[list[Place]] = [[] for _ in range(tiers)]
        self._number = 0
        self.bridging: dict[str, Replica] = {}
        """Those with an open gate although something waits there: time alone may shut it."""
        for each in replicas:
            each.ranked = 0
            each.places = [0] * tiers

    def changed(self, replica: Replica) -> None:
        """Its freeness may be another, or its gates."""
        ranked = replica.ranked
        if ranked:
            replica.ranked = 0
            for tier, changed in enumerate(self._changed):
                if ranked >> tier & 1:
                    changed.append(replica)

    def judged(self, replica: Replica) -> None:
        """Its gates have a verdict."""
        if replica.open_tiers and replica.has_queue:
            self.bridging[replica.name] = replica
        elif self.bridging:
            self.bridging.pop(replica.name, None)

    def unranked(self, tier: int) -> list[Replica]:
        """Those that changed since `first` was last asked for this tier; all must be judged."""
        return self._changed[tier]

    def first(self, tier: int, headroom: Sequence[float]) -> Replica | None:
        """The freest of those open to `tier`, by name among equals; None: none is open.

        O(log n) for each that changed since this was last asked.
        """
        heap, changed = self._heaps[tier], self._changed[tier]
        if changed:
            if len(heap) > 2 * self._replicas + STALE_SLACK:
                heap = [entry for entry in heap if entry[3].places[tier] == entry[2]]
                heapify(heap)
                self._heaps[tier] = heap
            for replica in changed:
                replica.ranked |= 1 << tier
                replica.places[tier] = self._list(replica, heap, tier, headroom)
            changed.clear()
        while heap:
            _, _, number, replica = heap[0]
            if replica.places[tier] == number:
                return replica
            heappop(heap)
        return None

    def _list(
        self, replica: Replica, heap: list[Place], tier: int, headroom: Sequence[float]
    ) -> int:
        tiers = replica.open_tiers
        assert tiers is not None, "whoever asks has judged what changed"
        if tiers <= tier:
            return 0
        self._number += 1
        place = (-freeness(replica, headroom, tier), replica.name, self._number, replica)
        heappush(heap, place)
        return self._number
