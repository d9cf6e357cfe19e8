"""A min-heap whose items can be re-keyed and removed; it knows nothing of what it orders.

Removal and re-keying leave the old entry behind and skip it when it surfaces, so every
operation is O(log n) amortised; the heap is rebuilt when more than half of it is stale.
"""

from heapq import heapify, heappop, heappush
from typing import Any, Generic, TypeVar

Item = TypeVar("Item")

STALE_SLACK = 64
"""A heap smaller than this is never rebuilt: the rebuild would cost more than it saves."""


class KeyedHeap(Generic[Item]):
    """Items by ascending key; equal keys come out in the order in which they were set."""

    __slots__ = ("_entries", "_live", "_sequence")

    def __init__(self) -> None:
        self._entries: list[tuple[Any, int, Item]] = []
        self._live: dict[Item, tuple[Any, int]] = {}
        """Key and sequence number of each item's one valid entry; the other entries are stale."""
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, item: Item) -> bool:
        return item in self._live

    def set(self, item: Item, key: Any) -> None:
        """Insert `item`, or move it to `key`; an unchanged key leaves it where it is."""
        live = self._live.get(item)
        if live is not None and live[0] == key:
            return
        self._sequence += 1
        self._live[item] = (key, self._sequence)
        heappush(self._entries, (key, self._sequence, item))
        if len(self._entries) > 2 * len(self._live) + STALE_SLACK:
            self._drop_stale()

    def discard(self, item: Item) -> None:
        """Remove `item` if it is there."""
        self._live.pop(item, None)

    def first(self) -> Item | None:
        """The item with the smallest key, or None when empty; it stays in the heap."""
        entries, live = self._entries, self._live
        while entries:
            _, sequence, item = entries[0]
            found = live.get(item)
            if found is not None and found[1] == sequence:
                return item
            heappop(entries)
        return None

    def items(self) -> list[Item]:
        """All items, in no particular order."""
        return list(self._live)

    def in_order(self) -> list[Item]:
        """All items, the first to come out first. O(n log n)."""
        return sorted(self._live, key=self._live.__getitem__)

    def key_of(self, item: Item) -> Any:
        """The key that `item` was set to last."""
        return self._live[item][0]

    def _drop_stale(self) -> None:
        self._entries = [(key, sequence, item) for item, (key, sequence) in self._live.items()]
        heapify(self._entries)
