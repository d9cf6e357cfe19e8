"""All that waits, its totals and its deadlines."""

from gateway.core.flows import Waiting
from gateway.core.policy import Bounds
from gateway.core.tally import Tally
from gateway.core.waitroom import WaitingRoom, room_of_all, room_of_user
from tests.unit.test_core_flows import waiting


def entered(room: WaitingRoom, id: str, **fields: object) -> Waiting:
    """A request of 10 bytes and 100 tokens that began to wait."""
    deadline = fields.pop("deadline", 1e9)
    each = waiting(id, sequence=len(room.requests), **{"body_bytes": 10, **fields})  # type: ignore[arg-type]  # free keywords
    each.kv_tokens, each.deadline = 100, float(deadline)  # type: ignore[arg-type]  # free keywords
    room.enter(each)
    return each


def left(room: WaitingRoom, each: Waiting) -> None:
    """It waits no longer."""
    each.ticket = 0
    room.leave(each)


def sums(tally: Tally) -> tuple[int, int, int]:
    """(requests, bytes, tokens)."""
    return tally.requests, tally.body_bytes, tally.tokens


def test_what_waits_is_counted_for_all_its_tier_its_tenant_and_its_user() -> None:
    """Each of them has a bound of its own, over all models."""
    room = WaitingRoom(2)
    entered(room, "a")
    entered(room, "b", model="x", tier=1, body_bytes=20)
    entered(room, "c", user="v")
    entered(room, "d", tenant="w")
    assert sums(room.all) == (4, 50, 400)
    assert [sums(tally) for tally in room.by_tier] == [(3, 30, 300), (1, 20, 100)]
    assert {name: sums(tally) for name, tally in room.by_tenant.items()} == {
        "t": (3, 40, 300),
        "w": (1, 10, 100),
    }
    assert {name: sums(tally) for name, tally in room.by_user.items()} == {
        ("t", "u"): (2, 30, 200),
        ("t", "v"): (1, 10, 100),
        ("w", "u"): (1, 10, 100),
    }
    assert set(room.requests) == set("abcd")


def test_who_leaves_is_counted_no_more_and_the_last_of_a_name_is_forgotten() -> None:
    """Totals that leak lock everybody out; names that stay fill the memory."""
    room = WaitingRoom(1)
    first, second, third = entered(room, "a"), entered(room, "b", user="v"), entered(room, "c")
    left(room, first)
    assert sums(room.all) == sums(room.by_tier[0]) == sums(room.by_tenant["t"]) == (2, 20, 200)
    assert sums(room.by_user["t", "u"]) == (1, 10, 100)
    left(room, third)
    assert set(room.by_user) == {("t", "v")}
    assert set(room.by_tenant) == {"t"}
    left(room, second)
    assert (room.by_user, room.by_tenant, room.requests) == ({}, {}, {})
    assert sums(room.all) == sums(room.by_tier[0]) == (0, 0, 0)
    assert second.tallies == ()


def test_patience_ends_at_the_deadline_and_the_first_to_end_is_named_first() -> None:
    """Who waited out its patience is told so, and not before."""
    room = WaitingRoom(1)
    assert room.expired(1e9) is None
    later, sooner = entered(room, "later", deadline=9.0), entered(room, "sooner", deadline=5.0)
    assert room.expired(4.999) is None
    assert room.expired(5.0) is sooner
    assert room.expired(99.0) is sooner
    left(room, sooner)
    assert room.expired(8.0) is None
    assert room.expired(99.0) is later


def test_the_deadlines_of_those_who_left_do_not_pile_up() -> None:
    """A patience of an hour must not keep every answered request for an hour."""
    room = WaitingRoom(1)
    for number in range(5_000):
        left(room, entered(room, str(number), deadline=1e9 + number))
    assert len(room.deadlines.entries) < 200


def test_the_rooms_follow_from_the_bounds() -> None:
    """An operator who sets one bound must find that one, and not another, applied."""
    bounds = Bounds(
        waiting=1, waiting_bytes=2, waiting_tokens=3,
        waiting_per_user=4, waiting_bytes_per_user=5, waiting_tokens_per_user=6,
    )  # fmt: skip
    everybody, user = room_of_all(bounds), room_of_user(bounds)
    assert (everybody.requests, everybody.body_bytes, everybody.tokens) == (1, 2, 3)
    assert (user.requests, user.body_bytes, user.tokens) == (4, 5, 6)
    default = room_of_user(Bounds())
    assert (default.requests, default.body_bytes, default.tokens) == (1_000, None, None)
