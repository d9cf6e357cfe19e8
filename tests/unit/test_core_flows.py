"""The heaps under the fair order: requests that leave by ticket, flows whose tags are corrected."""

import pytest

from gateway.core.flows import STALE_SLACK, Flow, Lane, WaitHeap, Waiting
from gateway.core.kinds import Kind
from gateway.core.messages import Request

KIND = Kind(frozenset({"r"}), size=0, sequences=1, decodes=True)


def waiting(
    id: str, *, sequence: int = 0, cost: float = 1.0, kind: Kind = KIND, **fields: object
) -> Waiting:
    """A request of this cost that has its ticket, as if it had begun to wait just now."""
    given = {"model": "m", "tier": 0, "tenant": "t", "user": "u", "arrived_at": 0.0, **fields}
    each = Waiting(Request(id=id, **given), kind=kind, sequence=sequence)  # type: ignore[arg-type]  # free keywords
    each.cost = cost
    each.ticket = sequence + 1
    return each


def heap_of(*entries: tuple[float, Waiting]) -> WaitHeap:
    """These requests under these keys."""
    heap = WaitHeap()
    for key, each in entries:
        heap.push(key, each)
    return heap


def leave(heap: WaitHeap, each: Waiting) -> None:
    """It waits no longer."""
    each.ticket = 0
    heap.left()


def drained(heap: WaitHeap) -> list[str]:
    """Ids in the order in which the heap gives them up."""
    order = []
    while (each := heap.first()) is not None:
        order.append(each.request.id)
        leave(heap, each)
    return order


def listed(root: Lane, *flows: Flow) -> list[Lane]:
    """A lane with one request for each of these flows, listed in this order."""
    lanes = []
    for number, flow in enumerate(flows, start=1):
        lane = root.lanes[flow] = flow.lanes[KIND] = Lane(flow, root, KIND)
        lane.count = 1
        root.enlist(lane, number)
        lanes.append(lane)
    return lanes


def flow_at(start: float, weight: float = 1.0) -> Flow:
    """A flow with that tag."""
    flow = Flow("f", weight)
    flow.start = start
    return flow


# --- requests ---------------------------------------------------------------------------------


def test_a_request_stands_by_its_arrival_and_holds_nothing_before_it_is_weighed() -> None:
    """Who asked first: a retry brings its old instant and must get its old place."""
    each = Waiting(waiting("a", arrived_at=7.0).request, kind=KIND, sequence=3)
    assert each.order == (7.0, 3)
    assert each.entered_at == 7.0
    assert each.ticket == 0
    assert each.deadline == float("inf")
    assert each.cost == each.kv_tokens == each.prompt_tokens == each.output_tokens == 0
    assert (each.lane, each.expected_s, each.skipped_since) == (None, None, None)
    assert each.tallies == ()
    assert not each.was_recalled


def test_requests_come_out_by_key_and_equal_keys_by_their_arrival_here() -> None:
    """Two requests of one instant must not be ordered by the accident of their place in memory."""
    first, second, third = (waiting(id, sequence=rank) for rank, id in enumerate("abc"))
    assert drained(heap_of((2.0, first), (1.0, third), (1.0, second))) == ["b", "c", "a"]


def test_a_request_that_left_from_the_middle_never_surfaces() -> None:
    """A cancelled request must not be released."""
    first, second, third = (waiting(id, sequence=rank) for rank, id in enumerate("abc"))
    heap = heap_of((1.0, first), (2.0, second), (3.0, third))
    leave(heap, second)
    assert heap.live == 2
    assert [each.request.id for each in heap] == ["a", "c"]
    assert drained(heap) == ["a", "c"]
    assert heap.first() is None
    assert heap.live == 0


def test_a_request_that_comes_back_under_a_new_ticket_has_one_place_only() -> None:
    """A bounced request would be released twice, or at the place of its former stay."""
    first, second = waiting("a", sequence=0), waiting("b", sequence=1)
    heap = heap_of((1.0, first), (2.0, second))
    leave(heap, first)
    first.ticket = 9
    heap.push(3.0, first)
    assert [each.request.id for each in heap] == ["b", "a"]
    assert drained(heap) == ["b", "a"]


