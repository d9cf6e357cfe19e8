"""What the gate costs: work done by a gated fleet against the same fleet without a gate."""

from dataclasses import replace
from functools import cache

import pytest

from tests.simulation import policies, scenarios
from tests.simulation.scenarios import GateFigures, Scenario

SHORT_S = 45
CASES = [
    (scenarios.PLAIN, 1.5, 1.0),
    *((scenarios.PLAIN, load, 5.0) for load in (0.5, 0.9, 1.0, 1.5)),
    *((scenarios.FOREIGN, load, 5.0) for load in (1.0, 1.5)),
    *((scenarios.SHARED, load, 5.0) for load in (0.9, 1.5)),
    (scenarios.UNEQUAL, 1.5, 5.0),
    (scenarios.LONG, 1.0, 5.0),
]


@cache
def ungated(scenario: Scenario, load: float) -> GateFigures:
    """The contrast; it reads no gauges, so their lateness is no matter."""
    return scenarios.run(scenario, policies.none(), load)


def short(scenario: Scenario) -> Scenario:
    """For every commit; the tables are longer."""
    seconds = 300 if scenario is scenarios.LONG else SHORT_S
    return replace(scenario, seconds=seconds)


@pytest.mark.parametrize(("scenario", "load", "late_s"), CASES, ids=str)
def test_the_gate_costs_less_than_two_percent_of_the_work(
    scenario: Scenario, load: float, late_s: float
) -> None:
    """Whoever pays for the GPUs: order must not be bought with idle slots."""
    scenario = short(scenario)
    gated = scenarios.run(scenario, policies.gated(), load, late_s=late_s)
    assert gated.gpu_s >= 0.98 * ungated(scenario, load).gpu_s


def test_the_light_user_is_what_the_gate_is_for() -> None:
    """Without it a light request stands behind everything the others sent."""
    scenario = short(scenarios.PLAIN)
    gated = scenarios.run(scenario, policies.gated(), 1.5)
    assert gated.ttft_light_p95_s < 0.1 * ungated(scenario, 1.5).ttft_light_p95_s
