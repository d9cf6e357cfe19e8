"""What a simulated gateway reads off its engines: when, how old, how often, and how wrong."""

import pytest

from gateway.sim.world.dispatch import Report
from gateway.sim.world.plan import Failure, Lie, Misfortune, Plan, Reports
from gateway.sim.world.play import play
from tests.support.worlds import STEP_MS, Jobs, Scripted, job, plan_of


def reports_of(plan: Plan, output: int = 100) -> list[tuple[float, int, Report]]:
    """Those that come while one request runs on replica 0."""
    dispatch = Scripted()
    play(plan, Jobs([job(0, prompt=10, output=output)]), dispatch)
    return dispatch.reports


def test_reports_come_every_interval_spread_over_the_fleet() -> None:
    """All engines would be asked at one instant, and a burst decided on one moment's figures."""
    wires = Reports(interval_s=0.4, delay_s=0.05)
    seen = [(round(at, 6), replica) for at, replica, _ in reports_of(plan_of(2, reports=wires))]
    assert seen[:4] == [(0.05, 0), (0.25, 1), (0.45, 0), (0.65, 1)]


def test_an_old_report_says_what_was_true_then_and_claims_to_be_new() -> None:
    """Late gauges would be harmless in simulation and wreck the real thing."""
    fresh = reports_of(plan_of(reports=Reports(interval_s=0.1)))
    old = reports_of(plan_of(reports=Reports(interval_s=0.1, age_s=0.3)))
    assert [each.told for _, _, each in old] == [each.told for _, _, each in fresh[: len(old)]]
    assert old[0][2].sent_at == pytest.approx(0.3)


def test_lost_reports_are_the_same_ones_in_every_run() -> None:
    """Two policies would be compared under different luck."""
    wires = Reports(interval_s=0.01, loss=0.5)
    runs = [
        [at for at, _, _ in reports_of(plan_of(reports=wires, seed=seed))] for seed in (1, 1, 2)
    ]
    assert runs[0] == runs[1] != runs[2]
    assert 30 < len(runs[0]) < 75


def test_a_lie_freezes_or_empties_the_gauges() -> None:
    """The gate would never meet gauges that stand still or read nothing."""
    for is_zero, running in ((True, [0]), (False, [1])):
        lie: Misfortune = Lie(replica=0, at=0.35, until=0.65, is_zero=is_zero)
        reports = reports_of(plan_of(reports=Reports(interval_s=0.1), events=(lie,)))
        told = [each.told for at, _, each in reports if 0.35 <= at - 0.01 < 0.65]
        assert len(told) == 3
        assert len({each.generation_tokens for each in told}) == 1
        assert [each.running for each in told] == running * 3


def test_a_dead_replica_reports_nothing() -> None:
    """It would seem idle, and be sent everything."""
    plan = plan_of(
        2, reports=Reports(interval_s=0.1), events=(Failure(replica=0, at=0.25, until=0.55),)
    )
    seen = [round(at, 2) for at, replica, _ in reports_of(plan) if replica == 0]
    assert seen[:5] == [0.01, 0.11, 0.21, 0.61, 0.71]


def test_histograms_agree_with_what_clients_see() -> None:
    """The gate would be steered by speeds that no client has."""
    _, _, last = reports_of(plan_of(reports=Reports(interval_s=0.1)))[-1]
    told = last.told
    assert told.generation_tokens is not None
    assert told.itl_count == told.generation_tokens - 1
    assert told.itl_sum_s == pytest.approx((told.generation_tokens - 1) * STEP_MS / 1000)
    assert told.ttft_count == 1
    assert told.ttft_sum_s == pytest.approx(STEP_MS / 1000)
