"""Neither piling up inside an engine nor letting it stand idle, however late its gauges are."""

import pytest

from gateway.core.policy import Policy
from tests.simulation import policies, scenarios
from tests.simulation.fleet import figures
from tests.simulation.fleet.fleet import Fleet
from tests.simulation.fleet.replica import ReplicaSpec
from tests.simulation.fleet.scrapes import Wires
from tests.simulation.fleet.workload import Asking, chat, keep_asking

LATE_S = (1.0, 5.0)
UNTIL_S = 40


def busy(
    specs: tuple[ReplicaSpec, ...],
    wires: Wires,
    *,
    policy: Policy | None = None,
    streams: bool = True,
    until_s: int = UNTIL_S,
) -> Fleet:
    """From a cold start on, more than the fleet can do always waits."""
    fleet = Fleet(policy or policies.gated(tiers=policies.one_tier()), specs, wires)
    depth = 6 * sum(spec.slots for spec in specs)
    keep_asking(fleet, Asking(streams=streams), chat, depth=depth, seed=3)
    fleet.run(until_s)
    assert fleet.scheduler.waiting
    return fleet


@pytest.mark.parametrize("late_s", LATE_S)
@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("tells_slots", [True, False])
def test_never_more_than_the_allowance_and_one_wait_beyond_the_slots(
    *, tells_slots: bool, streams: bool, late_s: float
) -> None:
    """What waits in the engine's FIFO has lost its order: the light user stands behind it."""
    specs = scenarios.pair(tells_slots=tells_slots)
    fleet = busy(specs, Wires(late_s=late_s), streams=streams)
    assert fleet.excess_max <= 1


@pytest.mark.parametrize("old_s", LATE_S)
@pytest.mark.parametrize("tells_slots", [True, False])
def test_old_and_zero_gauges_do_not_let_a_cold_burst_in(*, tells_slots: bool, old_s: float) -> None:
    """A gateway that believes the gauges lets hundreds pile up: llm-d-router's issue 2066."""
    specs = scenarios.pair(tells_slots=tells_slots, is_silent_until_s=18.0)
    fleet = busy(specs, Wires(late_s=0.5, old_s=old_s))
    assert fleet.excess_max <= 1


def test_a_fast_engine_gets_the_few_that_bridge_a_round_trip() -> None:
    """With 64 slots and 50 ms to the engine one ends during each round trip, often two."""
    specs = scenarios.pair(slots=64)
    fleet = busy(specs, Wires(hop_s=0.05, late_s=5.0), until_s=30)
    assert 1 < fleet.beyond_max <= 5
    assert fleet.excess_max <= 1


@pytest.mark.parametrize("late_s", LATE_S)
def test_no_slot_stands_idle_longer_than_a_round_trip_and_a_step(late_s: float) -> None:
    """The GPU is what everybody pays for."""
    wires = Wires(hop_s=0.03, late_s=late_s)
    policy = policies.gated(tiers=policies.one_tier(), warm_up_s=0.0)
    fleet = busy(scenarios.pair(), wires, policy=policy)
    for replica in fleet.replicas.values():
        assert replica.idle.longest_s <= 2 * wires.hop_s + replica.step_s_max + 1e-9


def test_an_engine_of_unknown_slots_is_filled_too() -> None:
    """vLLM does not tell: it must reach the throughput of an engine that does."""
    done = [
        figures.gpu_s(busy(scenarios.pair(tells_slots=tells), Wires(late_s=1.0)))
        for tells in (True, False)
    ]
    assert done[1] >= 0.97 * done[0]


def test_background_waits_at_the_gateway_not_in_the_engine() -> None:
    """`queue_limit: 0` keeps the engine's FIFO empty for whoever is critical."""
    policy = policies.gated(tiers=policies.one_tier(queue_limit=0))
    fleet = busy(scenarios.pair(), Wires(late_s=1.0), policy=policy)
    assert fleet.beyond_max == 0


def test_without_a_gate_the_same_observers_see_hundreds() -> None:
    """Observers that see nothing anywhere would protect nobody."""
    fleet = Fleet(policies.none(), scenarios.pair(), Wires(late_s=1.0))
    keep_asking(fleet, Asking(), chat, depth=200, seed=3)
    fleet.run(10.0)
    assert fleet.beyond_max > 80
    assert fleet.excess_max > 80
