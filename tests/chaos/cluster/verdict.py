"""A house under load to which something happens: what must hold of it then, and its figures."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.cluster.house import House, house
from tests.chaos.cluster.load import Load, fates, load
from tests.chaos.cluster.watching import ALLOWED, Fullness, watched

BEFORE_S, AFTER_S = 4.0, 8.0
"""Under load before anything happens, and after all of it."""
RECOVERY_S = 3.0
DEGRADED_S = 1.0
"""Detection takes 0.2 s; the rest is that `/readyz` is asked for it."""
EMPTY_S = 60.0
"""What is left over is served, or its end is noticed, within this time."""


@dataclass(slots=True)
class Case:
    """What is under load, and what was seen of it."""

    house: House
    figures: str = ""


@asynccontextmanager
async def tried(
    folder: Path, redis_url: str, say: Callable[[str], None], *, way_to: int | None = None
) -> AsyncIterator[Case]:
    """Something happens in the block; afterwards it is judged. `way_to`: see `house`."""
    async with house(folder, redis_url, way_to=way_to) as found, watched(found) as full:
        case = Case(found)
        async with load(found) as asked:
            await asyncio.sleep(BEFORE_S)
            yield case
            await asyncio.sleep(AFTER_S)
        say(f"{case.figures}; {_told(asked, found, full)}")
        await _judge(found, asked, full)


def _told(asked: Load, house: House, full: Fullness) -> str:
    """The figures of a load."""
    served = sum(each.is_served for each in asked.of(house.alive))
    waits = sorted(each.ended_at - each.began_at for each in asked.of(house.alive))
    return (
        f"{served} of {len(asked.of(house.alive))} served by the {len(house.alive)} left, "
        f"the slowest in {waits[-1]:.1f} s; at most {full.most} in an engine, {ALLOWED} may be"
    )


async def _judge(house: House, asked: Load, full: Fullness) -> None:
    """Nobody who asked a gateway that lives lost anything, and nothing is held by anybody."""
    assert asked.of(house.alive)
    assert asked.lost(house.alive) == [], fates(asked.of(house.alive))
    assert full.most <= ALLOWED
    await house.empty(EMPTY_S)
