"""Users against a max-min oracle; a scheduler without fairness must fail the same judge."""

from dataclasses import dataclass

import pytest

from gateway.core.policy import Policy, Tenant, Tier
from tests.simulation.judge import max_min, unfair
from tests.simulation.model import Engine, Fleet, Job

FROM_S, UNTIL_S = 20.0, 140.0
MARGIN = 0.08
WEIGHTS = {"double": 2.0}
TIER = Tier(name="x", queue_limit=4, patience_s=1e6)
FAIR = Policy(tiers=(TIER,), tenants={"t": Tenant(users=WEIGHTS)})
FIFO = Policy(tiers=(TIER,), release_at_once=True)


@dataclass(frozen=True)
class Result:
    """Cost served and asked for in the window, by user, and the mean wait of the light one."""

    served: dict[str, float]
    demands: dict[str, float]
    light_wait_s: float


def day(policy: Policy, late_s: float) -> Result:
    """A power user, two steady ones of other sizes or weights, and one who asks now and then."""
    fleet = Fleet(policy, [Engine("a", 4), Engine("b", 4)], late_s=late_s)
    sizes = {"power": 50, "double": 80, "short": 8}
    for user, depth in {"power": 400, "double": 60, "short": 120}.items():
        for _ in range(depth):
            fleet.send(user, output_tokens=sizes[user])

    def ask_again(job: Job) -> None:
        user = job.request.user
        if user in sizes:
            fleet.send(user, output_tokens=sizes[user])

    fleet.on_end(ask_again)
    for turn in range(35):
        fleet.at(4.0 * turn, lambda: fleet.send("light", output_tokens=30))
    fleet.run(UNTIL_S + 60.0)
    served = dict.fromkeys((*sizes, "light"), 0.0)
    demands = {user: float("inf") for user in sizes} | {"light": 0.0}
    waits_s = []
    for job in fleet.jobs.values():
        user = job.request.user
        if job.ended_at is not None and FROM_S <= job.ended_at < UNTIL_S:
            served[user] += job.cost
        if user == "light" and FROM_S <= job.request.arrived_at < UNTIL_S:
            demands[user] += job.cost
            waits_s.append((job.started_at or fleet.now) - job.request.arrived_at)
    return Result(served, demands, sum(waits_s) / len(waits_s))


@pytest.mark.parametrize("late_s", [1.0, 5.0])
def test_backlogged_users_get_their_shares_and_light_ones_what_they_ask_for(late_s: float) -> None:
    """The light user, and the one who pays for two shares."""
    result = day(FAIR, late_s)
    assert unfair(result.served, result.demands, WEIGHTS, margin=MARGIN) == []
    assert result.light_wait_s < 1.0


def test_a_scheduler_without_fairness_fails_the_same_judge() -> None:
    """A judge that passes everything would protect nobody."""
    result = day(FIFO, 1.0)
    assert len(unfair(result.served, result.demands, WEIGHTS, margin=5 * MARGIN)) >= 2
    assert result.light_wait_s > 10.0


def test_the_oracle_itself() -> None:
    """Nobody gets more than asked for; what is left is split by weight."""
    shares = max_min(100.0, {"a": 10.0, "b": 1e9, "c": 1e9}, {"c": 2.0})
    assert shares == pytest.approx({"a": 10.0, "b": 30.0, "c": 60.0})
    assert max_min(100.0, {"a": 10.0}, {}) == {"a": 10.0}
    assert max_min(9.0, {"a": 5.0, "b": 5.0, "c": 1.0}, {}) == {"a": 4.0, "b": 4.0, "c": 1.0}