def test_a_heap_of_departed_requests_is_rebuilt_and_loses_nobody() -> None:
    """A gateway that runs for months would otherwise die of its cancelled requests."""
    heap = WaitHeap()
    for number in range(5_000):
        each = waiting(str(number), sequence=number)
        heap.push(-float(number), each)
        if number % 1_000:
            leave(heap, each)
        assert len(heap.entries) <= 2 * heap.live + STALE_SLACK + 1
    assert drained(heap) == ["4000", "3000", "2000", "1000", "0"]


# --- flows ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("weight", "start"), [(1.0, 14.0), (2.0, 12.0), (0.5, 18.0)])
def test_a_charge_moves_the_tag_by_cost_over_weight(weight: float, start: float) -> None:
    """Who pays for two shares is served twice as often."""
    flow = flow_at(10.0, weight)
    assert flow.charge(4.0) is False
    assert flow.start == start


def test_a_refund_moves_the_tag_back_and_says_so() -> None:
    """The overcharged user: unless its lanes are listed anew it keeps waiting for its old turn."""
    flow = flow_at(10.0, 2.0)
    assert flow.charge(-4.0) is True
    assert flow.start == 8.0


def test_a_refund_ends_where_the_flow_began_to_wait() -> None:
    """Everybody else: old refunds must not buy a row of turns."""
    flow = flow_at(10.0)
    flow.entered = 9.0
    assert flow.charge(-100.0) is True
    assert flow.start == 9.0
    assert flow.charge(-1.0) is False
    assert flow.charge(0.0) is False
    assert flow.start == 9.0


# --- lanes ------------------------------------------------------------------------------------


def test_the_lane_of_the_smallest_tag_is_first_and_equal_tags_keep_their_order() -> None:
    """Two equal tenants would otherwise be served by the accident of memory."""
    root = Lane(None, None, KIND)
    assert root.first() is None
    later, low, twin = listed(root, flow_at(2.0), flow_at(1.0), flow_at(1.0))
    assert root.first() is low
    low.count = 0
    assert root.first() is twin
    twin.count = 0
    assert root.first() is later
    later.count = 0
    assert root.first() is None
    assert root.heap == []


def test_a_tag_that_grew_is_corrected_when_it_surfaces() -> None:
    """A charge touches no heap, and still the charged user must not go first again."""
    root = Lane(None, None, KIND)
    charged, other = listed(root, flow_at(1.0), flow_at(2.0))
    assert root.first() is charged
    assert charged.flow is not None
    charged.flow.charge(5.0)
    assert root.first() is other
    assert charged.listed_at == 6.0
    other.count = 0
    assert root.first() is charged


def test_a_refunded_lane_that_is_listed_anew_comes_forward_once() -> None:
    """The refunded user goes first, and its old place must not serve it a second time."""
    root = Lane(None, None, KIND)
    refunded, other = listed(root, flow_at(5.0), flow_at(3.0))
    assert refunded.flow is not None
    refunded.flow.charge(-4.0)
    root.enlist(refunded, 3)
    assert root.first() is refunded
    refunded.flow.charge(9.0)
    assert root.first() is other
    other.count = 0
    assert root.first() is refunded
    refunded.count = 0
    assert root.first() is None


def test_listing_for_ever_does_not_grow_the_lane_and_loses_no_flow() -> None:
    """A user who is refunded after each request would fill the memory."""
    root = Lane(None, None, KIND)
    busy, quiet = listed(root, flow_at(0.0), flow_at(1e9))
    assert busy.flow is not None
    for number in range(5_000):
        busy.flow.start = 5_000.0 - number
        root.enlist(busy, number)
        assert len(root.heap) <= 2 * len(root.lanes) + STALE_SLACK + 1
    assert root.first() is busy
    busy.count = 0
    assert root.first() is quiet


def test_a_new_lane_knows_of_nobody() -> None:
    """The first request of a user and class must be the newest there, and have overtaken none."""
    lane = Lane(flow_at(0.0), None, KIND)
    assert lane.last is None
    assert lane.groups is None
    assert lane.overtaken == 0.0
    assert lane.count == 0
    assert lane.requests.first() is None
