"""The heap against a plain dictionary that is sorted each time."""

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.heap import KeyedHeap

moves = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.one_of(st.none(), st.integers(0, 5))), max_size=200
)


@given(moves=moves)
def test_the_heap_orders_as_a_sorted_list_would(moves: list[tuple[str, int | None]]) -> None:
    """Everybody: a wrong top is a wrong turn."""
    heap: KeyedHeap[str] = KeyedHeap()
    model: dict[str, tuple[int, int]] = {}
    for turn, (item, key) in enumerate(moves):
        if key is None:
            heap.discard(item)
            model.pop(item, None)
        else:
            heap.set(item, key)
            if item not in model or model[item][0] != key:
                model[item] = (key, turn)
        expected = min(model, key=lambda each: model[each], default=None)
        assert heap.first() == expected
        assert len(heap) == len(model)
    assert set(heap.items()) == set(model)
