"""The speed limit where a full batch would be too slow, and a fleet that nobody can scrape."""

from dataclasses import dataclass
from functools import cache

import pytest

from tests.simulation import policies, scenarios
from tests.simulation.fleet import figures
from tests.simulation.fleet.fleet import Fleet
from tests.simulation.fleet.scrapes import Wires
from tests.simulation.fleet.workload import Asking, chat, keep_asking

LIMIT_MS = 20.0
"""Of the profile: 9.5 ms for one stream alone, about 45 ms for 256 of them."""
SETTLED_S, UNTIL_S = 30, 60


@cache
def crowded(limit_ms: float, late_s: float) -> Fleet:
    """One engine that could run 256 at once, and more than that always waits."""
    tiers = policies.one_tier(tpot_limit_ms=limit_ms, tpot_target_ms=limit_ms)
    specs = scenarios.pair(slots=256)[:1]
    fleet = Fleet(policies.gated(tiers=tiers), specs, Wires(late_s=late_s))
    keep_asking(fleet, Asking(), chat, depth=400, seed=5)
    fleet.run(UNTIL_S)
    return fleet


@pytest.mark.parametrize("late_s", [1.0, 5.0])
@pytest.mark.parametrize("limit_ms", [LIMIT_MS, 1.5 * LIMIT_MS])
def test_ten_second_means_stay_within_a_tenth_of_the_speed_limit(
    limit_ms: float, late_s: float
) -> None:
    """Who reads along: a batch that is too large makes every stream of it too slow."""
    means = figures.tpot_means_s(crowded(limit_ms, late_s), SETTLED_S, UNTIL_S)
    assert max(means) <= 1.1 * limit_ms / 1e3


def test_the_speed_limit_does_not_starve_the_engine() -> None:
    """A gate that only ever closes would keep the limit best."""
    means = figures.tpot_means_s(crowded(LIMIT_MS, 1.0), SETTLED_S, UNTIL_S)
    assert sum(means) / len(means) >= 0.7 * LIMIT_MS / 1e3


def test_without_a_speed_limit_the_same_engine_is_too_slow() -> None:
    """The limit must be what holds the batch down, not the load."""
    means = figures.tpot_means_s(crowded(1_000.0, 1.0), SETTLED_S, UNTIL_S)
    assert min(means) > 1.5 * LIMIT_MS / 1e3


@dataclass(frozen=True, slots=True)
class Served:
    """Work done in the window of the outage, and the queue inside the engines at its worst."""

    gpu_s: float
    excess_max: int


@cache
def with_and_without_scrapes(*, tells_slots: bool) -> tuple[Served, Served]:
    """The same fleet twice: with all scrapes, and with a minute in which none is answered."""
    found = []
    for outages in ((), ((30.0, 90.0),)):
        wires = Wires(late_s=1.0, outages=outages)
        specs = scenarios.pair(slots=4, tells_slots=tells_slots)
        fleet = Fleet(policies.gated(), specs, wires)
        keep_asking(fleet, Asking(tier=policies.STANDARD), chat, depth=32, seed=5)
        fleet.run(30.0)
        before_s = figures.gpu_s(fleet)
        fleet.run(95.0)
        found.append(Served(figures.gpu_s(fleet) - before_s, fleet.excess_max))
    return found[0], found[1]


@pytest.mark.parametrize("tells_slots", [True, False])
def test_a_minute_without_scrapes_costs_less_than_five_percent(*, tells_slots: bool) -> None:
    """The gateway must not stop serving because a metrics page cannot be read."""
    usual, blind = with_and_without_scrapes(tells_slots=tells_slots)
    assert blind.gpu_s >= 0.95 * usual.gpu_s
    assert max(usual.excess_max, blind.excess_max) <= 1
