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

    __slots__ = ("_entries", "_keys", "_sequence")

    def __init__(self) -> None:
        self._entries: list[tuple[Any, int, Item]] = []
        self._keys: dict[Item, Any] = {}
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, item: Item) -> bool:
        return item in self._keys

    def set(self, item: Item, key: Any) -> None:
        """Insert `item`, or move it to `key`."""
        self._keys[item] = key
        self._sequence += 1
        heappush(self._entries, (key, self._sequence, item))
        if len(self._entries) > 2 * len(self._keys) + STALE_SLACK:
            self._drop_stale()

    def discard(self, item: Item) -> None:
        """Remove `item` if it is there."""
        self._keys.pop(item, None)

    def first(self) -> Item | None:
        """The item with the smallest key, or None when empty; it stays in the heap."""
        entries, keys = self._entries, self._keys
        while entries:
            key, _, item = entries[0]
            if keys.get(item) == key:
                return item
            heappop(entries)
        return None

    def first_key(self) -> Any:
        """The smallest key, or None when empty."""
        item = self.first()
        return None if item is None else self._keys[item]

    def items(self) -> list[Item]:
        """All items, in no particular order."""
        return list(self._keys)

    def key_of(self, item: Item) -> Any:
        """The key that `item` was set to last."""
        return self._keys[item]

    def _drop_stale(self) -> None:
        keys = self._keys
        kept = [entry for entry in self._entries if keys.get(entry[2]) == entry[0]]
        heapify(kept)
        self._entries = kept
