"""What must hold of a house after whatever happened to it, and the figures of it."""

from tests.chaos.cluster.house import House
from tests.chaos.cluster.load import Load, fates
from tests.chaos.cluster.watching import ALLOWED, Fullness

RECOVERY_S = 3.0
EMPTY_S = 60.0
"""What is left over is served, or its end is noticed, within this time."""


def told(asked: Load, house: House, full: Fullness) -> str:
    """The figures of a load."""
    served = sum(each.is_served for each in asked.of(house.alive))
    waits = sorted(each.ended_at - each.began_at for each in asked.of(house.alive))
    return (
        f"{served} of {len(asked.of(house.alive))} served by the {len(house.alive)} left, "
        f"the slowest in {waits[-1]:.1f} s; at most {full.most} in an engine, {ALLOWED} may be"
    )


async def judge(house: House, asked: Load, full: Fullness) -> None:
    """Nobody who asked a gateway that lives lost anything, and nothing is held by anybody."""
    assert asked.of(house.alive)
    assert asked.lost(house.alive) == [], fates(asked.of(house.alive))
    assert full.most <= ALLOWED
    await house.empty(EMPTY_S)
