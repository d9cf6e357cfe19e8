"""What scrapes show of an engine's load; how a replica uses it is tested with the replica."""

import pytest

from gateway.core.sightings import (
    FOREIGN_MEMORY,
    FOREIGN_WINDOW,
    KV_FULL,
    SLOTS_SIGHTINGS,
    Sightings,
)


def ran(times: int, *, waiting: int, kv_use: float = 0.0, unstarted: int = 0) -> Sightings:
    """So many scrapes show four sequences that run, and what waits beside them."""
    seen = Sightings()
    for _ in range(times):
        seen.ran(4, waiting=waiting, kv_use=kv_use, unstarted=unstarted)
    return seen


@pytest.mark.parametrize(
    ("waiting", "kv_use", "unstarted", "learnt"),
    [(1, 0.0, 0, 4), (2, 0.0, 2, 4), (2, 0.0, 3, None), (1, KV_FULL, 0, None), (0, 0.0, 0, None)],
)
def test_a_queue_shows_the_slots_unless_something_else_explains_it(
    waiting: int, kv_use: float, unstarted: int, learnt: int | None
) -> None:
    """All that waits may be ours: an engine that only we use would never be known."""
    seen = ran(SLOTS_SIGHTINGS, waiting=waiting, kv_use=kv_use, unstarted=unstarted)
    assert seen.learnt_slots == learnt
    assert seen.proven_sequences == 4


def test_what_is_remembered_is_bounded() -> None:
    """A gateway that runs for a year scrapes each engine thirty million times."""
    seen = ran(500, waiting=1)
    for number in range(500):
        seen.foreign(number)
    kept = seen.snapshot()
    assert [len(kept[name]) for name in ("foreign_seen", "foreign_recent", "full")] == [
        FOREIGN_WINDOW, FOREIGN_MEMORY, SLOTS_SIGHTINGS,
    ]  # fmt: skip
