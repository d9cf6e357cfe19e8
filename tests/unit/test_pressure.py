"""When lower tiers must stay out for the gateway's own sake, and when they may come in again."""

from pathlib import Path

import pytest

from gateway.runtime.pressure import (
    FALL_LOOKS,
    RISE_LOOKS,
    Pressure,
    floor_of,
    memory_limit,
    resident_bytes,
)


def looked(pressure: Pressure, looks: int, *, lag_s: float = 0.0, memory: int = 0) -> int:
    """The level after so many looks at four tiers."""
    for _ in range(looks):
        pressure.look(lag_s, memory, 4)
    return pressure.level


def test_one_pause_keeps_nobody_out() -> None:
    """The garbage collector, or one enormous body: it is over before anybody could be refused."""
    pressure = Pressure(lag_max_s=0.25, memory_max=None)
    for _ in range(10):
        assert looked(pressure, RISE_LOOKS - 1, lag_s=3.0) == 0
        assert looked(pressure, RISE_LOOKS, lag_s=0.2) == 0


def test_most_looks_are_enough() -> None:
    """Of a loop that is late by half a second each time some looks find less by chance."""
    pressure = Pressure(lag_max_s=0.25, memory_max=None)
    levels = [looked(pressure, 1, lag_s=0.1 if number % 4 == 3 else 0.4) for number in range(12)]
    assert max(levels) == 1


def test_lasting_lag_keeps_out_one_tier_after_the_other_but_never_the_first() -> None:
    """Overload that goes on must leave those served who matter most."""
    pressure = Pressure(lag_max_s=0.25, memory_max=None)
    levels = [looked(pressure, RISE_LOOKS, lag_s=0.25) for _ in range(5)]
    assert levels == [1, 2, 3, 3, 3]
    assert [floor_of(level, 4) for level in levels[:3]] == [3, 2, 1]


def test_they_come_in_again_one_after_the_other_and_only_at_ease() -> None:
    """All at once they would be the overload again."""
    pressure = Pressure(lag_max_s=0.25, memory_max=None)
    looked(pressure, RISE_LOOKS * 2, lag_s=0.3)
    assert looked(pressure, 1_000, lag_s=0.2) == 2
    assert [looked(pressure, FALL_LOOKS) for _ in range(3)] == [1, 0, 0]


def test_memory_counts_as_lag_does() -> None:
    """Before the kernel ends the process, and everybody's streams with it."""
    pressure = Pressure(lag_max_s=0.0, memory_max=1_000)
    assert looked(pressure, RISE_LOOKS, lag_s=9.0, memory=1_000) == 1
    assert looked(pressure, 1_000, memory=960) == 1
    assert looked(pressure, FALL_LOOKS, memory=940) == 0


def test_without_bounds_nobody_is_ever_kept_out() -> None:
    """Whoever switches it off means it."""
    assert looked(Pressure(lag_max_s=0.0, memory_max=None), 100, lag_s=9.0, memory=1 << 40) == 0


@pytest.mark.parametrize(
    ("level", "tiers", "floor"), [(0, 4, None), (1, 4, 3), (9, 4, 1), (1, 1, 0), (0, 1, None)]
)
def test_the_first_tier_stays_unless_it_is_the_only_one(
    level: int, tiers: int, floor: int | None
) -> None:
    """With one tier there is nobody to make room for."""
    assert floor_of(level, tiers) == floor


def test_what_the_system_says_of_memory(tmp_path: Path) -> None:
    """A container's limit counts; where there is none, none is made up."""
    assert resident_bytes() > 1 << 20
    path = tmp_path / "memory.max"
    assert memory_limit(path) is None
    path.write_text("max\n")
    assert memory_limit(path) is None
    path.write_text("1000000\n")
    assert memory_limit(path) == 900_000
