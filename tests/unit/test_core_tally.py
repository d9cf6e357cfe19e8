"""How much waits of somebody, and whether that is more than its room."""

import pytest

from gateway.core.policy import Room
from gateway.core.tally import Tally

FULL = Room(requests=3, body_bytes=100, tokens=1_000)


def tally(requests: int = 0, body_bytes: int = 0, tokens: int = 0) -> Tally:
    """So much waits."""
    found = Tally()
    found.requests, found.body_bytes, found.tokens = requests, body_bytes, tokens
    return found


def test_nothing_waits_at_first_and_nothing_fits_into_a_room_of_nothing() -> None:
    """A bound of 0 is a bound: the operator wants no queue at all."""
    fresh = Tally()
    assert (fresh.requests, fresh.body_bytes, fresh.tokens) == (0, 0, 0)
    assert not fresh.exceeds(Room(requests=0, body_bytes=0, tokens=0))
    assert tally().is_full_for(Room(requests=0), body_bytes=0, tokens=0)
    assert not tally().is_full_for(Room(body_bytes=0, tokens=0), body_bytes=0, tokens=0)


def test_a_room_without_bounds_is_never_full() -> None:
    """Whoever configured nothing must be refused nothing."""
    much = tally(1 << 40, 1 << 40, 1 << 40)
    assert not much.exceeds(Room())
    assert not much.is_full_for(Room(), body_bytes=1 << 40, tokens=1 << 40)


@pytest.mark.parametrize(
    ("much", "is_more"),
    [
        (tally(3, 100, 1_000), False),
        (tally(4, 0, 0), True),
        (tally(0, 101, 0), True),
        (tally(0, 0, 1_001), True),
    ],
)
def test_each_bound_counts_by_itself_and_may_be_reached(much: Tally, *, is_more: bool) -> None:
    """A gigabyte in three requests fills the memory as well as a million small ones."""
    assert much.exceeds(FULL) is is_more


@pytest.mark.parametrize(
    ("much", "body_bytes", "tokens", "is_full"),
    [
        (tally(2, 90, 900), 10, 100, False),
        (tally(3, 0, 0), 0, 0, True),
        (tally(2, 90, 0), 11, 0, True),
        (tally(2, 0, 900), 0, 101, True),
    ],
)
def test_the_next_request_must_fit_whole(
    much: Tally, body_bytes: int, tokens: int, *, is_full: bool
) -> None:
    """The last byte of the room may be used, the first beyond it may not."""
    assert much.is_full_for(FULL, body_bytes=body_bytes, tokens=tokens) is is_full
