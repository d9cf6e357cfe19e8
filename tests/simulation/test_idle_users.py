"""Idle time earns nothing: who comes back gets a fair share, however long it was away."""

from functools import cache

import pytest

from gateway.sim.profiles import A100_LLAMA2_7B
from tests.simulation import policies
from tests.simulation.fleet import figures
from tests.simulation.fleet.fleet import Fleet
from tests.simulation.fleet.replica import ReplicaSpec
from tests.simulation.fleet.scrapes import Wires
from tests.simulation.fleet.workload import Asking, fixed, keep_asking

ACTIVE_S = 30.0
LOOK_S = 20.0
SLOTS = 4
SLOW = A100_LLAMA2_7B.faster(0.05)
"""190 ms a token: what matters here is turns, not tokens."""
SIZES = fixed(40, 20)
TURN_S = 4.0
"""How long such a request takes there."""


@cache
def shares_after(idle_s: float) -> tuple[float, ...]:
    """Share of all service that one of three users has had since its return, every 20 s."""
    policy = policies.gated(tiers=policies.one_tier())
    fleet = Fleet(policy, [ReplicaSpec(name="a", slots=SLOTS, profile=SLOW)], Wires())
    back_s = ACTIVE_S + idle_s
    for user in ("stays", "stays too"):
        keep_asking(fleet, Asking(user=user), SIZES, depth=8)
    away = Asking(user="away")
    keep_asking(fleet, away, SIZES, depth=8, until_s=ACTIVE_S)
    keep_asking(fleet, away, SIZES, depth=8, from_s=back_s)
    fleet.run(back_s)
    before = figures.served_by(fleet, figures.user_of)
    shares = []
    for turn in range(1, 7):
        fleet.run(back_s + turn * LOOK_S)
        now = figures.served_by(fleet, figures.user_of)
        gained = {user: cost - before[user] for user, cost in now.items()}
        shares.append(gained["away"] / sum(gained.values()))
    return tuple(shares)


@pytest.mark.parametrize("minutes", [1, 10, 60])
def test_a_returning_user_gains_at_most_one_fair_share(minutes: int) -> None:
    """Those who stayed would pay for the hour in which somebody else slept."""
    first, *_, last = shares_after(minutes * 60.0)
    # What is in flight when it returns belongs to the others: one turn of all slots is its due.
    assert first <= (1 + TURN_S / LOOK_S) / 3
    assert last == pytest.approx(1 / 3, rel=0.1)


def test_an_hour_away_earns_no_more_than_a_minute() -> None:
    """Credit that grows with absence is a way to jump the queue."""
    for hour, minute in zip(shares_after(3_600.0), shares_after(60.0), strict=True):
        assert hour <= max(minute, 1 / 3) * 1.15
