"""Dispatchers with one queue before all engines, and those that live in the engines."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from gateway.sim.baselines.catalogue import BASELINES, baseline_named
from gateway.sim.baselines.engine_priority import EnginePriority
from gateway.sim.baselines.infaas import Health, Infaas, State, tier_scale
from gateway.sim.baselines.llumlet import Llumlet, headrooms
from gateway.sim.baselines.tng import Tng
from gateway.sim.baselines.vtc import Vtc
from gateway.sim.workload.job import Job
from gateway.sim.world.dispatch import Dispatch
from gateway.sim.world.outcome import Outcome
from gateway.sim.world.plan import Drain, Failure, Plan, Reports
from gateway.sim.world.play import play
from tests.support.worlds import Jobs, job, plan_of, statuses

TIERS = 4
EACH = [pytest.param(each.make, id=each.name) for each in BASELINES]
Make = Callable[[int], Dispatch]


def by_priority(plan: Plan) -> Plan:
    """The same plan with engines that serve by priority."""
    engines = [
        replace(each, config=replace(each.config, policy="priority")) for each in plan.engines
    ]
    return replace(plan, engines=tuple(engines))


def crowd(count: int = 60) -> list[Job]:
    """Requests of three users and four tiers, some of which give up."""
    return [
        job(
            number,
            at=number / 50,
            output=3 + number % 7,
            tier=number % TIERS,
            user=f"user-{number % 3}",
            leaves_at=number / 50 + 0.3 if number % 10 == 9 else None,
        )
        for number in range(count)
    ]


def firsts(outcome: Outcome, user: str) -> list[float]:
    """When the requests of a user began."""
    return [outcome.first[row] for row in outcome.rows(user=user)]


@pytest.mark.parametrize("make", EACH)
def test_every_request_ends_whatever_fails(make: Make) -> None:
    """A baseline that loses requests would look better than it is."""
    events = (Failure(replica=0, at=0.4, until=1.0), Drain(replica=1, at=1.2, until=1.6))
    plan = by_priority(plan_of(2, events=events, reports=Reports(interval_s=0.1)))
    outcome = play(plan, Jobs(crowd()), make(TIERS))
    assert outcome.n == 60
    assert set(statuses(outcome.status)) <= {"DONE", "LEFT"}
    assert statuses(outcome.status).count("DONE") >= 50


@pytest.mark.parametrize("make", EACH)
def test_the_same_run_has_the_same_bytes(make: Make) -> None:
    """A comparison that cannot be repeated convinces nobody."""
    plan = by_priority(plan_of(2, reports=Reports(interval_s=0.1)))
    once, again = (play(plan, Jobs(crowd()), make(TIERS)).digest() for _ in range(2))
    assert once == again


def test_an_unknown_baseline_is_told_those_there_are() -> None:
    """A typing error would cost a search in the sources."""
    with pytest.raises(ValueError, match="round-robin, least-outstanding"):
        baseline_named("robin")


def test_token_counters_let_a_light_user_pass_a_flood() -> None:
    """VTC would be an unfair opponent if it were not fair."""
    flood = [job(number, at=0.0, output=20, user="heavy") for number in range(40)]
    late = job(40, at=0.5, output=20, user="light")
    outcome = play(plan_of(1, slots=2), Jobs([*flood, late]), Vtc())
    behind = sum(first > firsts(outcome, "light")[0] for first in firsts(outcome, "heavy"))
    assert behind > 30


def test_token_counters_charge_what_was_produced() -> None:
    """Long answers would be free, and turns would do as well."""
    jobs = []
    for turn in range(40):
        jobs.append(job(2 * turn, at=0.0, output=40, user="long"))
        jobs.append(job(2 * turn + 1, at=0.0, output=10, user="short"))
    outcome = play(plan_of(1, slots=1, progress_interval_s=0.05), Jobs(jobs), Vtc())
    half = sorted(firsts(outcome, "long"))[9]
    assert sum(first < half for first in firsts(outcome, "short")) > 18


def test_idle_time_earns_no_token_credit() -> None:
    """Who comes back from a pause would shut out everybody else."""
    steady = [job(number, at=0.0, output=10, user="steady") for number in range(60)]
    back = [job(60 + number, at=2.0, output=10, user="back") for number in range(20)]
    outcome = play(plan_of(1, slots=1), Jobs([*steady, *back]), Vtc())
    begun = sorted(firsts(outcome, "back"))
    between = [first for first in firsts(outcome, "steady") if begun[0] < first < begun[-1]]
    assert len(between) >= 15


def test_turns_are_requests_whatever_they_cost() -> None:
    """The contrast between turns and tokens would vanish."""
    jobs = []
    for turn in range(20):
        jobs.append(job(2 * turn, at=0.0, output=40, user="long"))
        jobs.append(job(2 * turn + 1, at=0.0, output=4, user="short"))
    outcome = play(plan_of(1, slots=1, reports=Reports(interval_s=0.05)), Jobs(jobs), Tng())
    half = sorted(firsts(outcome, "long"))[9]
    assert 8 <= sum(first < half for first in firsts(outcome, "short")) <= 12


def test_turns_stop_at_the_limit_of_the_engines_queue() -> None:
    """A gate that lets everything pass is no gate."""
    jobs = [job(number, at=0.0, output=50) for number in range(30)]
    outcome = play(plan_of(1, slots=1), Jobs(jobs), Tng(queue_limit=3))
    sent_at_once = sum(outcome.wait_s(row) < 0.01 for row in range(outcome.n))
    assert sent_at_once == 3


def test_engines_serve_by_the_tier_that_comes_with_a_request() -> None:
    """Engine-side priority would be the plain balancer under another name."""
    jobs = [job(number, at=0.0, output=20, tier=3) for number in range(10)]
    jobs.append(job(10, at=0.05, output=5, tier=0))
    outcome = play(by_priority(plan_of(1, slots=1)), Jobs(jobs), EnginePriority())
    assert sum(outcome.first[row] < outcome.first[10] for row in range(10)) <= 2


def test_infaas_weighs_queues_less_for_high_tiers() -> None:
    """The baseline would not be the one of the paper."""
    assert [tier_scale(tier, 4) for tier in range(4)] == pytest.approx([0.7, 0.8, 0.9, 1.0])
    assert tier_scale(0, 10) == 0.5


def test_a_slow_and_deep_replica_is_overloaded_for_three_arrivals() -> None:
    """Ill replicas would be used as if they were well, or never again."""
    health = Health()
    health.ended(2_000, outstanding=5)
    assert health.state is State.OVERLOADED
    states = []
    for _ in range(3):
        health.tick(outstanding=1)
        states.append(health.state)
    assert states == [State.OVERLOADED, State.OVERLOADED, State.ACTIVE]


def test_infaas_prefers_the_shorter_queue() -> None:
    """It would favour the first replica."""
    jobs = [job(number, at=number / 1e4, output=9) for number in range(8)]
    outcome = play(plan_of(2), Jobs(jobs), Infaas(1))
    assert list(outcome.replica).count(0) == 4


def test_headrooms_are_those_of_the_paper() -> None:
    """20, 8.7, 3.8 and 1.6 per cent for four tiers; one tier keeps nothing free."""
    assert headrooms(4) == pytest.approx((0.2, 0.0869, 0.0378, 0.0164), abs=1e-4)
    assert headrooms(1) == (0.0,)


def test_a_running_sequence_moves_to_the_freer_replica() -> None:
    """Llumnix without migration is another system."""
    long = [job(number, at=0.0, prompt=400, output=150) for number in range(0, 8, 2)]
    short = [job(number, at=0.0, prompt=400, output=10) for number in range(1, 8, 2)]
    jobs = sorted([*long, *short], key=lambda each: each.number)
    plan = by_priority(plan_of(2, slots=4, kv_blocks=400))
    stays = play(plan, Jobs(jobs), Llumlet(2, migrates=False))
    moves = play(plan, Jobs(jobs), Llumlet(2))
    assert list(stays.replica) != list(moves.replica)
    assert set(statuses(moves.status)) == {"DONE"}


@pytest.mark.parametrize("prompt", [400, 20_000])
def test_what_runs_alone_is_not_moved_to_and_fro(prompt: int) -> None:
    """A prompt of several steps would begin anew at each look, for ever."""
    plan = by_priority(plan_of(2, slots=4, kv_blocks=2_000))
    outcome = play(plan, Jobs([job(0, prompt=prompt, output=30)]), Llumlet(4))
    unmoved = play(plan, Jobs([job(0, prompt=prompt, output=30)]), Llumlet(4, migrates=False))
    assert outcome.e2e_s(0) == unmoved.e2e_s(0)


def test_fewer_levels_put_lower_tiers_together() -> None:
    """Llumnix has two priorities, however many tiers there are."""
    jobs = [job(number, at=0.0, output=20, tier=3) for number in range(6)]
    jobs.append(job(6, at=0.05, output=5, tier=1))
    plan = by_priority(plan_of(1, slots=1))
    two, four = (play(plan, Jobs(jobs), Llumlet(levels)) for levels in (2, 4))
    assert two.first[6] > four.first[6]
