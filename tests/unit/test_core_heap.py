"""Re-keying, removal and ties of the heap under every queue."""

from gateway.core.heap import STALE_SLACK, KeyedHeap


def drained(heap: KeyedHeap[str]) -> list[str]:
    """All items in the order in which the heap gives them up."""
    order = []
    while (item := heap.first()) is not None:
        order.append(item)
        heap.discard(item)
    return order


def filled(**keys: float) -> KeyedHeap[str]:
    """A heap of these items."""
    heap: KeyedHeap[str] = KeyedHeap()
    for item, key in keys.items():
        heap.set(item, key)
    return heap


def test_the_smallest_key_comes_out_first() -> None:
    """Everybody: this is the order of service."""
    assert drained(filled(a=3.0, b=1.0, c=2.0)) == ["b", "c", "a"]


def test_equal_keys_come_out_in_the_order_in_which_they_were_set() -> None:
    """Two equal users would otherwise be served by the accident of their names."""
    assert drained(filled(z=1.0, a=1.0, m=1.0)) == ["z", "a", "m"]


def test_an_item_moves_when_its_key_changes() -> None:
    """A user who was charged must fall behind, one who was refunded must come forward."""
    heap = filled(a=1.0, b=2.0, c=3.0)
    heap.set("a", 2.5)
    heap.set("c", 0.5)
    assert drained(heap) == ["c", "b", "a"]


def test_an_unchanged_key_keeps_the_place_among_its_equals() -> None:
    """Bookkeeping that changes nothing must not send anybody to the back."""
    heap = filled(a=9.0, b=9.0)
    heap.set("a", 9.0)
    assert drained(heap) == ["a", "b"]


def test_who_leaves_and_returns_with_the_same_key_is_behind_its_equals() -> None:
    """An old entry of the heap must not come back to life and jump the line."""
    heap = filled(a=1.0, b=1.0)
    heap.discard("a")
    heap.set("a", 1.0)
    assert drained(heap) == ["b", "a"]


def test_removed_items_never_surface() -> None:
    """A cancelled request must not be released."""
    heap = filled(a=1.0, b=2.0)
    heap.discard("a")
    heap.discard("a")
    assert "a" not in heap
    assert len(heap) == 1
    first = heap.first()
    assert first is not None
    assert heap.key_of(first) == 2.0
    assert drained(heap) == ["b"]
    assert heap.first() is None
    assert heap.first() is None


def test_re_keying_for_ever_does_not_grow_the_heap() -> None:
    """A gateway that runs for months would otherwise die of its fair queue."""
    heap = filled(a=0.0, b=1e9)
    for key in range(10_000):
        heap.set("a", float(key))
    assert len(heap._entries) <= 2 * len(heap) + STALE_SLACK + 1
    assert drained(heap) == ["a", "b"]


def test_every_item_is_known_by_its_last_key() -> None:
    """The heaviest user is looked for by key: an old one would shed the wrong requests."""
    heap = filled(a=1.0, b=2.0)
    heap.set("a", 3.0)
    assert heap.key_of("a") == 3.0
    first = heap.first()
    assert first is not None
    assert heap.key_of(first) == 2.0
    assert sorted(heap.items()) == ["a", "b"]
    assert "a" in heap
    assert heap.first() == "b"
    assert len(heap) == 2
