"""The plan: how long it takes, and how it is changed."""

import pytest

from gateway.bench.scenarios import (
    FIRST_EVENT,
    ONE_CLIENT,
    SCENARIOS,
    STEADY_RATE,
    Plan,
    full_plan,
    quick_plan,
)

START_S = 5.0
"""Of all contenders in a round, as measured on two cores."""
PROCESS_S = 0.6
"""Of the load generator, each time."""


def length_s(plan: Plan, *, contenders: int) -> float:
    """Of a whole run, about."""
    a_round_s = sum(
        (PROCESS_S + one.load.length_s) * (contenders + one.is_paired) for one in plan.scenarios
    )
    return plan.rounds * (a_round_s + START_S * contenders)


def test_the_gateway_alone_takes_three_minutes_at_most() -> None:
    """Who waits longer runs it less often."""
    assert length_s(quick_plan(), contenders=1) < 180


def test_three_peers_beside_it_take_ten_minutes_at_most() -> None:
    """Longer, and nobody compares."""
    core_s = 60.0
    assert length_s(quick_plan(), contenders=4) + core_s < 600


def test_the_full_plan_measures_longer() -> None:
    """It is what a claim in public is based on."""
    quick, full = quick_plan(), full_plan()
    assert full.rounds > quick.rounds
    for short, long in zip(quick.scenarios, full.scenarios, strict=True):
        assert long.name == short.name
        assert long.load.window_s == 4 * short.load.window_s


def test_a_plan_has_every_scenario_once() -> None:
    """What can be asked for by name must be there."""
    assert tuple(one.name for one in quick_plan().scenarios) == SCENARIOS


def test_both_kinds_of_loops_are_planned() -> None:
    """A closed loop alone never shows a queue."""
    rates = {one.name: one.load.requests_per_s for one in quick_plan().scenarios}
    assert rates[STEADY_RATE] > 0
    assert rates[ONE_CLIENT] == 0


def test_open_streams_stay_fast_enough_for_the_gate() -> None:
    """Events slower than the tier's tpot limit of 150 ms would close the gate and be queued."""
    for one in quick_plan().scenarios:
        assert one.load.interval_us <= 100_000


def test_rounds_windows_and_scenarios_can_be_changed() -> None:
    """Who works on one figure need not wait for the others."""
    plan = quick_plan().changed(rounds=1, window_s=0.5, only=[FIRST_EVENT])
    assert plan.rounds == 1
    assert [(one.name, one.load.window_s) for one in plan.scenarios] == [(FIRST_EVENT, 0.5)]


def test_a_plan_that_is_not_changed_stays_as_it_is() -> None:
    """Options that are left out must not shorten a run."""
    assert quick_plan().changed() == quick_plan()


@pytest.mark.parametrize("change", [{"rounds": 0}, {"window_s": 0.0}, {"only": ["no such"]}])
def test_nothing_to_measure_is_refused(change: dict[str, object]) -> None:
    """An empty table after a minute is no answer."""
    with pytest.raises(ValueError, match=r"at least|longer"):
        quick_plan().changed(**change)  # type: ignore[arg-type]  # one argument at a time
