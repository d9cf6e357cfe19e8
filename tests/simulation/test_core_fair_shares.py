"""Users against a max-min oracle; a scheduler without fairness must fail the same judge."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest

from gateway.core.policy import Policy
from tests.simulation import policies, scenarios
from tests.simulation.fleet import figures
from tests.simulation.fleet.fleet import Fleet
from tests.simulation.fleet.job import Job, Size
from tests.simulation.fleet.scrapes import Wires
from tests.simulation.fleet.workload import Asking, chat, fixed, keep_asking
from tests.simulation.judge import backlogged, max_min, unfair

FROM_S, UNTIL_S = 20, 150
"""At least forty times what one user may be ahead by: all slots with its largest request."""
MARGIN = 0.05
WEIGHTS = {"double": 2.0}
ONE_TIER = policies.one_tier()
FAIR = policies.gated(tiers=ONE_TIER, tenants=policies.weighted_users(WEIGHTS))
FIFO = policies.gated(tiers=ONE_TIER, release_at_once=True, recall=False)


@dataclass(frozen=True)
class Day:
    """Cost served and asked for in the window, by user, and the mean wait of the light one."""

    served: Mapping[str, float]
    demands: Mapping[str, float]
    light_wait_s: float


def day(policy: Policy, late_s: float) -> Day:
    """A power user, two steady ones of other sizes or weights, and one who asks now and then."""
    fleet = Fleet(policy, scenarios.pair(slots=4), Wires(late_s=late_s))
    sizes = {"power": (150, 60), "double": (100, 90), "short": (20, 8)}
    for user, depth in {"power": 300, "double": 60, "short": 90}.items():
        keep_asking(fleet, Asking(user=user), fixed(*sizes[user]), depth=depth)
    light = Size(100, 30)
    for turn in range(UNTIL_S // 4 + 1):
        fleet.clock.at(4.0 * turn + 1.0, lambda: fleet.send("light", light))
    served = figures.served_between(fleet, figures.user_of, FROM_S, UNTIL_S)
    waits_s = figures.waits_s(fleet, lambda job: job.request.user == "light", FROM_S, UNTIL_S - 20)
    light_cost = 160.0 * (UNTIL_S - FROM_S) / 4
    demands = backlogged(sizes) | {"light": light_cost}
    return Day(served, demands, sum(waits_s) / len(waits_s))


@pytest.mark.parametrize("late_s", [1.0, 5.0])
def test_backlogged_users_get_their_shares_and_light_ones_what_they_ask_for(late_s: float) -> None:
    """The light user, and the one who pays for two shares."""
    result = day(FAIR, late_s)
    assert unfair(result.served, result.demands, WEIGHTS, margin=MARGIN) == []
    assert result.light_wait_s < 0.5


def test_a_scheduler_without_fairness_fails_the_same_judge() -> None:
    """A judge that passes everything would protect nobody."""
    result = day(FIFO, 1.0)
    assert len(unfair(result.served, result.demands, WEIGHTS, margin=5 * MARGIN)) >= 2
    assert light_ttft_s_without_a_gate() > 5.0


def light_ttft_s_without_a_gate() -> float:
    """What the power user costs the light one, who waits inside the engine."""
    fleet = Fleet(FIFO, scenarios.pair(slots=4), Wires())
    keep_asking(fleet, Asking(user="power"), fixed(150, 60), depth=300)
    fleet.clock.at(20.0, lambda: fleet.send("light", Size(100, 30)))
    fleet.run(60.0)
    return figures.ttfts_s(fleet, lambda job: job.request.user == "light", 0.0, 60.0)[0]


def shares(
    policy: Policy, users: Mapping[Asking, tuple[int, int]], key: Callable[[Job], str]
) -> dict[str, float]:
    """Cost served in the window by `key`; each of `users` always has more of its one size."""
    fleet = Fleet(policy, scenarios.pair(slots=4), Wires(late_s=1.0))
    for asking, size in users.items():
        keep_asking(fleet, asking, fixed(*size), depth=20)
    return figures.served_between(fleet, key, FROM_S, UNTIL_S)


@pytest.mark.parametrize("weights", [{}, {"big": 3.0}, {"small": 2.0}], ids=str)
def test_ten_to_one_sizes_share_tokens_by_weight(weights: dict[str, float]) -> None:
    """Who asks for little at a time would else pay for who asks for much."""
    policy = policies.gated(tiers=ONE_TIER, tenants=policies.weighted_users(weights))
    users = {Asking(user="big"): (600, 200), Asking(user="small"): (60, 20)}
    served = shares(policy, users, figures.user_of)
    assert unfair(served, backlogged(("big", "small")), weights, margin=MARGIN) == []


def test_counting_requests_would_not_share_tokens() -> None:
    """The same two under `cost: requests`: the judge must see the difference."""
    policy = policies.gated(tiers=ONE_TIER, cost="requests")
    users = {Asking(user="big"): (600, 200), Asking(user="small"): (60, 20)}
    served = shares(policy, users, figures.user_of)
    assert served["big"] > 5 * served["small"]


def test_tenants_with_one_and_a_hundred_users_share_by_tenant() -> None:
    """A small team must not be outvoted by a large one."""
    users = {Asking(user=f"m{n}", tenant="many"): (100, 50) for n in range(100)}
    users[Asking(user="only", tenant="one")] = (100, 50)
    served = shares(policies.gated(tiers=ONE_TIER), users, figures.tenant_of)
    assert unfair(served, backlogged(("many", "one")), {}, margin=MARGIN) == []


def test_users_of_mixed_sizes_share_tokens_too() -> None:
    """Estimates are wrong for each single request; what is settled must be right."""
    fleet = Fleet(policies.gated(tiers=ONE_TIER), scenarios.pair(slots=4), Wires(late_s=1.0))
    names = [f"u{n}" for n in range(5)]
    for number, name in enumerate(names):
        keep_asking(fleet, Asking(user=name), chat, depth=8 * (number + 1), seed=number)
    served = figures.served_between(fleet, figures.user_of, FROM_S, UNTIL_S)
    assert unfair(served, backlogged(names), {}, margin=MARGIN) == []


def test_the_oracle_itself() -> None:
    """Nobody gets more than asked for; what is left is split by weight."""
    shares = max_min(100.0, {"a": 10.0, "b": 1e9, "c": 1e9}, {"c": 2.0})
    assert shares == pytest.approx({"a": 10.0, "b": 30.0, "c": 60.0})
    assert max_min(100.0, {"a": 10.0}, {}) == {"a": 10.0}
    assert max_min(9.0, {"a": 5.0, "b": 5.0, "c": 1.0}, {}) == {"a": 4.0, "b": 4.0, "c": 1.0}
