"""Advice on the number of replicas: more for a backlog, fewer for an idle fleet, no flapping."""

from tests.simulation import policies, scenarios
from tests.simulation.fleet.fleet import Fleet
from tests.simulation.fleet.scrapes import Wires
from tests.simulation.fleet.workload import Asking, arrive, chat, keep_asking

POLICY = policies.gated(tiers=policies.one_tier())


def advised(fleet: Fleet, from_s: float) -> list[int]:
    """Replicas that were advised from then on."""
    return [replicas for instant, replicas in fleet.advice if instant >= from_s]


def test_a_backlog_asks_for_more_and_silence_for_fewer() -> None:
    """Late binding keeps the backlog at the gateway: replicas alone would never look too few."""
    fleet = Fleet(
        policies.gated(tiers=policies.one_tier()), scenarios.pair(slots=4), Wires(late_s=1.0)
    )
    keep_asking(fleet, Asking(), chat, depth=100, until_s=60.0)
    fleet.run(60.0)
    more = advised(fleet, 0.0)
    assert more
    assert more[-1] > 2
    fleet.run(300.0)
    assert advised(fleet, 120.0)[-1] < 2


def test_a_steady_load_is_left_alone() -> None:
    """A fleet that grows and shrinks under the same load costs more than either size."""
    fleet = Fleet(
        policies.gated(tiers=policies.one_tier()), scenarios.pair(slots=4), Wires(late_s=1.0)
    )
    arrive(fleet, Asking(), chat, per_s=4.5, seed=3, until_s=200.0)
    fleet.run(200.0)
    assert len(set(advised(fleet, 0.0))) <= 1
