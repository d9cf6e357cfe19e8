"""Neither piling up inside an engine nor letting it stand idle, however late its gauges are."""

import pytest

from gateway.core.policy import Policy, Tier
from tests.simulation.model import STEP_S, Engine, Fleet

LATE_S = (0.1, 1.0, 5.0)
PATIENT = Tier(name="x", queue_limit=4, patience_s=1e6)
ALLOWANCE = 1
"""Eight slots end 10 requests a second: fewer than one in a round trip of 40 ms and a step."""
POLICY = Policy(tiers=(PATIENT,), cost="tokens")


def busy(fleet: Fleet, seconds: float, *, streams: bool = True) -> Fleet:
    """A burst of 200, and so many more that something always waits."""
    for number in range(200):
        fleet.send(f"u{number % 7}", output_tokens=20 + number % 60, streams=streams)
    fleet.on_end(lambda job: fleet.send(job.request.user, output_tokens=40, streams=streams))
    fleet.run(seconds)
    return fleet


@pytest.mark.parametrize("late_s", LATE_S)
@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("tells_slots", [True, False])
def test_never_more_than_the_allowance_and_one_wait_beyond_the_slots(
    *, tells_slots: bool, streams: bool, late_s: float
) -> None:
    """What waits in the engine's FIFO has lost its order: the light user stands behind it."""
    engines = [Engine(name, 8, tells_slots=tells_slots) for name in ("a", "b")]
    fleet = busy(Fleet(POLICY, engines, late_s=late_s), 40.0, streams=streams)
    assert fleet.beyond_max <= ALLOWANCE + 1
    assert fleet.scheduler.waiting


@pytest.mark.parametrize("old_s", [1.0, 5.0])
@pytest.mark.parametrize("tells_slots", [True, False])
def test_old_and_zero_gauges_do_not_let_a_cold_burst_in(*, tells_slots: bool, old_s: float) -> None:
    """A gateway that believes the gauges lets hundreds pile up: llm-d-router's issue 2066."""
    engine = Engine("a", 8, tells_slots=tells_slots, tells_nothing_until_s=18.0)
    fleet = busy(Fleet(POLICY, [engine], late_s=0.5, old_s=old_s), 40.0)
    assert fleet.beyond_max <= ALLOWANCE + 1


@pytest.mark.parametrize("late_s", LATE_S)
def test_no_slot_stands_idle_longer_than_a_round_trip_while_work_waits(late_s: float) -> None:
    """The GPU is what everybody pays for."""
    engines = [Engine(name, 8) for name in ("a", "b")]
    fleet = Fleet(POLICY, engines, hop_s=0.05, late_s=late_s)
    busy(fleet, 60.0)
    assert fleet.idle_s_max <= 2 * 0.05 + STEP_S + 1e-9


def test_an_engine_of_unknown_slots_is_filled_too() -> None:
    """vLLM does not tell: it must reach the throughput of an engine that does."""
    done = {}
    for tells in (True, False):
        fleet = busy(Fleet(POLICY, [Engine("a", 8, tells_slots=tells)]), 60.0)
        done[tells] = sum(job.ended_at is not None for job in fleet.jobs.values())
    assert done[False] >= 0.97 * done[True]


def test_background_waits_at_the_gateway_not_in_the_engine() -> None:
    """`queue_limit: 0` keeps the engine's FIFO empty for whoever is critical."""
    policy = Policy(tiers=(Tier(name="x", queue_limit=0, patience_s=1e6),))
    fleet = busy(Fleet(policy, [Engine("a", 8)], late_s=1.0), 30.0)
    assert fleet.beyond_max == 0
